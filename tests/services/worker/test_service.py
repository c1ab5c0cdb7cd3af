"""The loop around services: it waits, is woken, survives what a tick raises, and stops."""

import asyncio
import logging
from contextlib import suppress

import pytest
from eventually import idle

from holdfast.errors import EngineUnavailable
from holdfast.service import Service, Supervisor, Waker, back_off, yield_to_loop
from holdfast.testing import FrozenRuntime, Probe


class ScriptedService(Service):
    """Returns the delays of its script in order, and reports each tick."""

    name = "scripted"

    def __init__(self, runtime: FrozenRuntime, *script: "float | BaseException | None") -> None:
        super().__init__(runtime)
        self.script = list(script)
        self.ticks = Probe[int]("tick")

    async def tick(self) -> float | None:
        self.ticks(len(self.ticks.seen))
        said = self.script.pop(0) if self.script else None
        if isinstance(said, BaseException):
            raise said
        return said


async def test_a_tick_follows_when_its_delay_has_passed() -> None:
    runtime = FrozenRuntime()
    service = ScriptedService(runtime, 5.0)
    supervisor = Supervisor(runtime, [service])
    supervisor.start()
    await service.ticks.calls(1)
    await idle()
    runtime.advance(4.9)
    await idle()
    assert len(service.ticks.seen) == 1
    runtime.advance(0.2)
    await service.ticks.calls(2)
    await supervisor.stop()


async def test_the_first_tick_waits_for_the_start_delay_or_a_wake() -> None:
    runtime = FrozenRuntime()
    waits, woken = ScriptedService(runtime), ScriptedService(runtime)
    waits.start_delay_s = woken.start_delay_s = 5.0
    supervisor = Supervisor(runtime, [waits, woken])
    supervisor.start()
    await idle()
    woken.wake()
    await woken.ticks.calls(1)
    assert len(waits.ticks.seen) == 0
    runtime.advance(5.1)
    await waits.ticks.calls(1)
    await supervisor.stop()


async def test_a_service_that_asks_for_no_delay_sleeps_until_it_is_woken() -> None:
    runtime = FrozenRuntime()
    service = ScriptedService(runtime, None)
    supervisor = Supervisor(runtime, [service])
    supervisor.start()
    await service.ticks.calls(1)
    runtime.advance(days=1)
    await idle()
    assert len(service.ticks.seen) == 1
    service.wake()
    await service.ticks.calls(2)
    await supervisor.stop()


async def test_a_wake_during_a_tick_is_not_lost() -> None:
    runtime = FrozenRuntime()
    go, ticks = asyncio.Event(), Probe[None]("tick")

    class Slow(Service):
        name = "slow"

        async def tick(self) -> float | None:
            ticks(None)
            await go.wait()
            return None

    service = Slow(runtime)
    supervisor = Supervisor(runtime, [service])
    supervisor.start()
    await ticks.calls(1)
    service.wake()
    go.set()
    await ticks.calls(2)
    await supervisor.stop()


async def test_a_tick_that_raises_is_reported_and_tried_again_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "holdfast.service"):
        runtime = FrozenRuntime()
        service = ScriptedService(runtime, RuntimeError("the disk is gone"), None)
        supervisor = Supervisor(runtime, [service])
        supervisor.start()
        await service.ticks.calls(1)
        await idle()
        service.wake()  # does not shorten the pause
        await idle()
        assert len(service.ticks.seen) == 1
        runtime.advance(back_off(1))
        await service.ticks.calls(2)
        await supervisor.stop()
    assert "Service scripted failed" in caplog.text
    assert "the disk is gone" in caplog.text


def test_pauses_grow_and_are_bounded() -> None:
    pauses = [back_off(failures) for failures in range(1, 100)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 0.1
    assert pauses[-1] == 2.0


def test_two_workers_pause_for_different_times() -> None:
    assert back_off(5, 0.0) < back_off(5, 0.5) < back_off(5, 1.0)


async def test_a_part_that_reaches_the_store_again_ends_the_pauses_of_the_others() -> None:
    runtime = FrozenRuntime()
    service = ScriptedService(runtime, EngineUnavailable("The server does not answer."), None)
    supervisor = Supervisor(runtime, [service])
    supervisor.start()
    await service.ticks.calls(1)
    await idle()
    service.outage.end()
    await service.ticks.calls(2)
    await supervisor.stop()


# PF3: a service ends only by its own cancellation; one that ended otherwise is noticed and reported.


async def test_a_cancellation_from_elsewhere_is_a_failure_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    runtime = FrozenRuntime()
    service = ScriptedService(runtime, asyncio.CancelledError(), None)
    supervisor = Supervisor(runtime, [service])
    supervisor.start()
    await service.ticks.calls(1)
    await idle()
    runtime.advance(back_off(1))
    await service.ticks.calls(2)
    await supervisor.stop()
    assert "Service scripted failed: CancelledError" in caplog.text


@pytest.mark.parametrize("delay", [5.0, None])
async def test_a_service_goes_on_after_other_code_has_cancelled_every_task(delay: float | None) -> None:
    runtime = FrozenRuntime()
    service = ScriptedService(runtime, delay)
    supervisor = Supervisor(runtime, [service])
    supervisor.start()
    await service.ticks.calls(1)
    await idle()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await idle()
    runtime.advance(back_off(1))
    await service.ticks.calls(2)
    await supervisor.stop()


async def test_a_service_that_was_cancelled_before_its_first_tick_is_started_again() -> None:
    service = ScriptedService(FrozenRuntime(), None)
    supervisor = Supervisor(service.runtime, [service])
    supervisor.start()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await service.ticks.calls(1)
    await supervisor.stop()


async def test_a_waiter_is_woken_when_other_code_has_cancelled_its_timer() -> None:
    waker = Waker(FrozenRuntime())
    waiting = asyncio.create_task(waker.wait(1.0))
    await idle()
    for task in asyncio.all_tasks() - {asyncio.current_task(), waiting}:
        task.cancel()
    async with asyncio.timeout(10):
        await waiting
    waker.close()


async def test_a_service_that_has_ended_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Ends(ScriptedService):
        async def tick(self) -> float | None:
            raise WorstError

    class WorstError(BaseException):
        pass

    service, ended = Ends(FrozenRuntime()), Probe[Service]("the report")
    supervisor = Supervisor(service.runtime, [service], on_ended=ended)
    supervisor.start()
    await ended.calls(1)
    await supervisor.stop()
    assert ended.seen == [service]
    assert "Service scripted has ended although it was not stopped" in caplog.text


async def test_a_service_whose_tick_swallows_its_cancellation_ends_after_that_tick() -> None:
    began = Probe[None]("tick")

    class Swallows(ScriptedService):
        async def tick(self) -> float | None:
            began(None)
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return 0

    service = Swallows(FrozenRuntime())
    supervisor = Supervisor(service.runtime, [service])
    supervisor.start()
    await began.calls(1)
    async with asyncio.timeout(4):
        await supervisor.stop()
    assert len(began.seen) == 1


async def test_a_supervisor_can_stop_one_service_and_then_the_rest() -> None:
    runtime = FrozenRuntime()
    one, two = ScriptedService(runtime), ScriptedService(runtime)
    supervisor = Supervisor(runtime, [one, two])
    supervisor.start()
    await one.ticks.calls(1)
    await supervisor.stop(one)
    one.wake()
    two.wake()
    await two.ticks.calls(2)
    assert len(one.ticks.seen) == 1
    await supervisor.stop()
    assert runtime.sleeping == 0


async def test_a_busy_waiter_keeps_one_alarm() -> None:
    runtime = FrozenRuntime()
    waker = Waker(runtime)
    for _ in range(50):
        waiting = asyncio.create_task(waker.wait(1.0))
        await idle()
        waker.wake()
        await waiting
    assert runtime.sleeping == 1
    waiting = asyncio.create_task(waker.wait(0.1))  # sooner than the one that is set
    await idle()
    assert runtime.sleeping == 1
    runtime.advance(0.1)
    await waiting
    waker.close()


async def test_breathing_lets_others_go_first() -> None:
    order: list[str] = []
    asyncio.get_running_loop().call_soon(order.append, "other")
    await yield_to_loop()
    order.append("me")
    assert order == ["other", "me"]
