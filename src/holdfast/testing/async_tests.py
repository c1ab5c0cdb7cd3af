"""Runs one async test on an event loop, within a time limit. The contract suite and Holdfast's own tests share it.

pytest itself does not run `async def` tests. This is the least that does, so no async plugin is needed.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


def run_async_test(runner: asyncio.Runner, test: Coroutine[Any, Any, object], *, name: str, limit_s: float) -> None:
    """Run the test to its end. A test that takes longer than `limit_s` is cancelled, and the failure names it."""

    async def limited() -> None:
        try:
            async with asyncio.timeout(limit_s) as limit:
                await test
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise AssertionError(f"{name} took longer than its time limit of {limit_s:g} s.") from error

    runner.run(limited())
