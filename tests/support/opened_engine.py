"""An engine that is open for as long as a block lasts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from holdfast.engine import Engine

E = TypeVar("E", bound=Engine)


@asynccontextmanager
async def opened_engine(engine: E) -> AsyncIterator[E]:
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()
