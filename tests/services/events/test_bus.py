"""The bus: events reach who wants them, and a broken listener harms nobody."""

import asyncio
import logging
import sys

import pytest

from holdfast import events
from holdfast.errors import GiveUp
from holdfast.runtime import SystemRuntime
from holdfast.telemetry.bus import Bus
from holdfast.testing import Probe


def failed(job_id: str = "j") -> events.Failed:
    return events.Failed(at=1_800_000_000_000_000, queue="q", job_id=job_id, task="t")


def test_a_listener_gets_its_kind_and_subclasses() -> None:
    bus, seen = Bus(SystemRuntime()), list[events.Event]()
    bus.on(events.JobEvent, seen.append)
    bus.emit(failed())
    bus.emit(events.QueueEmpty(at=0, queue="q"))
    assert [type(event) for event in seen] == [events.Failed]


def test_an_event_without_a_listener_is_not_wanted() -> None:
    bus = Bus(SystemRuntime())
    assert not bus.wants(events.Failed)
    off = bus.on(events.Event, lambda event: None)
    assert bus.wants(events.Failed)
    off()
    assert not bus.wants(events.Failed)


def test_listeners_are_called_in_the_order_of_their_registration() -> None:
    bus, order = Bus(SystemRuntime()), list[str]()
    bus.on(events.Event, lambda event: order.append("first"))
    bus.on(events.Failed, lambda event: order.append("second"))
    bus.emit(failed())
    assert order == ["first", "second"]


def _breaks(event: events.Event) -> None:
    raise RuntimeError("broken")


def _exits(event: events.Event) -> None:
    sys.exit(1)


def _interrupts(event: events.Event) -> None:
    raise GiveUp("no")


async def _breaks_later(event: events.Event) -> None:
    raise RuntimeError("broken")


@pytest.mark.parametrize("broken", [_breaks, _exits, _interrupts, _breaks_later])
def test_a_broken_listener_is_logged_and_the_others_get_the_event(
    broken: object, caplog: pytest.LogCaptureFixture
) -> None:
    bus, seen = Bus(SystemRuntime()), list[events.Event]()
    bus.on(events.Event, broken)  # type: ignore[arg-type]
    bus.on(events.Event, seen.append)
    with caplog.at_level(logging.ERROR, "holdfast.events"):
        bus.emit(failed())
    assert len(seen) == 1
    assert getattr(broken, "__qualname__", "") in caplog.text


async def test_an_async_listener_runs_beside_the_emitter() -> None:
    bus, heard = Bus(SystemRuntime()), Probe[str]("the listener")

    async def listen(event: events.Failed) -> None:
        heard(event.job_id)

    bus.on(events.Failed, listen)
    bus.emit(failed("a"))
    assert heard.seen == []
    assert await heard.calls(1) == ["a"]


def test_an_async_listener_also_gets_events_of_blocking_code() -> None:
    bus, heard = Bus(SystemRuntime()), list[str]()

    async def listen(event: events.Failed) -> None:
        heard.append(event.job_id)

    bus.on(events.Failed, listen)
    bus.emit(failed("a"))
    assert heard == ["a"]


def test_an_event_has_its_time() -> None:
    assert failed().time.isoformat() == "2027-01-15T08:00:00+00:00"


async def test_a_listener_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """When its worker stops, and not again when the App is closed."""
    bus, never, ended = Bus(SystemRuntime()), asyncio.Event(), asyncio.Event()

    async def hang(event: events.Event) -> None:
        await never.wait()
        ended.set()

    bus.on(events.Failed, hang)
    bus.emit(failed())
    monkeypatch.setattr("holdfast.telemetry.bus.LISTENER_TIMEOUT_S", 0.01)
    await bus.wait_for_listeners()
    monkeypatch.setattr("holdfast.telemetry.bus.LISTENER_TIMEOUT_S", 1_000.0)
    async with asyncio.timeout(30):
        await bus.wait_for_listeners()

        assert not ended.is_set()
        never.set()
        await ended.wait()
