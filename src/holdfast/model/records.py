"""What an engine stores besides jobs: queues, lanes, pools, edges, workers."""

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.hashing import key_hash
from holdfast.model.instants import Instant, Micros
from holdfast.model.job import JobKey
from holdfast.model.limits import ALIVE_FOR_INTERVALS, INTERVAL_IF_UNKNOWN
from holdfast.model.states import JobState


class Totals(Struct, frozen=True, gc=False):
    """Jobs that have ended since the queue or lane exists. Kept as counters, never counted from the jobs."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def finished(self) -> int:
        return self.succeeded + self.failed + self.cancelled

    def plus(self, target: JobState, count: int) -> "Totals":
        """With `count` more jobs that ended in this state."""
        match target:
            case JobState.SUCCEEDED:
                return replace(self, succeeded=self.succeeded + count)
            case JobState.FAILED:
                return replace(self, failed=self.failed + count)
            case _:
                return replace(self, cancelled=self.cancelled + count)


class QueueRecord(Struct, frozen=True, gc=False, kw_only=True):
    """A queue: its pause and its totals. It exists from its first job or pause until it is removed."""

    queue: str
    paused: bool = False
    totals: Totals = Totals()
    emptied_at: int = 0
    """The finished count when `emptied` was last answered true, so that it is answered once each time."""


class LaneRecord(Struct, frozen=True, gc=False, kw_only=True):
    """A strict order inside a queue. The head keeps the lane until it has ended."""

    queue: str
    lane: str
    head: str | None = None
    """The id of the lane's head. None: the lane is empty."""
    depth: int = 0
    """Live jobs, the head included."""
    paused: bool = False
    totals: Totals = Totals()
    fence: int = 0
    """The last fence given to a lease in this lane."""
    emptied: Instant = 0
    """When it last ran empty."""


class PoolRecord(Struct, frozen=True, gc=False, kw_only=True):
    """A queue with lanes `0 … lanes-1`. The stored number wins over the code's."""

    name: str
    lanes: int
    epoch: int = 1
    """Starts at 1; each resize adds 1."""
    turn: int = 0
    """Jobs without a key take the lanes round-robin: the next one looks first at the lane `turn` modulo `lanes`."""
    old_live: int = 0
    """Live jobs of the earlier epoch: jobs with a key wait until there are none."""

    def lane_of(self, key: str) -> int:
        """The lane of a key, as long as the pool has this size."""
        return key_hash(key) % self.lanes


class Edge(Struct, frozen=True, gc=False):
    """`child` waits for `parent`; with `any_end` also if the parent does not succeed."""

    parent: JobKey
    child: JobKey
    arrival: int = 0
    """The child's arrival: an edge of an earlier generation does not apply to a later one."""
    any_end: bool = False


class WorkerRecord(Struct, frozen=True, gc=False, kw_only=True):
    """A worker process, or a manager of some, as operators see it. `seen` is written by the engine."""

    worker: str
    tasks: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    host: str = ""
    pid: int = 0
    process: str = ""
    """The name of its process on its host, by which other processes there can check whether it is alive."""
    slots: int = 0
    busy: int = 0
    started: Instant = 0
    interval: Micros = 0
    """Time between two heartbeats."""
    seen: Instant = 0
    stop_asked: bool = False
    children: tuple[str, ...] = ()
    """Of a manager: the names of the workers that it has started."""
    min_children: int = 0
    max_children: int = 0
    """Of a manager: how many it keeps. 0: this is not a manager."""

    @property
    def is_manager(self) -> bool:
        return self.max_children > 0

    def is_alive(self, now: Instant) -> bool:
        """True if the last heartbeat is at most three intervals old."""
        return now - self.seen <= ALIVE_FOR_INTERVALS * (self.interval or INTERVAL_IF_UNKNOWN)
