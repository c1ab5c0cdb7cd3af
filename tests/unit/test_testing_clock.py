"""The clocks that tests own."""

import asyncio

import pytest
from eventually import idle

from holdfast.engines import open_engine
from holdfast.model.instants import HOUR, MINUTE, SECOND
from holdfast.testing import FakeClock, FrozenRuntime


# TM4
async def test_a_fake_clock_moves_the_engines_time() -> None:
    engine = open_engine("memory://")
    clock = FakeClock(engine)
    before = await engine.now()

    clock.advance(1, minutes=2, hours=3)

    after = await engine.now()
    assert engine.clock_offset == 3 * HOUR + 2 * MINUTE + SECOND
    assert after.wall - before.wall >= 3 * HOUR
    assert after.lease - before.lease >= 3 * HOUR


def test_a_fake_clock_goes_back_only_by_set_back() -> None:
    engine = open_engine("memory://")
    clock = FakeClock(engine)

    with pytest.raises(ValueError, match="set_back"):
        clock.advance(-1)
    clock.set_back(minutes=1)

    assert engine.clock_offset == -MINUTE


def test_a_fraction_of_a_second_is_kept_to_the_microsecond() -> None:
    engine = open_engine("memory://")

    FakeClock(engine).advance(0.000_001)
    FakeClock(engine).advance(0.1)

    assert engine.clock_offset == 100_001


def test_a_frozen_runtime_stands_still_until_it_is_moved() -> None:
    runtime = FrozenRuntime()
    before = (runtime.wall(), runtime.boot(), runtime.monotonic())

    assert (runtime.wall(), runtime.boot(), runtime.monotonic()) == before
    runtime.advance(minutes=1)

    assert (runtime.wall(), runtime.boot(), runtime.monotonic()) == tuple(time + MINUTE for time in before)
    with pytest.raises(ValueError, match="set_wall"):
        runtime.advance(-1)


def test_setting_the_wall_moves_nothing_else() -> None:
    runtime = FrozenRuntime()
    boot, monotonic = runtime.boot(), runtime.monotonic()

    runtime.set_wall(5)

    assert (runtime.wall(), runtime.boot(), runtime.monotonic()) == (5, boot, monotonic)


def test_the_offset_moves_wall_and_boot_but_not_the_stop_watch() -> None:
    runtime = FrozenRuntime()
    wall, boot, monotonic = runtime.wall(), runtime.boot(), runtime.monotonic()

    runtime.clock_offset = HOUR

    assert (runtime.wall(), runtime.boot(), runtime.monotonic()) == (wall + HOUR, boot + HOUR, monotonic)


async def test_an_engine_on_a_frozen_runtime_sees_equal_times() -> None:
    engine = open_engine("memory://", runtime=FrozenRuntime())

    assert (await engine.now()) == (await engine.now())


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    runtime = FrozenRuntime()
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await runtime.sleep(seconds)
        woken.append(name)

    tasks = [runtime.spawn(sleeper(name, seconds), name=name) for name, seconds in (("c", 3.0), ("a", 1.0), ("b", 2.0))]
    await idle()
    assert runtime.sleeping == 3
    runtime.advance(0.5)
    await asyncio.sleep(0)
    assert woken == []
    runtime.advance(1.5)
    await asyncio.gather(tasks[1], tasks[2])
    assert runtime.sleeping == 1
    runtime.advance(1)
    await tasks[0]
    assert woken == ["a", "b", "c"]


async def test_a_sleeper_that_was_cancelled_is_passed_over() -> None:
    runtime = FrozenRuntime()
    task = runtime.spawn(runtime.sleep(1), name="sleeper")
    await idle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert runtime.sleeping == 0
    runtime.advance(2)


def test_dice_and_ids_follow_from_the_seed() -> None:
    one, same, other = FrozenRuntime(seed=1), FrozenRuntime(seed=1), FrozenRuntime(seed=2)

    drawn = [(runtime.random(), runtime.new_id(), runtime.new_claim_id()) for runtime in (one, same, other)]

    assert drawn[0] == drawn[1] != drawn[2]
    assert all(0 <= one.random() < 1 for _ in range(100))
    assert one.token_bytes(16) != one.token_bytes(16)
