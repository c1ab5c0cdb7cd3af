"""Stories told about an open PostgreSQL engine, and waiting for what a server shows of it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from postgres import PostgresServer
from postgres_stock import Store

from holdfast.engines import open_engine
from holdfast.engines.postgres.engine import PostgresEngine

Stores = Callable[[], Store]


def made(store: Store, **options: Any) -> PostgresEngine:
    engine = open_engine(store.url, namespace=store.namespace, **options)
    assert isinstance(engine, PostgresEngine)
    return engine


@asynccontextmanager
async def opened(store: Store, **options: Any) -> AsyncIterator[PostgresEngine]:
    engine = made(store, **options)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def with_engine(engine: PostgresEngine, story: Callable[[PostgresEngine], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        await engine.open()
        try:
            return await story(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


def backends(server: PostgresServer) -> set[int]:
    """Connections of engines to the database of this test process. Those of an earlier test may still be ending."""
    asked = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'"
    return {pid for (pid,) in server.execute(asked)}


def wait_until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(3_000):
        if true():
            return
        pause.wait(0.01)
    raise TimeoutError


async def until_one_waits(server: PostgresServer) -> None:
    """Until some call of an engine waits for a lock."""
    asked = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'holdfast' AND wait_event_type = 'Lock'"
    await asyncio.to_thread(wait_until, lambda: bool(server.execute(asked)))
