"""`holdfast top`: a live view of the store on the whole screen.

Each refresh reads the counters of all queues and the records of the workers: three or four calls, however many jobs
there are, and one more for each queue, of at most ten, in which jobs wait for a retry. Pools and their lanes are read
every five seconds only, and only the deepest of them, because a pool may have thousands of lanes. Latencies and errors
come from events, which the workers send, several to a message, while this command listens; `--no-events` saves that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast.cli.event_text import describe
from holdfast.cli.format import clock, cut, short, span
from holdfast.cli.json_output import event_data, print_json, to_data
from holdfast.cli.options import Store, examples, on_store
from holdfast.cli.rates import Latencies, Percentiles, Rate, Rates
from holdfast.cli.status import NO_QUEUE, manager_text, trouble_lines, word_text, worker_state_text
from holdfast.cli.tables import console, number, table, text
from holdfast.cli.target import store_facts
from holdfast.cli.watch import again, interval_option, or_message
from holdfast.model.instants import SECOND
from holdfast.model.states import JobState
from holdfast.operate.overview import StoreOverview
from holdfast.telemetry.events import JobEvent
from holdfast.views import LaneStatus, QueueStatus

READ_LANES_EVERY_US = 5 * SECOND
MAX_POOLS = 3
"""Pools whose lanes are read: the deepest."""
MAX_LANES = 5
MAX_TROUBLES = 5
MIN_ROWS = 3
FIXED_ROWS = 12
"""Rows of the screen that are neither a queue nor a worker: store, headings, lanes, latencies, errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopQueue:
    """A queue with its rates, in jobs per second."""

    status: QueueStatus
    rate: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One refresh."""

    at: datetime
    queues: tuple[TopQueue, ...]
    """The busiest first."""
    total: Rate
    lanes: tuple[LaneStatus, ...]
    """The deepest lanes of pools, the deepest first."""
    store: StoreOverview
    waited: Percentiles
    ran: Percentiles


@dataclass(slots=True)
class TopReader:
    """Reads the store for each refresh, and keeps what the next one needs."""

    store: Store
    latencies: Latencies
    rates: Rates = field(default_factory=Rates)
    _lanes: tuple[LaneStatus, ...] = ()
    _lanes_read_us: int | None = None

    def read(self) -> Overview:
        control, runtime = self.store.control, self.store.app.runtime
        overview, now_us = control.overview(), runtime.monotonic()
        queues = overview.queues
        self.rates.add(now_us, queues)
        if self._lanes_read_us is None or now_us - self._lanes_read_us >= READ_LANES_EVERY_US:
            self._lanes, self._lanes_read_us = self._read_lanes(queues), now_us
        listed = [TopQueue(status=queue, rate=self.rates.of(queue.queue)) for queue in queues]
        wall_us = runtime.wall()
        return Overview(
            at=self.store.now,
            queues=tuple(sorted(listed, key=_activity, reverse=True)),
            total=self.rates.total(),
            lanes=self._lanes,
            store=overview,
            waited=self.latencies.waited(wall_us),
            ran=self.latencies.ran(wall_us),
        )

    def _read_lanes(self, queues: Sequence[QueueStatus]) -> tuple[LaneStatus, ...]:
        pools = {pool.name for pool in self.store.control.pools()}
        deep = sorted((q for q in queues if q.queue in pools and q.depth), key=lambda q: q.depth, reverse=True)
        lanes = [lane for queue in deep[:MAX_POOLS] for lane in self.store.control.lanes(queue.queue) if lane.depth]
        return tuple(sorted(lanes, key=lambda lane: lane.depth, reverse=True)[:MAX_LANES])


def _activity(queue: TopQueue) -> tuple[float, int]:
    return (queue.rate.arrived or 0.0) + (queue.rate.ended or 0.0), queue.status.depth


@click.command(epilog=examples("holdfast top", "holdfast top --interval 5s --no-events", "holdfast top --once --json"))
@interval_option("Time between refreshes. Default 1s.")
@click.option("--once", is_flag=True, help="Show it once, with the rates over one interval.")
@click.option(
    "--events/--no-events",
    "with_events",
    default=True,
    help="Listen to events for latencies and errors. It costs each worker some messages. Default: yes.",
)
@on_store()
def top(store: Store, interval: float, once: bool, with_events: bool) -> None:
    """Watch queues, lanes, workers and rates.

    Latencies and errors, too, refreshed until Ctrl-C. Rates are jobs per second over the last ten seconds. Without a
    terminal, and without --json, it is shown once.
    """
    latencies = Latencies(store.app.runtime)
    if with_events:
        for kind in latencies.KINDS:
            store.app.on(kind, everywhere=True)(latencies.add)
    reader = TopReader(store, latencies)
    pause = store.app.runtime.event()  # never set: only for `wait`, which Ctrl-C interrupts
    terminal = console()
    if once or not (store.as_json or terminal.is_terminal):
        reader.read()  # the rates need two reads
        pause.wait(interval)
        _print(store, reader)
        return
    if store.as_json:
        while True:
            _print(store, reader)
            pause.wait(interval)

    def view() -> RenderableType:
        return _view(store, reader.read(), latencies, terminal.height)

    last = or_message(view)
    with Live(last, console=terminal, screen=True, auto_refresh=False) as live:
        live.refresh()
        while not pause.wait(interval):
            last = again(view, last)
            live.update(last, refresh=True)


def _print(store: Store, reader: TopReader) -> None:
    overview = reader.read()
    if not store.as_json:
        console().print(_view(store, overview, reader.latencies, height=10_000))
        return
    print_json(
        {
            "at": overview.at,
            "total": overview.total._asdict(),
            "queues": [
                {**to_data(one.status), **one.rate._asdict(), "status": overview.store.words[one.status.queue]}
                for one in overview.queues
            ],
            "lanes": overview.lanes,
            "workers": overview.store.workers,
            "troubles": overview.store.troubles,
            "waited": overview.waited._asdict(),
            "ran": overview.ran._asdict(),
            "errors": [event_data(event) for event in reader.latencies.errors()],
        }
    )


# --- The view ---


def _view(store: Store, overview: Overview, latencies: Latencies, height: int) -> RenderableType:
    return Group(*_parts(store, overview, latencies, height))


def _parts(store: Store, overview: Overview, latencies: Latencies, height: int) -> Iterator[RenderableType]:
    errors, workers = latencies.errors(), overview.store.workers
    troubles = trouble_lines(store, overview.store)[:MAX_TROUBLES]
    rows = max(2 * MIN_ROWS, height - FIXED_ROWS - len(overview.lanes) - len(errors) - len(troubles))
    workers_shown = min(len(workers), max(MIN_ROWS, rows // 3))
    queues_shown = min(len(overview.queues), max(MIN_ROWS, rows - workers_shown))
    facts = store_facts(store.app)
    yield Text(f"{clock(overview.at)}  {facts.engine}  ").append(text(facts.place, "bold"))
    yield Text(f"jobs/s   in {_rate(overview.total.arrived)}   out {_rate(overview.total.ended)}").append(
        f"      wait {_percentiles(overview.waited)}   run {_percentiles(overview.ran)}"
    )
    yield Text()
    if overview.queues:
        yield _queue_table(overview, queues_shown)
        yield _more(len(overview.queues) - queues_shown, "queue")
    else:
        yield Text(NO_QUEUE)
    if overview.lanes:
        yield Text()
        yield _lane_table(overview.lanes)
    yield Text()
    if workers:
        yield _worker_table(overview, workers_shown)
        yield _more(len(workers) - workers_shown, "worker")
    yield from troubles
    for event in errors:
        yield _error_line(event)


def _queue_table(overview: Overview, limit: int) -> RenderableType:
    columns = [
        "queue",
        "ready#",
        "running#",
        "retrying#",
        "blocked#",
        "failed#",
        "oldest#",
        "in/s#",
        "out/s#",
        "status",
    ]
    return table(columns, [_queue_row(queue, overview) for queue in overview.queues[:limit]])


def _queue_row(queue: TopQueue, overview: Overview) -> list[Text]:
    status = queue.status
    counts, oldest = status.counts, status.oldest_due_at
    late = oldest is not None and oldest <= overview.at
    return [
        text(status.queue),
        number(status.due),
        number(counts.get(JobState.RUNNING, 0) + counts.get(JobState.ASSIGNED, 0), "cyan"),
        number(counts.get(JobState.RETRYING, 0), "yellow"),
        number(counts.get(JobState.BLOCKED, 0)),
        number(counts.get(JobState.FAILED, 0), "red"),
        Text(span((overview.at - oldest).total_seconds()) if late and oldest is not None else ""),
        Text(_rate(queue.rate.arrived)),
        Text(_rate(queue.rate.ended)),
        word_text(overview.store.words[status.queue]),
    ]


def _lane_table(lanes: Sequence[LaneStatus]) -> RenderableType:
    rows = [
        [
            text(lane.queue),
            text(lane.lane),
            number(lane.depth),
            text(short(lane.head) if lane.head else ""),
            Text("paused", style="yellow") if lane.paused else Text("open"),
        ]
        for lane in lanes
    ]
    return table(["pool", "lane", "depth#", "head", "status"], rows)


def _worker_table(overview: Overview, limit: int) -> RenderableType:
    """Managers first, then the busiest workers."""
    busiest = sorted(overview.store.workers, key=lambda one: (one.alive, one.is_manager, one.busy), reverse=True)
    rows = [
        [
            text(worker.name),
            worker_state_text(worker),
            Text("" if worker.is_manager else f"{worker.busy}/{worker.slots}", style="cyan" if worker.busy else "dim"),
            Text(span((overview.at - worker.seen_at).total_seconds())),
            text(manager_text(worker) if worker.is_manager else " ".join(worker.queues)),
        ]
        for worker in busiest[:limit]
    ]
    return table(["worker", "status", "busy#", "seen#", "queues"], rows)


def _more(hidden: int, noun: str) -> RenderableType:
    return Text(f"and {hidden:,} more {noun}{'' if hidden == 1 else 's'}", style="dim") if hidden > 0 else Text()


def _error_line(event: JobEvent) -> RenderableType:
    words = describe(event)
    assert words is not None  # an attempt that failed always has a line
    line = Text(f"{clock(event.time)}  ").append(words.word, words.style)
    return line.append(f"  {cut(event.task, 24)}  {cut(short(event.job_id), 40)}  {words.rest}")


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return "…"
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


def _percentiles(values: Percentiles) -> str:
    if values.p50 is None or values.p95 is None:
        return "…"
    return f"p50 {span(values.p50)} p95 {span(values.p95)}"
