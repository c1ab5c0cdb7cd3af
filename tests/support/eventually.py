"""Waiting in tests: for a condition, and for an event loop that has nothing left to do.

Prefer an event of the code under test (a `Probe`, a subscription, an answer). These are for what nothing tells of.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

LIMIT_S = 30.0
"""Seconds. A test that passes never waits that long."""
PAUSE_S = 0.005
"""Seconds between two looks at a condition."""


async def eventually(condition: Callable[[], object], what: str = "the condition", limit_s: float = LIMIT_S) -> None:
    """Return once the condition is true. It is a function, or an async function, that is called again and again."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if await value if isinstance(value, Awaitable) else value:
            return
        assert time.monotonic() < deadline, f"Waited {limit_s:g} s for {what}."
        await asyncio.sleep(PAUSE_S)


def eventually_now(condition: Callable[[], object], what: str = "the condition", limit_s: float = LIMIT_S) -> None:
    """The same in a thread without an event loop."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"Waited {limit_s:g} s for {what}."
        time.sleep(PAUSE_S)


async def idle(limit_s: float = LIMIT_S) -> None:
    """Return once the running loop has no callback left that is ready: every task waits for something else.

    What waits for real time, a thread or a socket is not waited for. With a frozen clock and a memory engine this means
    that everything has happened that can happen at this instant.
    """
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]  # the loop offers no other way to ask
    deadline = time.monotonic() + limit_s
    quiet_turns = 0
    while quiet_turns < 2:  # the second turn polls for what the first one has set off by itself
        await asyncio.sleep(0)
        quiet_turns = 0 if ready else quiet_turns + 1
        assert time.monotonic() < deadline, f"The event loop was still busy after {limit_s:g} s."
