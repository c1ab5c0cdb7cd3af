"""`holdfast events`: what happens in all processes that share a store, line by line.

Events are not stored: the processes send them while another one listens. So `--follow` shows those to come. The past of
one job is in its record: `--job ID` prints it, and with `--follow` goes on until the job has ended.

No worker waits for this reader. A reader that is too slow loses events; it counts them and says so on standard error.
Events that are lost on the way between two processes are not counted.
"""

import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable

import click

from holdfast.cli.exits import print_message
from holdfast.cli.format import count
from holdfast.cli.job_selection import job_by_id
from holdfast.cli.json_output import event_data, to_line
from holdfast.cli.options import Store, examples, on_store, queue_option
from holdfast.cli.worker import line_paint
from holdfast.cli.worker_lines import MAX_LINES, TextLines
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime
from holdfast.telemetry import events as kinds
from holdfast.telemetry.wire import KINDS
from holdfast.views import Job

READ_EVERY_S = 0.1
CHECK_END_EVERY = 10
"""Reads of the buffer between two looks at the record of a job that is followed: a second."""
ENDS = (kinds.Succeeded, kinds.Failed, kinds.Cancelled)
MAX_WAITING = 20_000
"""Events kept while this reader writes; older ones are lost, to bound the memory."""
MAX_LINES_IN_PIPE = 10_000
"""Per second. A terminal gets as many lines as can be read, a pipe gets all of them that fit into memory."""
LONGEST_USUAL_TASK = "a" * 12
"""Sets the width of the column of tasks: those to come are not known."""

ALL_KINDS = {kind.__name__: kind for kind in sorted(KINDS, key=lambda kind: kind.__name__)}
COSTLY = (kinds.QueueEmpty,)
"""A listener for it costs each worker a query after every job. Only sent if it is named by `--kind`."""


class ReceivedEvents:
    """Takes events on the threads of the feed, and gives them to the thread that prints."""

    def __init__(self, runtime: Runtime, wanted: Callable[[kinds.Event], bool], size: int = MAX_WAITING) -> None:
        self._lock = runtime.lock()
        self._wanted = wanted
        self._events: deque[kinds.Event] = deque()
        self._size = size
        self._lost = 0

    def add(self, event: kinds.Event) -> None:
        if not self._wanted(event):
            return
        with self._lock:
            if len(self._events) >= self._size:
                self._events.popleft()
                self._lost += 1
            self._events.append(event)

    def take(self) -> tuple[list[kinds.Event], int]:
        """What has come since the last call, and how many events were lost before it."""
        with self._lock:
            taken, self._events = list(self._events), deque()
            lost, self._lost = self._lost, 0
        return taken, lost


@click.command(
    epilog=examples(
        "holdfast events --follow",
        "holdfast events --follow --kind Failed --kind Retrying --json",
        "holdfast events --job 01JCQ7N1",
    )
)
@click.option("--follow", is_flag=True, help="Show the events to come, of all processes, until Ctrl-C.")
@click.option("--job", "job_id", metavar="JOB", help="Only this job. Without --follow: its events so far.")
@queue_option
@click.option(
    "--kind",
    "names",
    type=click.Choice(list(ALL_KINDS), case_sensitive=False),
    metavar="KIND",
    multiple=True,
    help=f"Only this kind; several: any of them. {', '.join(ALL_KINDS)}.",
)
@on_store()
def events(store: Store, follow: bool, job_id: str | None, queue: str | None, names: tuple[str, ...]) -> None:
    """Show what happens to jobs, queues and workers.

    Events are not stored, so only those to come can be shown (--follow), or the past of one job (--job). With both, the
    command ends when the job has ended. Some events may be lost on their way here; no worker waits for a reader. Events
    of different processes may arrive in any order: `started` can stand before `queued`.
    """
    if not follow and job_id is None:
        raise click.UsageError("Events are not stored. Add --follow for those to come, or --job ID for one job's past.")
    job = None if job_id is None else job_by_id(store, job_id, queue)
    write = _json_writer() if store.as_json else _text_writer(store, [] if job is None else [job.task])
    if job is not None and not follow:
        write(_wanted(_past(store, job), names), None)
        return
    buffer = ReceivedEvents(store.app.runtime, lambda event: _is_of(event, job, queue))
    for kind in _to_subscribe(names):
        store.app.on(kind, everywhere=True)(buffer.add)
    printed_until = 0
    if job is not None:  # read after the listeners are there, so that no event falls between the past and what follows
        past = _past(store, job)
        printed_until = past[-1].at
        write(_wanted(past, names), None)
    _follow(store, buffer, write, job, printed_until)


Writer = Callable[[Iterable[kinds.Event], "int | None"], None]
"""Writes events. The number is the time now in microseconds, None: nothing follows."""


def _to_subscribe(names: Iterable[str]) -> list[type[kinds.Event]]:
    return [ALL_KINDS[name] for name in names] or [kind for kind in ALL_KINDS.values() if kind not in COSTLY]


def _is_of(event: kinds.Event, job: Job | None, queue: str | None) -> bool:
    if job is not None:
        return isinstance(event, kinds.JobEvent) and (event.queue, event.job_id) == (job.queue, job.id)
    return queue is None or getattr(event, "queue", None) == queue


def _past(store: Store, job: Job) -> tuple[kinds.JobEvent, ...]:
    return store.control.report(job.id, queue=job.queue).events


def _wanted(past: Iterable[kinds.JobEvent], names: tuple[str, ...]) -> list[kinds.JobEvent]:
    return [event for event in past if not names or type(event).__name__ in names]


def _follow(store: Store, buffer: ReceivedEvents, write: Writer, job: Job | None, printed_until: int) -> None:
    """Write what comes. Of one job: until it has ended."""
    runtime = store.app.runtime
    pause = runtime.event()  # never set: only for `wait`, which Ctrl-C interrupts
    for round_ in itertools.count():
        # The event of its end may be lost, or not be wanted.
        ended = job is not None and round_ % CHECK_END_EVERY == 0 and _has_ended(store, job)
        taken, lost = buffer.take()
        if lost:
            print_message(f"{count(lost, 'event')} lost: they came faster than this reader could write them.")
        ended = ended or (job is not None and any(isinstance(event, ENDS) for event in taken))
        write([event for event in taken if event.at > printed_until], None if ended else runtime.wall())
        if ended:
            return
        pause.wait(READ_EVERY_S)


def _has_ended(store: Store, job: Job) -> bool:
    return store.control.get(job.id, queue=job.queue).finished


def _json_writer() -> Writer:
    def write(taken: Iterable[kinds.Event], now_us: int | None) -> None:
        _write([to_line(event_data(event)) for event in taken])

    return write


def _text_writer(store: Store, tasks: Iterable[str]) -> Writer:
    """Lines as a worker prints them. When there are too many for a terminal, one line per second sums them up."""
    widths = (LONGEST_USUAL_TASK, *store.app.registry, *tasks)
    limit = MAX_LINES if sys.stdout.isatty() else MAX_LINES_IN_PIPE
    lines = TextLines(store.app.runtime, widths, line_paint(), limit, with_names=True)

    def write(taken: Iterable[kinds.Event], now_us: int | None) -> None:
        last = 0
        for event in taken:
            lines.add(event)
            last = max(last, event.at)
        _write(lines.take_lines(last + SECOND if now_us is None else now_us))

    return write


def _write(lines: list[str]) -> None:
    if lines:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
