"""The values of all commands except enqueue: claims, settlements, operators' verbs. Few values, so that they conflict.

Distances from now (`due_in`, `since_in`) become instants when the command is made: see `jobs.timed`.
"""

from typing import Any

from hypothesis import strategies as st

from holdfast.model.command import Command
from holdfast.model.instants import DAY, HOUR, MINUTE, SECOND
from holdfast.model.job import ProgressRecord
from holdfast.model.operate import Pools, PutPool, RemoveQueue, Resize
from holdfast.model.produce import DepthLimit
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import Disown, ForgetWorker, Heartbeat, QueueClaim, StopWorker, TaskClaim, Workers
from holdfast.testing.differential.jobs import LANES, LEASE_US, QUEUES, Trait, queues

WORKERS = ("w1", "w2")
BOOM = ErrorInfo("Boom", "it broke", "")

workers = st.sampled_from(WORKERS)

advances = st.sampled_from(
    [1, SECOND, LEASE_US, LEASE_US + 1, LEASE_US, 2 * MINUTE, HOUR, HOUR + SECOND, DAY, 31 * DAY]
)

scopes = st.sampled_from([(queue, lane) for queue in QUEUES for lane in (None, *LANES)])
"""A queue, or a lane of it."""

depth_limits = st.sampled_from(
    [
        (),
        (),
        (),
        (DepthLimit("q", 1),),
        (DepthLimit("q", 2), DepthLimit("r", 1)),
        (DepthLimit("q", 3), DepthLimit("q", 1, "x")),
        (DepthLimit("q", 2, "x"), DepthLimit("r", 2, "x")),
        (DepthLimit("q", 2, each_lane=True),),
        (DepthLimit("q", 1, "0"), DepthLimit("q", 1, each_lane=True), DepthLimit("q", 4)),
    ]
)


# --- Claims and settlements ---


def _task(task: str, **fields: Any) -> TaskClaim:
    return TaskClaim(task=task, **{"lease_len": LEASE_US, "max_attempts": 3, **fields})


_BOTH = (_task("t"), _task("u", max_losses=4))

EVERYTHING = (QueueClaim("q", _BOTH), QueueClaim("r", _BOTH))

claim_queues = st.sampled_from(
    [
        EVERYTHING,
        (QueueClaim("r", _BOTH), QueueClaim("q", _BOTH)),
        (QueueClaim("q", _BOTH),),
        (QueueClaim("q", (_task("t"),)),),
        (QueueClaim("q", (_task("u", lease_len=MINUTE, max_losses=1), _task("t", limit=1))),),
        (QueueClaim("q", _BOTH, 1), QueueClaim("r", (_task("t", max_attempts=0), _task("u", limit=0)), 2)),
    ]
)
claim_sizes = st.sampled_from([(1, 0), (2, 0), (1, 1), (0, 2), (5, 0), (2, 2), (0, 0)])
"""How many to run, how many to hold ready."""

OUTCOMES: tuple[Trait, ...] = (
    {"target": JobState.SUCCEEDED, "result": b"42"},
    {"target": JobState.SUCCEEDED},
    {"target": JobState.SUCCEEDED, "progress": ProgressRecord(0.75, "nearly")},
    {"target": JobState.SUCCEEDED, "result": b"42", "result_ttl": 0, "retention": 0},
    {"target": JobState.SUCCEEDED, "result": b"42", "result_ttl": 2 * HOUR, "retention": 0},
    {"target": JobState.FAILED, "reason": Reason.EXHAUSTED, "error": BOOM},
    {"target": JobState.FAILED, "reason": Reason.GAVE_UP, "note": "pointless", "retention": 0, "result_ttl": 0},
    {"target": JobState.CANCELLED, "reason": Reason.ASKED},
    {"target": JobState.RETRYING, "reason": Reason.ERROR, "error": BOOM},
    {"target": JobState.RETRYING, "reason": Reason.ERROR, "error": BOOM, "progress": ProgressRecord(0.25)},
    {"target": JobState.RETRYING, "reason": Reason.TIMEOUT, "error": BOOM, "delay": 5 * SECOND},
    {"target": JobState.RETRYING, "reason": Reason.ERROR, "error": BOOM, "refund": True},
    {"target": JobState.RETRYING, "reason": Reason.WORKER_LOST, "error": BOOM, "loss": True},
    {"target": JobState.FAILED, "reason": Reason.WORKER_LOST, "error": BOOM, "loss": True},
    {"target": JobState.SCHEDULED, "reason": Reason.SNOOZED, "delay": SECOND, "refund": True},
    {"target": JobState.SCHEDULED, "reason": Reason.SNOOZED, "due_in": HOUR},
    {"target": JobState.SCHEDULED, "reason": Reason.SNOOZED, "due_in": -HOUR, "refund": True},
    {"target": JobState.QUEUED, "reason": Reason.RELEASED, "refund": True},
    {"target": JobState.QUEUED, "reason": Reason.RELEASED},
)
outcomes = st.sampled_from(OUTCOMES)

LOSSES: tuple[Trait, ...] = (
    {"target": JobState.RETRYING, "reason": Reason.WORKER_LOST},
    {"target": JobState.RETRYING, "reason": Reason.WORKER_LOST, "delay": MINUTE},
    {"target": JobState.RETRYING, "reason": Reason.WORKER_LOST, "refund": True},
    {"target": JobState.FAILED, "reason": Reason.WORKER_LOST},
    {"target": JobState.CANCELLED, "reason": Reason.ASKED},
)
losses = st.sampled_from(LOSSES)

progresses = st.sampled_from([None, ProgressRecord(0.5), ProgressRecord(1.0, "nearly")])

# --- Operators and readers ---

AMENDMENTS: tuple[Trait, ...] = (
    {"priority": 9},
    {"priority": -9},
    {"due_in": HOUR},
    {"due_in": -1},
    {"result_ttl": 0},
    {"retention": 0},
    {"result_ttl": DAY, "retention": DAY},
    {"reply": "p3"},
    {"priority": 1, "due_in": MINUTE, "reply": "p1"},
)
amendments = st.sampled_from(AMENDMENTS)

FILTERS: tuple[Trait, ...] = (
    {},
    {"limit": 1},
    {"limit": 2, "scan": 3},
    {"scan": 1},
    {"task": "t"},
    {"lane": "x", "scan": 2},
    {"metadata": {"customer": "7"}},
    {"since_in": -MINUTE, "limit": 1},
)
finds = st.tuples(queues, st.sampled_from(JobState), st.sampled_from(FILTERS))

declarations: st.SearchStrategy[Command[Any]] = st.sampled_from(
    [
        *(verb(name=queue, lanes=lanes) for verb in (PutPool, Resize) for queue in QUEUES for lanes in (1, 2)),
        Pools(),
        *(Pools(name=queue) for queue in QUEUES),
        *(Heartbeat(worker=WorkerRecord(worker=worker, tasks=("t", "u"))) for worker in WORKERS),
        Heartbeat(worker=WorkerRecord(worker="w1", slots=4, interval=HOUR)),
        Heartbeat(worker=WorkerRecord(worker="w2", queues=("q",))),
        *(RemoveQueue(queue=queue) for queue in QUEUES),
        *(StopWorker(worker=worker) for worker in WORKERS),
        *(Disown(workers=workers) for workers in ((), ("w1",), ("w2", "w1"))),
        *(Disown(workers=workers, error=BOOM) for workers in (("w1",), ("w2", "w1"))),
        ForgetWorker(worker="w1"),
        Workers(),
    ]
)
