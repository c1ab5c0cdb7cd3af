"""An open transaction of an attempt: one of the store, or one of a session from the user's factory."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from holdfast.core.transaction import adapt_for_call
from holdfast.engine import Engine
from holdfast.errors import Unsupported
from holdfast.model.instants import Micros

_logger = logging.getLogger("holdfast.worker")

End = Callable[[BaseException | None], Awaitable[None]]
"""Ends a transaction: called with None it commits, called with an error it rolls back."""


class OpenTransaction:
    """An open transaction. The handler writes with `connection`."""

    def __init__(self, connection: Any, end: End, take_back: Callable[[], bool] | None = None) -> None:
        self.connection = connection
        self._end = end
        self._take_back = take_back
        self.began_at: Micros = 0
        """When it began, on the monotonic clock."""
        self.warned = False

    @property
    def is_engines(self) -> bool:
        return self._take_back is not None

    async def commit(self) -> None:
        await self._end(None)

    async def rollback(self, error: BaseException | None) -> None:
        await self._end(error if error is not None else RolledBack())

    def take_back(self) -> bool:
        """Roll back while the handler still uses it, from another thread. False: not possible, or already ended."""
        return self._take_back is not None and self._take_back()


class RolledBack(Exception):
    """Passed to a context manager, so that it rolls back although no error was raised."""


def _cannot_take_back() -> bool:
    return False


async def open_on_engine(engine: Engine) -> OpenTransaction:
    """Open a transaction of the store: for the event loop if this is one, else for this thread."""
    manager: Any = engine.transaction()
    take_back = getattr(manager, "take_back", _cannot_take_back)
    if asyncio._get_running_loop() is not None:
        return OpenTransaction(await manager.__aenter__(), _exit_async(manager), take_back)
    if not hasattr(manager, "__enter__"):
        message = f"The {engine.scheme} engine has no transactions for plain functions. Make the handler async."
        raise Unsupported(message, capability="user_transactions", engine=engine.scheme)
    return OpenTransaction(manager.__enter__(), _exit_sync(manager), take_back)


def _exit_async(manager: AbstractAsyncContextManager[Any]) -> End:
    async def end(error: BaseException | None) -> None:
        await manager.__aexit__(None if error is None else type(error), error, None)

    return end


def _exit_sync(manager: Any) -> End:
    async def end(error: BaseException | None) -> None:
        manager.__exit__(None if error is None else type(error), error, None)

    return end


async def open_session(factory: Callable[[], Any]) -> OpenTransaction:
    """Open a session of the user's factory. Its transaction begins with its first statement."""
    session = factory()

    async def end(error: BaseException | None) -> None:
        try:
            await _call(session.commit if error is None else session.rollback)
        except BaseException:
            await _call_ignoring_errors(session.rollback)
            raise
        finally:
            await _call_ignoring_errors(session.close)

    try:
        await adapt_for_call(session)  # refuses what is no session, and an async session in a thread
    except BaseException:
        if hasattr(session, "close"):
            await _call_ignoring_errors(session.close)
        raise
    return OpenTransaction(session, end)


async def _call(method: Callable[[], Any]) -> None:
    returned = method()
    if inspect.isawaitable(returned):
        await returned


async def _call_ignoring_errors(method: Callable[[], Any]) -> None:
    try:
        returned = method()
        if inspect.iscoroutine(returned) and asyncio._get_running_loop() is None:
            returned.close()  # an async session in a thread; it was refused
        elif inspect.isawaitable(returned):
            await returned
    except Exception:
        _logger.debug("A session could not be closed.", exc_info=True)
