"""An event in a few words: what happened, the number that goes with it, and the rest.

started    attempt 1   waited 2 ms
succeeded  203 ms
retrying   in 1.0 s    ConnectionError: not yet   (attempt 1 of 20)
"""

from typing import NamedTuple

from holdfast.cli.escape import cut
from holdfast.cli.spans import span
from holdfast.model.instants import SECOND
from holdfast.model.states import Reason
from holdfast.model.text import ErrorInfo
from holdfast.telemetry import events

LONGEST = 120
"""Letters of an error or a note."""


class Told(NamedTuple):
    """`alarm`: this one must not be lost among many."""

    word: str
    first: str = ""
    rest: str = ""
    style: str = ""
    alarm: bool = False


def describe(event: events.JobEvent) -> Told | None:
    """None: an event nobody needs a line for."""
    match event:
        case events.Queued():
            return Told("queued")
        case events.Started():
            return Told(
                "started", f"attempt {event.attempt}", f"waited {_span(event.waited)}" if event.waited else "", "dim"
            )
        case events.Succeeded():
            again = f"attempt {event.attempt}" if event.attempt > 1 else ""
            return Told("succeeded", _span(event.ran), again, "green")
        case events.Retrying():
            return _retrying(event)
        case events.Failed():
            return Told("failed", _span(event.ran), _why(event.error, event.reason, event.note), "red", True)
        case events.Cancelled():
            return Told("cancelled", "", _why(None, event.reason, event.note), "dim")
        case events.Reaped():
            return Told(
                "reaped", f"loss {event.losses}", f"its worker {cut(event.owner, LONGEST)} is gone", "yellow", True
            )
        case events.OwnershipLost():
            return Told("lost", f"attempt {event.attempt}", "the lease is lost, this run is dropped", "yellow", True)
        case _:
            return None


def _retrying(event: events.Retrying) -> Told:
    soon = f"in {_span(event.delay)}"
    match event.reason:
        case Reason.SNOOZED:
            return Told("snoozed", soon, cut(event.note, LONGEST), "dim")
        case Reason.RELEASED:
            return Told("released", "", "given back, at no cost", "dim")
    of = f" of {event.max_attempts}" if event.max_attempts else ""
    why = _why(event.error, event.reason, event.note)
    return Told("retrying", soon, f"{why}   (attempt {event.attempt}{of})".strip(), "yellow")


def _why(error: ErrorInfo | None, reason: Reason | None, note: str) -> str:
    if error is not None:
        return cut(f"{error.type.rpartition('.')[2]}: {error.message}", LONGEST)
    words = "" if reason is None else reason.value.replace("_", " ")
    return cut(f"{words}: {note}" if words and note else words or note, LONGEST)


def _span(microseconds: int) -> str:
    return span(microseconds / SECOND)
