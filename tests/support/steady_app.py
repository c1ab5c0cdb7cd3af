"""Jobs of a known length, for workers that are stopped in the middle of them."""

import asyncio
import os
import threading
import time
from typing import Any

from holdfast import App

jobs: App[Any] = App(os.environ["STEADY_URL"])


@jobs.task(max_attempts=1)
async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


@jobs.task(max_attempts=1)
def pause_thread(seconds: float) -> None:
    threading.Event().wait(seconds)


@jobs.task(lease=2, max_attempts=1)
async def block(seconds: float) -> int:
    """Blocks the event loop with Python code."""
    end_s = time.monotonic() + seconds
    turns = 0
    while time.monotonic() < end_s:
        turns += 1
    return turns


@jobs.task(lease=2, max_attempts=1)
async def pause_beside(seconds: float) -> None:
    await asyncio.sleep(seconds)
