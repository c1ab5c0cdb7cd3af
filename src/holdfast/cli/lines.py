"""The worker's lines: one for each change of a job, aligned; and when there are too many, one for each second.

    12:00:01  resize  01JCQ7M3ZK2V4W  started    attempt 1   waited 2 ms
    12:00:01  resize  01JCQ7M3ZK2V4W  succeeded  203 ms
    12:00:02  …       4,812 changes   2,400 started  2,406 succeeded  6 retrying

A terminal must never slow a worker down. The worker's thread only puts the event down; another one words it and writes
it, and if that one is held up, events are counted instead of kept. Failures are told one by one for as long as there is
any room for them.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Protocol

from holdfast.cli.describe import Told, describe
from holdfast.cli.escape import cut
from holdfast.cli.records import event_data, line_of
from holdfast.cli.spans import SHORT, clock, short
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime
from holdfast.telemetry import events
from holdfast.views import moment

MOST = 50
"""Lines in a second."""
LONGEST_TASK = 24
KINDS: tuple[type[events.Event], ...] = (
    events.Started,
    events.Succeeded,
    events.Retrying,
    events.Failed,
    events.Cancelled,
    events.Reaped,
    events.OwnershipLost,
    events.WorkerStopping,
    events.WorkerStopped,
)
"""What is heard. Not `QueueEmpty`: the store would be asked for it after every job."""
ALARMS = (events.Failed, events.Reaped, events.OwnershipLost, events.WorkerEvent)

Count = Counter[type[events.Event]]
Paint = Callable[[str, str], str]
"""Text and the name of a colour."""


class Pad(Protocol):
    """Where events are put down, and lines are taken from."""

    def hear(self, event: events.Event) -> None: ...
    def take(self, now: int) -> list[str]: ...


class Lines:
    """For people. After a second with too many changes there are no lines, until there is a second with fewer."""

    def __init__(self, runtime: Runtime, tasks: Iterable[str], paint: Paint, most: int = MOST) -> None:
        self._lock = runtime.lock()
        self._paint = paint
        self._most = most
        self._task_width = min(LONGEST_TASK, max((len(task) for task in tasks), default=1))
        self._second = 0
        self._heard = 0
        self._alarms = 0
        self._many = False
        self._events: deque[events.Event] = deque()
        self._counted = Count()
        self._over: deque[tuple[int, Count]] = deque(maxlen=most)
        """Seconds that are over, with what was only counted in them."""

    def hear(self, event: events.Event) -> None:
        """On the worker's thread."""
        second = event.at // SECOND
        with self._lock:
            if second > self._second:
                self._turn(second)
            self._heard += 1
            alarm = isinstance(event, ALARMS)
            if alarm and self._alarms < self._most and len(self._events) < 4 * self._most:
                self._alarms += 1
                self._events.append(event)
            elif not alarm and not self._many and self._heard <= self._most and len(self._events) < 2 * self._most:
                self._events.append(event)
            else:
                self._counted[type(event)] += 1

    def _turn(self, second: int) -> None:
        """Another second begins."""
        if self._counted:
            self._over.append((self._second, self._counted))
            self._counted = Count()
        self._many = second == self._second + 1 and self._heard > self._most
        self._second, self._heard, self._alarms = second, 0, 0

    def take(self, now: int) -> list[str]:
        """What there is to write. What was only counted comes when its second is over."""
        with self._lock:
            if now // SECOND > self._second:
                self._turn(now // SECOND)
            heard, self._events = self._events, deque()
            over, self._over = self._over, deque(maxlen=self._most)
        lines = [(event.at // SECOND, line) for event in heard if (line := self._line(event)) is not None]
        lines += [(second, self._summary(second, counted)) for second, counted in over]
        return [line for _, line in sorted(lines, key=itemgetter(0))]

    def _line(self, event: events.Event) -> str | None:
        if isinstance(event, events.JobEvent):
            told = describe(event)
            who = f"{cut(event.task, LONGEST_TASK):<{self._task_width}}  {cut(short(event.job_id), 40):<{SHORT}}"
        else:
            told, who = _of_worker(event), ""
        return None if told is None else self._written(event.at, who, told)

    def _written(self, at: int, who: str, told: Told) -> str:
        who = who or " " * (self._task_width + 2 + SHORT)
        start = f"{self._paint(clock(moment(at)), 'dim')}  {who}  {self._paint(f'{told.word:<9}', told.style)}"
        return f"{start}  {told.first:<10}  {told.rest}".rstrip()

    def _summary(self, second: int, counted: Count) -> str:
        number = f"{sum(counted.values()):,} changes"
        kinds = "  ".join(f"{many:,} {kind.__name__.lower()}" for kind, many in counted.most_common())
        return f"{clock(moment(second * SECOND))}  {'…':<{self._task_width}}  {number:<{SHORT}}  {kinds}"


def _of_worker(event: events.Event) -> Told | None:
    match event:
        case events.WorkerStopping():
            wait = f"up to {event.grace / SECOND:.0f} s for {event.running} running; Ctrl-C stops now"
            return Told("stopping", "", wait if event.running else "", "yellow")
        case events.WorkerStopped():
            return Told("stopped", "", f"{event.released} given back" if event.released else "", "yellow")
        case _:
            return None


class JsonLines:
    """For programs: every event, none left out unless the reader stands still."""

    def __init__(self, most: int = 100_000) -> None:
        self._events: deque[events.Event] = deque(maxlen=most)

    def hear(self, event: events.Event) -> None:
        self._events.append(event)

    def take(self, now: int) -> list[str]:
        heard, self._events = self._events, deque(maxlen=self._events.maxlen)
        return [line_of(event_data(event)) for event in heard]


class Printer:
    """The thread that writes. A reader that goes away, as `| head` does, silences it; the worker goes on."""

    TICK = 0.1

    def __init__(self, runtime: Runtime, pad: Pad, write: Callable[[str], object]) -> None:
        self._runtime = runtime
        self._pad = pad
        self._write = write
        self._ended = runtime.event()
        self._thread = runtime.thread(self._run, name="holdfast-lines")

    def _run(self) -> None:
        try:
            while not self._ended.wait(self.TICK):
                self._print(self._runtime.wall())
            self._print(self._runtime.wall() + SECOND)
        except OSError:
            return

    def _print(self, now: int) -> None:
        lines = self._pad.take(now)
        if lines:
            self._write("\n".join(lines) + "\n")

    def close(self) -> None:
        """Write the rest, and end; without waiting for a terminal that stands still."""
        self._ended.set()
        self._thread.join(2.0)
