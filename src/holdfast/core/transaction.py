"""Commands inside a transaction of the caller's own.

A sync connection is used in the thread of its caller, an async one on its caller's event loop; neither may be used
elsewhere. So nothing here moves to the loop thread. An engine that is not open yet is opened there, and waited for.
"""

import asyncio
from typing import TYPE_CHECKING

from holdfast.blocking import IN_A_THREAD
from holdfast.engine import Engine
from holdfast.errors import UsageError
from holdfast.model.command import A, Command
from holdfast.transactions import LazyTransaction, Mode, UserConnection, adapt

if TYPE_CHECKING:
    from holdfast.core.connection import StoreConnection


async def perform_in_transaction(
    store: "StoreConnection", command: Command[A], transaction: object
) -> tuple[A, UserConnection]:
    """Carry out a command as part of the user's transaction; its answer, and the connection."""
    connection = await adapt_for_call(transaction)
    engine = await _engine_in_this_thread(store)
    return await engine.in_transaction(command, connection), connection


async def adapt_for_call(transaction: object) -> UserConnection:
    """The connection behind `transaction=`. `UsageError` if it is sync on an event loop, or async without one."""
    on_loop = asyncio._get_running_loop() is not None
    if on_loop and isinstance(transaction, LazyTransaction):
        transaction = await transaction
    connection = adapt(transaction)
    if connection.mode is Mode.SYNC and on_loop:
        raise UsageError(
            f"This {connection.name} would block the running event loop. Use an async one, or call the blocking method "
            f"in a thread. {IN_A_THREAD}"
        )
    if connection.mode is Mode.ASYNC and not on_loop:
        raise UsageError(
            f"This {connection.name} needs an event loop. Use the async method, such as `await aenqueue()`."
        )
    return connection


async def _engine_in_this_thread(store: "StoreConnection") -> Engine:
    """The engine, ready for user transactions. The caller stays in its thread."""
    process = store.process
    if process.open or process.engine.transactions_before_open:
        return process.engine
    if asyncio._get_running_loop() is not None:
        return await store.engine()
    engine: Engine = store.loop_thread().run(store.engine())
    return engine
