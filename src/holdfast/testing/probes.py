"""Waiting for what should happen, with a deadline and a failure that says what was seen instead.

Neither of these sleeps. `until` looks again each time a bell rings, `Probe` is told by the code under test.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from holdfast.engine import Subscription

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds of real time. Generous: a test that passes never waits for it."""

LOOK_AGAIN = 1.0
"""Bells may be lost, so look again after this many seconds without one."""


async def until(
    subscription: Subscription,
    look: Callable[[], Awaitable[T]],
    *,
    holds: Callable[[T], object] = bool,
    what: str = "the condition",
    timeout: float = PATIENCE,
) -> T:
    """Look now and after each bell, until what is seen `holds`; answer it. `what` completes "Waited 10 s for ..."."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    heard: list[str] = []
    while True:
        seen = await look()
        if holds(seen):
            return seen
        left = deadline - loop.time()
        if left <= 0:
            raise AssertionError(
                f"Waited {timeout:g} s for {what}. Last seen: {seen!r}. Bells heard: {', '.join(heard) or 'none'}."
            )
        heard.extend(sorted(await subscription.wait(min(left, LOOK_AGAIN))))


class Probe(Generic[T]):
    """Records what it is called with, in order, and lets a test wait for the n-th call.

    Give it to the code under test as a callback; then `await probe.calls(2)` answers the first two values.
    """

    def __init__(self, name: str = "the probe") -> None:
        self.name = name
        self.seen: list[T] = []
        self._arrived = asyncio.Event()

    def __call__(self, value: T) -> None:
        self.seen.append(value)
        self._arrived.set()

    async def calls(self, count: int, *, timeout: float = PATIENCE) -> list[T]:
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
