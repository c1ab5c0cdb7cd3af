"""From a caller to the engine inside the caller's own transaction.

A connection that blocks is used in the thread of whoever gave it, one that is awaited on their event loop: neither may
wander. So here nothing moves to the portal; an engine that has to be open first is opened through it, and waited for.
"""

import asyncio

from holdfast.core.link import Link
from holdfast.engine import Engine
from holdfast.errors import UsageError
from holdfast.model.command import A, Command
from holdfast.transactions import Begins, Colour, UserConnection, adapt


async def join(link: Link, command: Command[A], given: object) -> tuple[A, UserConnection]:
    """Carry out a command as part of the transaction that a user gave; its answer, and the connection."""
    user = await adapted(given)
    engine = await engine_here(link)
    return await engine.joined(command, user), user


async def adapted(given: object) -> UserConnection:
    """The connection behind `transaction=`, if it suits the verb that was called."""
    on_loop = asyncio._get_running_loop() is not None
    if on_loop and isinstance(given, Begins):
        given = await given
    user = adapt(given)
    if user.colour is Colour.SYNC and on_loop:
        raise UsageError(
            f"A {user.name} blocks, and would stop the event loop here. Use an async one, or a thread and the blocking "
            "method."
        )
    if user.colour is Colour.ASYNC and not on_loop:
        raise UsageError(f"A {user.name} is awaited. Use the method that begins with `a`, such as `await aenqueue()`.")
    return user


async def engine_here(link: Link) -> Engine:
    """The engine, able to join, without leaving the thread."""
    process = link.process
    if process.open or process.engine.joins_unopened:
        return process.engine
    if asyncio._get_running_loop() is not None:
        return await link.engine()
    return link.run(link.engine(), here=False)
