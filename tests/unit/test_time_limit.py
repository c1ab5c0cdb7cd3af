"""A test that takes longer than its time limit fails, and the failure names it."""

import asyncio
import threading

import pytest
from time_limit import time_limit

from holdfast.testing.async_tests import run_async_test


def test_a_block_that_waits_too_long_is_interrupted_and_named() -> None:
    never = threading.Event()
    with (
        pytest.raises(pytest.fail.Exception, match=r"test_slow took longer than its time limit of 0\.05 s"),
        time_limit("test_slow", 0.05),
    ):
        never.wait()


def test_a_block_that_ends_in_time_is_left_alone() -> None:
    with time_limit("test_outer", 60), time_limit("test_inner", 60):
        pass


def test_an_async_test_that_waits_too_long_is_cancelled_and_named() -> None:
    steps: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            steps.append("cleaned up")

    with asyncio.Runner() as runner, pytest.raises(AssertionError, match=r"test_slow took .* limit of 0\.05 s"):
        run_async_test(runner, slow(), name="test_slow", limit_s=0.05)
    assert steps == ["cleaned up"]


async def test_an_async_test_runs_on_the_loop_of_its_runner(runner: asyncio.Runner) -> None:
    assert asyncio.get_running_loop() is runner.get_loop()


def test_a_timeout_of_the_test_itself_is_not_taken_for_the_limit() -> None:
    async def raises() -> None:
        raise TimeoutError("its own")

    with asyncio.Runner() as runner, pytest.raises(TimeoutError, match="its own"):
        run_async_test(runner, raises(), name="test_slow", limit_s=60)
