"""The states of a job and the one table of transitions between them.

                      ┌────────────────────────────── requeue, replace (generation + 1) ─────────┐
                      ▼                                                                          │
    enqueue ──► scheduled ──► queued ──► assigned ──► running ──► succeeded                      │
        │           ▲           ▲  ▲                   │ │ │ └──► failed, cancelled ─────────────┘
        │           │ snooze    │  └────── release ────┘ │ │
        ├──► blocked ───────────┘                        │ └──► (scheduled)
        └──► (queued)          retrying ◄────────────────┘

A job can be claimed only while it is `queued`. A job that is held back is in another state, and the write that removes
the obstacle changes the state. So a claim never searches through jobs that wait.
"""

from enum import IntFlag, StrEnum


class JobState(StrEnum):
    """The state of a job."""

    SCHEDULED = "scheduled"
    """Due later."""
    BLOCKED = "blocked"
    """Held back by its lane, its parents, a pause or a resize of its pool; `hold` says which."""
    QUEUED = "queued"
    """Ready: the only state from which a claim takes jobs."""
    ASSIGNED = "assigned"
    """Claimed ahead (prefetch); its attempt has not started."""
    RUNNING = "running"
    """Claimed, and its attempt has started."""
    RETRYING = "retrying"
    """An attempt failed or its worker was lost; it waits for its back-off."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """No further attempt: this is the dead-letter state."""
    CANCELLED = "cancelled"


class Hold(IntFlag):
    """Why a blocked job is held back. Several reasons may apply at once."""

    NONE = 0
    LANE = 1
    """Another job is the head of its lane."""
    PARENTS = 2
    """Its parents have not ended."""
    PAUSED = 4
    """It is the head of a paused lane; otherwise it would be queued."""
    ARRIVING = 8
    """Inserted by a user's transaction; after the commit it gets its lane, its pool and its parents (PostgreSQL)."""
    EPOCH = 16
    """It has a key and waits until the jobs of the pool's earlier epoch have ended: its key may have changed lanes."""


class Reason(StrEnum):
    """Why a job is in its state: a closed list. `note` has free text in addition."""

    ERROR = "error"
    """The handler raised."""
    TIMEOUT = "timeout"
    GAVE_UP = "gave_up"
    """The handler gave up: another attempt would not help."""
    EXHAUSTED = "exhausted"
    """The last allowed attempt has failed."""
    RETRY_WINDOW = "retry_window"
    """Retrying went on for longer than `retry_for`."""
    WORKER_LOST = "worker_lost"
    """Its worker was lost during the attempt."""
    ASKED = "asked"
    """Cancelled by a caller, or by its own handler."""
    EXPIRED = "expired"
    """Not started before `expires`."""
    CLEARED = "cleared"
    PARENT_FAILED = "parent_failed"
    SNOOZED = "snoozed"
    RETRY_ASKED = "retry_asked"
    RELEASED = "released"
    UNKNOWN_TASK = "unknown_task"
    UNDECODABLE = "undecodable"
    """The stored payload cannot be read; its bytes are kept."""
    UNSTORABLE = "unstorable"
    """The engine refused to store the outcome."""
    RESULT_TOO_LARGE = "result_too_large"


WAITING = frozenset({JobState.SCHEDULED, JobState.BLOCKED, JobState.QUEUED, JobState.RETRYING})
LEASED = frozenset({JobState.ASSIGNED, JobState.RUNNING})
LIVE = WAITING | LEASED
TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
UNSUCCESSFUL = TERMINAL - {JobState.SUCCEEDED}
"""Ended, and free to be requeued or replaced."""
BY_DUE = frozenset({JobState.SCHEDULED, JobState.RETRYING})
"""Waiting for nothing except the due time."""
ENDS_A_RUN = frozenset({JobState.RETRYING, JobState.FAILED, JobState.CANCELLED})
"""Targets that write a run into the history. A snooze or a release is no failure."""

_S = JobState

TRANSITIONS: dict[JobState | None, frozenset[JobState]] = {
    None: frozenset({_S.SCHEDULED, _S.BLOCKED, _S.QUEUED}),
    _S.SCHEDULED: frozenset({_S.QUEUED, _S.BLOCKED, _S.CANCELLED}),
    _S.BLOCKED: frozenset({_S.QUEUED, _S.SCHEDULED, _S.CANCELLED}),
    _S.QUEUED: frozenset({_S.RUNNING, _S.ASSIGNED, _S.BLOCKED, _S.CANCELLED}),
    _S.ASSIGNED: frozenset({_S.RUNNING, _S.QUEUED, _S.BLOCKED, _S.RETRYING, _S.FAILED, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.SUCCEEDED, _S.FAILED, _S.RETRYING, _S.SCHEDULED, _S.QUEUED, _S.BLOCKED, _S.CANCELLED}),
    _S.RETRYING: frozenset({_S.QUEUED, _S.BLOCKED, _S.CANCELLED}),
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}
"""Inside one generation. A new generation starts at `None`; it may follow `failed` and `cancelled` (requeue, replace)
and `succeeded` (replace)."""


def legal(before: JobState | None, after: JobState, *, same_generation: bool = True) -> bool:
    """True if a job may change from one state to the other. To stay in a state is always legal."""
    if same_generation:
        return before is after or after in TRANSITIONS[before]
    return before in TERMINAL and after in TRANSITIONS[None]
