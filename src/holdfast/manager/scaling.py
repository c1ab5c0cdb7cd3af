"""How many children a manager should have. Pure: every function here decides from its arguments alone.

The size that the work needs now is the target: jobs that are due or running, divided by the slots of a child. The
manager follows a higher target at once, and a lower one only after every target of the last `idle_before_down_us` was
lower. So the size falls no sooner than that time after it has risen, and under a constant load it does not change.

Two things stop a growth that would be useless. Jobs that wait for less than `WAIT_BEFORE_UP_US` are about to be
claimed: they need no more children. And a child that starts counts as one that works, so slow starts do not lead to
more.

Several managers on one store divide the work in proportion to their largest capacities. These do not change with the
load, so no manager follows the changes of another. Workers without a manager are there in any case: what they can run
is subtracted first.
"""

from dataclasses import dataclass

from holdfast.model.instants import SECOND, Micros

WAIT_BEFORE_UP_US: Micros = SECOND // 2
"""Jobs that have waited for less than this are no reason for more children."""
WAIT_TOO_LONG_US: Micros = 10 * SECOND
"""If jobs wait this long although slots seem to be free, there is one more child each time. The slots may be of no use,
such as with a limit per worker of a task or of a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLimits:
    """What does not change while a manager runs."""

    min: int
    max: int
    slots: int
    """Of one child."""
    idle_before_down_us: Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoad:
    """The work in the manager's queues, and who else works there."""

    due: int
    running: int
    """Jobs that a worker has claimed, of this manager or not."""
    oldest_wait_us: Micros
    unmanaged_slots: int = 0
    """Slots of live workers that have no manager."""
    other_capacity: int = 0
    """Slots of all other managers at their largest size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCounts:
    starting: int
    running: int
    stopping: int
    """Those that count against `max`. A child that was replaced before it has ended does not."""

    @property
    def active(self) -> int:
        """Children that take jobs, now or soon."""
        return self.starting + self.running


@dataclass(frozen=True, slots=True)
class Size:
    """How many children there should be, since when, and the targets that keep it from falling."""

    children: int
    changed_at: Micros
    targets: tuple[tuple[Micros, int], ...]
    """When a target was computed, and the target: the later, the lower. The first one is the highest."""

    @classmethod
    def first(cls, limits: SizeLimits, now: Micros) -> "Size":
        return cls(limits.min, now, ((now, limits.min),))

    def after_gap(self, now: Micros) -> "Size":
        """The load was not known for some time: the size stays, and the time before it may fall begins again."""
        return Size(self.children, self.changed_at, ((now, self.children),))


def next_size(limits: SizeLimits, size: Size, load: QueueLoad, counts: ChildCounts, now: Micros) -> Size:
    """The size after a look at the load."""
    target = _target(limits, size, load, counts, now)
    kept = [(at, value) for at, value in size.targets if value > target and now - at < limits.idle_before_down_us]
    targets = (*kept, (now, target))
    children = targets[0][1]
    return Size(children, size.changed_at if children == size.children else now, targets)


def _target(limits: SizeLimits, size: Size, load: QueueLoad, counts: ChildCounts, now: Micros) -> int:
    needed = _children_for(limits, load, load.due + load.running)
    if load.due == 0 or load.oldest_wait_us < WAIT_BEFORE_UP_US:
        busy = _children_for(limits, load, load.running)
        needed = max(busy, min(needed, size.children))
    elif (
        load.oldest_wait_us >= WAIT_TOO_LONG_US
        and not counts.starting
        and counts.active >= size.children
        and now - size.changed_at >= WAIT_TOO_LONG_US
    ):
        needed = max(needed, size.children + 1)
    elif load.oldest_wait_us >= WAIT_TOO_LONG_US:
        needed = max(needed, size.children)
    return max(limits.min, min(needed, limits.max))


def _children_for(limits: SizeLimits, load: QueueLoad, jobs: int) -> int:
    """How many children this manager needs for its part of these jobs, rounded up."""
    own_capacity = limits.max * limits.slots
    jobs = max(0, jobs - load.unmanaged_slots)
    return -(-jobs * own_capacity // ((own_capacity + load.other_capacity) * limits.slots))


def children_to_start(limits: SizeLimits, size: int, counts: ChildCounts) -> int:
    """How many children to start now. With those that stop there are never more than `max`."""
    free = limits.max - counts.active - counts.stopping
    return max(0, min(size - counts.active, free))


def children_to_stop(size: int, counts: ChildCounts) -> int:
    """How many children to stop now."""
    return max(0, counts.active - size)
