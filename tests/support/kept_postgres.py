"""A PostgreSQL engine that outlives the event loops of its callers.

A run of the differential machine has an event loop and an engine of its own, and there are hundreds of runs. A new
connection learns all functions of the server anew, which takes longer than a run: so one engine stays open, on a loop
and a thread of its own, and each run finds its store emptied.
"""

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

from fast_paths import FAST_PATHS
from postgres import server
from postgres_stock import Store, stock

from holdfast.engine import Capabilities, Engine, RenewalConnection, Subscription
from holdfast.engines import open_engine
from holdfast.engines.postgres.engine import PostgresEngine
from holdfast.model.command import A, Command
from holdfast.testing.clock import START

T = TypeVar("T")

CLOCKS: dict[PostgresEngine, str] = {}
"""The expression by which the server of each engine computes its time."""


class KeptPostgres(Engine):
    """Opened and closed like any other; the engine behind it stays. One at a time."""

    scheme = PostgresEngine.scheme

    def __init__(self, *, fast_paths: bool = FAST_PATHS) -> None:
        stores = stock(server(), "kept engines")  # other tests must not get a store whose clock stands still
        stores.give_back()  # the run before has ended
        self._engine = opened(stores.fresh(), fast_paths)
        self._engine._offset = self._engine._not_before_us = 0
        self._set_clock(self._engine, "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint + p_offset")

    def _set_clock(self, engine: PostgresEngine, clock: str) -> None:
        """Let the server compute its time by this expression. The engine is kept, and so is its clock."""
        if CLOCKS.get(engine) != clock:
            CLOCKS[engine] = clock
            rules = engine._schema.rules
            server().execute(
                f"CREATE OR REPLACE FUNCTION {rules}.clock_time(p_offset bigint) RETURNS bigint LANGUAGE sql "
                f"AS $$ SELECT {clock} $$"
            )

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # as the engine's own
        return self._engine.capabilities

    async def perform(self, command: Command[A]) -> A:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._engine.perform(command), loop()))

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def migrate(self) -> tuple[str, ...]:
        return ()

    def subscribe(self, *topics: str) -> Subscription:
        return self._engine.subscribe(*topics)

    def renewal_connection(self) -> RenewalConnection:
        return self._engine.renewal_connection()

    @property
    def clock_offset(self) -> int:
        return self._engine.clock_offset

    @clock_offset.setter
    def clock_offset(self, value: int) -> None:
        self._engine.clock_offset = value


class StillPostgres(KeptPostgres):
    """Its server's clock stands still and is moved by the caller: many things happen at one instant, and a failure can
    be played again."""

    def __init__(self) -> None:
        super().__init__()
        self._set_clock(self._engine, "p_offset")
        self._engine._offset = START

    @property
    def clock_offset(self) -> int:
        return self._engine._offset - START

    @clock_offset.setter
    def clock_offset(self, value: int) -> None:
        self._engine._offset = START + value


@cache
def loop() -> asyncio.AbstractEventLoop:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, name="kept-postgres", daemon=True)
    thread.start()

    def end() -> None:
        made.call_soon_threadsafe(made.stop)
        thread.join()
        made.close()

    atexit.register(end)
    return made


@cache
def opened(store: Store, fast_paths: bool) -> PostgresEngine:
    engine = open_engine(store.url, namespace=store.namespace, notify=False, fast_paths=fast_paths)
    assert isinstance(engine, PostgresEngine)
    wait(engine.open())
    atexit.register(lambda: wait(engine.close()))
    return engine


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(coroutine, loop()).result()
