"""Reading and maintenance: get, find, stats, lanes; prune, audit, now."""

from msgspec import Struct, field

from holdfast.model.command import Answer, Command
from holdfast.model.instants import Instant
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.records import LaneRecord, Totals
from holdfast.model.states import JobState


class GetAnswer(Answer, frozen=True, gc=False, kw_only=True):
    jobs: tuple[JobRecord | None, ...]


class Get(Command[GetAnswer], frozen=True, gc=False, kw_only=True):
    jobs: tuple[JobKey, ...]


class FindAnswer(Answer, frozen=True, gc=False, kw_only=True):
    jobs: tuple[JobRecord, ...]
    cursor: int | None = None
    """Pass it to the next `Find` to continue. None: there are no more jobs."""


class Find(Command[FindAnswer], frozen=True, gc=False, kw_only=True):
    """Jobs of one queue in one state, newest arrival first.

    `task`, `lane`, `since` (created at or after) and `metadata` filter these. One call reads at most `scan` jobs;
    the cursor continues where it stopped, even if nothing has matched so far.
    """

    queue: str
    state: JobState
    task: str | None = None
    lane: str | None = None
    since: Instant | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    limit: int = 100
    cursor: int | None = None
    scan: int = 10_000


class QueueStats(Struct, frozen=True, gc=False, kw_only=True):
    """The numbers of one queue, read from counters and indexes."""

    queue: str
    paused: bool
    counts: dict[JobState, int]
    """Jobs per stored state, live and finished; states without a job are left out."""
    due: int
    """Jobs that are ready now: queued, or due and not yet promoted."""
    oldest_due: Instant | None
    """The earliest due time among the jobs that a claim would take next."""
    next_due: Instant | None
    totals: Totals
    ready_tasks: tuple[str, ...] = ()
    """Tasks that have queued jobs, by name. Jobs that are due and not yet promoted do not count."""
    clearing: bool = False
    """A clear of the queue is not done yet: no job is claimed meanwhile."""

    @property
    def depth(self) -> int:
        return sum(count for state, count in self.counts.items() if state not in _ENDED)


_ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class StatsAnswer(Answer, frozen=True, gc=False, kw_only=True):
    queues: tuple[QueueStats, ...]


class Stats(Command[StatsAnswer], frozen=True, gc=False, kw_only=True):
    """These queues, in this order; None: all that exist, by name."""

    queues: tuple[str, ...] | None = None


class LanesAnswer(Answer, frozen=True, gc=False, kw_only=True):
    lanes: tuple[LaneRecord, ...]


class Lanes(Command[LanesAnswer], frozen=True, gc=False, kw_only=True):
    """The lanes of a queue: those of these names that exist, in this order; None: all, by name."""

    queue: str
    lanes: tuple[str, ...] | None = None


class PruneAnswer(Answer, frozen=True, gc=False, kw_only=True):
    deleted: tuple[JobKey, ...] = ()
    expired: tuple[JobKey, ...] = ()
    """Waiting jobs past their `expires`, now cancelled."""
    workers: tuple[str, ...] = ()
    more: bool = False


class Prune(Command[PruneAnswer], frozen=True, gc=False, kw_only=True):
    """Delete jobs past their lifetimes, cancel jobs past `expires`, forget idle lanes and silent workers."""

    limit: int = 500


class AuditAnswer(Answer, frozen=True, gc=False, kw_only=True):
    problems: tuple[str, ...]


class Audit(Command[AuditAnswer], frozen=True, gc=False, kw_only=True):
    """Check the structures: every job is in the indexes that its state implies, and every counter is right."""


class NowAnswer(Answer, frozen=True, gc=False, kw_only=True):
    """Only the time."""


class Now(Command[NowAnswer], frozen=True, gc=False, kw_only=True):
    """Ask the engine for its time."""
