"""Open PostgreSQL engines for tests, and what the server shows of their connections."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from eventually import eventually
from opened_engine import opened_engine
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
    async with opened_engine(made(store, **options)) as engine:
        yield engine


def backends(server: PostgresServer) -> set[int]:
    """Process ids of engines' sessions in this worker's database. Those of an earlier test may still be ending."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'"
    return {pid for (pid,) in server.execute(query)}


ENGINE_BEHIND_TEST = """
SELECT 1 FROM pg_stat_activity AS engine, unnest(pg_blocking_pids(engine.pid)) AS blocking
JOIN pg_stat_activity AS test ON test.pid = blocking AND test.datname = current_database()
WHERE engine.datname = current_database() AND engine.application_name = 'holdfast' AND engine.wait_event_type = 'Lock'
    AND test.application_name <> 'holdfast'
"""
"""Not just any wait: the commit of a notification waits, for a moment, for those of all databases of the server."""


async def until_one_waits(server: PostgresServer) -> None:
    """Wait until a call of an engine waits for a lock that a session of the test holds."""
    await eventually(lambda: bool(server.execute(ENGINE_BEHIND_TEST)), "a call that waits for a lock of the test")
