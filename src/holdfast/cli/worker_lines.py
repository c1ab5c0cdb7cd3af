"""The worker's lines: one for each change of a job, aligned. When there are too many changes, one line per second.

    12:00:01  resize  01JCQ7M3ZK2V4W  started    attempt 1   waited 2 ms
    12:00:01  resize  01JCQ7M3ZK2V4W  succeeded  203 ms
    12:00:02  …       4,812 changes   2,400 started  2,406 succeeded  6 retrying

A slow terminal must never slow the worker down. The worker's thread only adds the event to a bounded buffer; the
printer's thread formats and writes it. When the buffer is full, events are counted instead of kept. Failures keep
their own lines longer than other events do.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Protocol

from holdfast.cli.event_text import EventText, describe
from holdfast.cli.format import SHORT_LENGTH, clock, cut, safe_lines, short
from holdfast.cli.json_output import event_data, to_line
from holdfast.model.instants import SECOND
from holdfast.model.states import Reason
from holdfast.runtime import Runtime
from holdfast.telemetry import events
from holdfast.views import moment

MAX_LINES = 50
"""Per second: more than this cannot be read, and slows a terminal down."""
LONGEST_TASK = 24
LONGEST_NAME = 60
"""Of a worker, a queue or a store."""
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
"""Events that have a line. Not `QueueEmpty`: a listener for it costs a query of the store after every job."""
ALARMS = (events.Failed, events.Reaped, events.OwnershipLost, events.WorkerEvent)
"""Events that must not be lost among many others."""

Count = Counter[type[events.Event]]
Paint = Callable[[str, str], str]
"""Text and the name of a colour."""


class EventBuffer(Protocol):
    """Takes events from the worker's thread, gives lines to the printer's thread."""

    def add(self, event: events.Event) -> None: ...
    def take_lines(self, now_us: int) -> list[str]: ...


class TextLines:
    """Lines for people. A second with too many changes is followed by summaries only, until a second with fewer."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Iterable[str],
        paint: Paint,
        max_lines: int = MAX_LINES,
        *,
        with_names: bool = False,
    ) -> None:
        """`with_names`: an event of a worker, a queue or a store has its name, because there may be several."""
        self._lock = runtime.lock()
        self._with_names = with_names
        self._paint = paint
        self._max_lines = max_lines
        self._task_width = min(LONGEST_TASK, max((len(task) for task in tasks), default=1))
        self._second = 0
        self._received = 0
        """Events of this second."""
        self._alarms = 0
        """Alarms of this second."""
        self._overload = False
        """The second before had too many changes."""
        self._events: deque[events.Event] = deque()
        self._counts = Count()
        """Events of this second that were only counted."""
        self._past_counts: deque[tuple[int, Count]] = deque(maxlen=max_lines)
        """The same for seconds that have passed."""

    def add(self, event: events.Event) -> None:
        second = event.at // SECOND
        with self._lock:
            if second > self._second:
                self._begin_second(second)
            self._received += 1
            if self._has_room(event):
                self._events.append(event)
            else:
                self._counts[type(event)] += 1

    def _has_room(self, event: events.Event) -> bool:
        """True if the event gets its own line."""
        if isinstance(event, ALARMS):
            if self._alarms >= self._max_lines or len(self._events) >= 4 * self._max_lines:
                return False
            self._alarms += 1
            return True
        return not self._overload and self._received <= self._max_lines and len(self._events) < 2 * self._max_lines

    def _begin_second(self, second: int) -> None:
        if self._counts:
            self._past_counts.append((self._second, self._counts))
            self._counts = Count()
        self._overload = second == self._second + 1 and self._received > self._max_lines
        self._second, self._received, self._alarms = second, 0, 0

    def take_lines(self, now_us: int) -> list[str]:
        """The lines to write now. Counted events follow when their second has passed."""
        with self._lock:
            if now_us // SECOND > self._second:
                self._begin_second(now_us // SECOND)
            taken, self._events = self._events, deque()
            counts, self._past_counts = self._past_counts, deque(maxlen=self._max_lines)
        lines = [(event.at // SECOND, line) for event in taken if (line := self._line(event)) is not None]
        lines += [(second, self._summary(second, count)) for second, count in counts]
        return [line for _, line in sorted(lines, key=itemgetter(0))]

    def _line(self, event: events.Event) -> str | None:
        text = describe(event)
        if text is None:
            return None
        job = " " * (self._task_width + 2 + SHORT_LENGTH)
        if isinstance(event, events.JobEvent):
            task = cut(event.task, LONGEST_TASK)
            job = f"{task:<{self._task_width}}  {cut(short(event.job_id), 40):<{SHORT_LENGTH}}"
        elif self._with_names:
            job = f"{cut(_name(event), LONGEST_NAME):<{len(job)}}"
        line = self._columns(event.at, job, text)
        if isinstance(event, events.Failed) and event.error is not None and event.reason is not Reason.GAVE_UP:
            rows = safe_lines(event.error.traceback.rstrip()) if event.error.traceback else []
            line = "\n".join([line, *(f"    {row}" for row in rows)])
        return line

    def _columns(self, at_us: int, job: str, text: EventText) -> str:
        start = f"{self._paint(clock(moment(at_us)), 'dim')}  {job}  {self._paint(f'{text.word:<9}', text.style)}"
        return f"{start}  {text.figure:<10}  {text.rest}".rstrip()

    def _summary(self, second: int, count: Count) -> str:
        total = f"{sum(count.values()):,} changes"
        kinds = "  ".join(f"{number:,} {kind.__name__.lower()}" for kind, number in count.most_common())
        return f"{clock(moment(second * SECOND))}  {'…':<{self._task_width}}  {total:<{SHORT_LENGTH}}  {kinds}"


def _name(event: events.Event) -> str:
    match event:
        case events.WorkerEvent():
            return f"worker {event.worker}"
        case events.QueueEvent():
            return f"queue {event.queue}"
        case events.StoreEvent():
            return f"store {event.store}"
        case _:
            return ""


class JsonLines:
    """Lines for programs: every event, unless the reader is so slow that the buffer is full."""

    def __init__(self, max_events: int = 100_000) -> None:
        self._events: deque[events.Event] = deque(maxlen=max_events)

    def add(self, event: events.Event) -> None:
        self._events.append(event)

    def take_lines(self, now_us: int) -> list[str]:
        taken, self._events = self._events, deque(maxlen=self._events.maxlen)
        return [to_line(event_data(event)) for event in taken]


class Printer:
    """The thread that writes. It ends when its reader goes away, as with `| head`; the worker goes on."""

    INTERVAL_S = 0.1
    CLOSE_TIMEOUT_S = 2.0

    def __init__(self, runtime: Runtime, buffer: EventBuffer, write: Callable[[str], object]) -> None:
        self._runtime = runtime
        self._buffer = buffer
        self._write = write
        self._ended = runtime.event()
        self._thread = runtime.thread(self._run, name="holdfast-lines")

    def _run(self) -> None:
        try:
            while not self._ended.wait(self.INTERVAL_S):
                self._print(self._runtime.wall())
            self._print(self._runtime.wall() + SECOND)
        except OSError:
            return

    def _print(self, now_us: int) -> None:
        lines = self._buffer.take_lines(now_us)
        if lines:
            self._write("\n".join(lines) + "\n")

    def close(self) -> None:
        """Write the remaining lines and end. A terminal that accepts no output is given up after two seconds."""
        self._ended.set()
        self._thread.join(self.CLOSE_TIMEOUT_S)
