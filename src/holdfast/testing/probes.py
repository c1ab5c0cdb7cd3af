"""Waiting for something with a deadline, and a failure message that says what was seen instead.

Neither of these sleeps. `until` checks again after each notification; the code under test calls `Probe`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from holdfast.engine import Subscription
from holdfast.model.instants import Seconds

T = TypeVar("T")

TIMEOUT_S: Seconds = 10.0
"""Real time; long, because a test that passes never waits for it."""

CHECK_AGAIN_S: Seconds = 1.0
"""A notification may be lost, so check again after this long without one."""


async def until(
    subscription: Subscription,
    look: Callable[[], Awaitable[T]],
    *,
    holds: Callable[[T], object] = bool,
    what: str = "the condition",
    timeout: float = TIMEOUT_S,
) -> T:
    """Call `look` now and after each notification until its value `holds`; return the value.

    `what` completes the failure message "Waited 10 s for ...".
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    topics: list[str] = []
    while True:
        seen = await look()
        if holds(seen):
            return seen
        left = deadline - loop.time()
        if left <= 0:
            raise AssertionError(
                f"Waited {timeout:g} s for {what}. Last seen: {seen!r}. Notifications: {', '.join(topics) or 'none'}."
            )
        topics.extend(sorted(await subscription.wait(min(left, CHECK_AGAIN_S))))


class Probe(Generic[T]):
    """Records what it is called with, in order, and lets a test wait for the n-th call.

    Pass it to the code under test as a callback; then `await probe.calls(2)` returns the first two values.
    """

    def __init__(self, name: str = "the probe") -> None:
        self.name = name
        self.seen: list[T] = []
        self._arrived = asyncio.Event()

    def __call__(self, value: T) -> None:
        self.seen.append(value)
        self._arrived.set()

    async def calls(self, count: int, *, timeout: float = TIMEOUT_S) -> list[T]:
        """The first `count` values, once there are that many."""
        try:
            async with asyncio.timeout(timeout):
                while len(self.seen) < count:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise AssertionError(
                f"Waited {timeout:g} s for {self.name} to be called {count} times. "
                f"It was called {len(self.seen)} times: {self.seen!r}."
            ) from None
        return self.seen[:count]
