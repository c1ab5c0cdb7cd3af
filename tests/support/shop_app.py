"""An App for tests of the harness: its store must never be opened, and its handlers leave a trace."""

import asyncio
from typing import Any

from holdfast import App, fixed

NOWHERE = "sqlite:///there/is/no/such/folder/jobs.db"
"""Opening it would fail."""


class Shop:
    """An App with a few tasks, and what their handlers did."""

    def __init__(self) -> None:
        self.jobs = jobs = App[Any](NOWHERE)
        self.ran: list[str] = []

        @jobs.task
        def plain(name: str) -> str:
            self.ran.append(name)
            return name.upper()

        @jobs.task
        async def waits(name: str) -> str:
            self.ran.append(name)
            await asyncio.sleep(0)
            return name.upper()

        @jobs.task(max_attempts=3, backoff=fixed(10))
        def fails(name: str) -> None:
            self.ran.append(name)
            raise ValueError(name)

        self.plain, self.waits, self.fails = plain, waits, fails
