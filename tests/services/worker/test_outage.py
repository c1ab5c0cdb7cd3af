"""What a worker logs and emits while its store is away: one line when it goes, one a minute, one when it is back."""

import logging

import pytest
from eventually import eventually
from failing_engine import FailingEngine
from minimal_app import MinimalApp, MinimalTask

from holdfast.errors import CorruptRecord, EngineUnavailable, HistoryLost, OutcomeUnknown
from holdfast.runtime import SystemRuntime
from holdfast.service import LOG_OUTAGE_EVERY_S, StoreOutage
from holdfast.telemetry.bus import Bus
from holdfast.telemetry.events import StoreError
from holdfast.testing import FrozenRuntime
from holdfast.worker.outage import EmittedOutage


async def works() -> None: ...


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_outage_of_the_store_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    runtime = SystemRuntime()
    engine = FailingEngine(runtime)
    app = MinimalApp(MinimalTask(works), runtime=runtime, engine=engine)
    emitted: list[StoreError] = []
    app.bus.on(StoreError, emitted.append)
    failures = 0

    def fail(command: object) -> Exception:
        nonlocal failures
        failures += 1
        return EngineUnavailable("The server does not answer.")

    async with app.worker() as worker:
        services = worker._services
        assert services is not None
        engine.before = fail
        services.exchanger.wake()
        services.keeper.renew_now()
        await eventually(lambda: failures >= 12, "several parts to fail several times")
        (gone,) = warnings(caplog)
        assert gone.startswith("The store has a problem: The server does not answer.")
        (event,) = emitted
        assert (event.store, event.error.message) == ("memory://", "The server does not answer.")
        engine.before = None
        await eventually(lambda: len(warnings(caplog)) > 1, "the end of the outage")
        await app.drain()
    back = warnings(caplog)[1:]
    assert [line.split(",")[0] for line in back] == ["The store answers again"]


async def test_a_long_outage_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    runtime = FrozenRuntime()
    outage = StoreOutage(runtime)
    for _ in range(2 * LOG_OUTAGE_EVERY_S):
        outage.note(EngineUnavailable("No answer."))
        runtime.advance(1)
    assert [line.split(":")[0] for line in warnings(caplog)] == [
        "The store has a problem",
        "The store has had a problem for 60 s",
    ]


async def test_another_kind_of_error_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    outage = StoreOutage(FrozenRuntime())
    outage.note(EngineUnavailable("No answer."))
    outage.note(CorruptRecord("A page is damaged.", where="jobs"))
    assert len(warnings(caplog)) == 2


async def test_a_lost_history_is_logged_by_the_engine_alone(caplog: pytest.LogCaptureFixture) -> None:
    outage = StoreOutage(FrozenRuntime())
    outage.note(HistoryLost("The server has lost acknowledged jobs.", engine="redis"))
    outage.end()
    assert warnings(caplog) == []


def test_each_class_of_error_of_an_outage_is_one_event() -> None:
    runtime = FrozenRuntime()
    bus, emitted = Bus(runtime), list[str]()
    bus.on(StoreError, lambda event: emitted.append(event.error.message))
    outage = EmittedOutage(runtime, bus, "redis://server")
    for _ in range(2):
        outage.note(EngineUnavailable("No answer."))
        runtime.advance(LOG_OUTAGE_EVERY_S)
    outage.note(OutcomeUnknown("The answer was lost.", verb="settle"))
    outage.note(CorruptRecord("A page is damaged.", where="jobs"))
    outage.note(HistoryLost("The server has lost acknowledged jobs.", engine="redis"))  # it has an event of its own
    assert emitted == ["No answer.", "A page is damaged."]
    outage.end()
    outage.note(EngineUnavailable("No answer again."))
    assert emitted[2:] == ["No answer again."]
