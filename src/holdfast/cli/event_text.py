"""An event in a few words: what happened, the number that belongs to it, and the rest.

started    attempt 1   waited 2 ms
succeeded  203 ms
retrying   in 1.0 s    ConnectionError: not yet   (attempt 1 of 20)
"""

from typing import NamedTuple

from holdfast.cli.format import cut, span
from holdfast.model.instants import SECOND
from holdfast.model.states import Reason
from holdfast.model.text import ErrorInfo
from holdfast.telemetry import events

LONGEST_TEXT = 120
"""Characters of an error or a note."""


class EventText(NamedTuple):
    """The columns of a line. `figure` is the number that belongs to the event, `style` the colour of `word`."""

    word: str
    figure: str = ""
    rest: str = ""
    style: str = ""


def describe(event: events.Event) -> EventText | None:
    """None for an event that has no line."""
    match event:
        case events.Queued():
            return EventText("queued")
        case events.Started():
            waited = f"waited {_span(event.waited)}" if event.waited else ""
            return EventText("started", f"attempt {event.attempt}", waited, "dim")
        case events.Succeeded():
            attempt = f"attempt {event.attempt}" if event.attempt > 1 else ""
            return EventText("succeeded", _span(event.ran), attempt, "green")
        case events.Retrying():
            return _retrying(event)
        case events.Failed():
            return EventText("failed", _span(event.ran), _cause(event.error, event.reason, event.note), "red")
        case events.Cancelled():
            return EventText("cancelled", "", _cause(None, event.reason, event.note), "dim")
        case events.Reaped():
            owner = cut(event.owner, LONGEST_TEXT)
            return EventText("reaped", f"loss {event.losses}", f"its worker {owner} is gone", "yellow")
        case events.OwnershipLost():
            return EventText("lost", f"attempt {event.attempt}", "the lease is lost, this run is dropped", "yellow")
        case events.WorkerStopping():
            wait = f"up to {event.grace / SECOND:.0f} s for {event.running} running; Ctrl-C stops now"
            return EventText("stopping", "", wait if event.running else "", "yellow")
        case events.WorkerStopped():
            return EventText("stopped", "", f"{event.released} released" if event.released else "", "yellow")
        case _:
            return _describe_rest(event)


def _describe_rest(event: events.Event) -> EventText | None:
    """Events that a worker does not print, and `holdfast events` does."""
    match event:
        case events.Assigned():
            return EventText("assigned", "", f"next on {cut(event.worker, LONGEST_TEXT)}", "dim")
        case events.Progressed():
            return EventText("progress", f"{event.fraction:.0%}", cut(event.note, LONGEST_TEXT), "dim")
        case events.WorkerStarted():
            return EventText("started", f"{event.slots} slots", cut(" ".join(event.queues), LONGEST_TEXT), "green")
        case events.LoopBlocked():
            return EventText("blocked", _span(event.blocked), "code of a handler blocks the event loop", "red")
        case events.QueuePaused() | events.QueueResumed():
            paused = isinstance(event, events.QueuePaused)
            return EventText("paused" if paused else "resumed", "", _lane(event), "yellow" if paused else "green")
        case events.QueueCleared():
            return EventText("cleared", f"{event.count:,} jobs", _lane(event), "yellow")
        case events.QueueEmpty() | events.LaneEmpty():
            return EventText("empty", "", _lane(event), "dim")
        case events.SoftLimit():
            return EventText("depth", f"{event.depth:,}", f"has reached the soft limit, {event.limit:,}", "yellow")
        case events.UnknownTask():
            return EventText("unknown", "", f"no live worker has task {cut(event.task, LONGEST_TEXT)}", "red")
        case events.HistoryLost():
            return EventText("lost", "", "the store has lost acknowledged jobs", "red")
        case events.StoreError():
            return EventText("error", "", _cause(event.error, None, ""), "red")
        case _:
            return None


def _lane(event: events.QueueEvent) -> str:
    return "" if event.lane is None else f"lane {cut(event.lane, LONGEST_TEXT)}"


def _retrying(event: events.Retrying) -> EventText:
    due = f"in {_span(event.delay)}" if event.delay else ""  # at once; or not known, in the past of a job
    match event.reason:
        case Reason.SNOOZED:
            return EventText("snoozed", due, cut(event.note, LONGEST_TEXT), "dim")
        case Reason.RELEASED:
            return EventText("released", "", "costs no attempt", "dim")
    limit = f" of {event.max_attempts}" if event.max_attempts else ""
    cause = _cause(event.error, event.reason, event.note)
    return EventText("retrying", due, f"{cause}   (attempt {event.attempt}{limit})".strip(), "yellow")


def _cause(error: ErrorInfo | None, reason: Reason | None, note: str) -> str:
    if error is not None:
        return cut(f"{error.type.rpartition('.')[2]}: {error.message}", LONGEST_TEXT)
    words = "" if reason is None else reason.value.replace("_", " ")
    return cut(f"{words}: {note}" if words and note else words or note, LONGEST_TEXT)


def _span(duration_us: int) -> str:
    return span(duration_us / SECOND)
