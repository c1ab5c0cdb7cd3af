"""A transaction that is open for an attempt: the store's own, or one of a session that the user's factory has made."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from holdfast.core.transaction import adapt_for_call
from holdfast.engine import Engine
from holdfast.errors import Unsupported

_logger = logging.getLogger("holdfast.worker")

End = Callable[[BaseException | None], Awaitable[None]]
"""Ends a transaction: commits without an error, rolls back with one."""


class Opened:
    """`connection` is what the handler writes with."""

    def __init__(self, connection: Any, end: End, take_back: Callable[[], bool] | None = None) -> None:
        self.connection = connection
        self._end = end
        self._take_back = take_back
        self.since = 0
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
        """From another thread: roll back under the handler's feet. False: it cannot be done, or was over."""
        return self._take_back is not None and self._take_back()


class RolledBack(Exception):
    """Told to a context manager whose block is to be left as if by an error."""


def _never() -> bool:
    return False


async def of_engine(engine: Engine) -> Opened:
    """A transaction of the store's own, for whoever asks: on the event loop, or in a thread without one."""
    made: Any = engine.transaction()
    take_back = getattr(made, "take_back", _never)
    if asyncio._get_running_loop() is not None:
        return Opened(await made.__aenter__(), _leaving(made), take_back)
    if not hasattr(made, "__enter__"):
        said = f"The {engine.scheme} engine has no transactions for plain functions. Make the handler async."
        raise Unsupported(said, capability="user_transactions", engine=engine.scheme)
    return Opened(made.__enter__(), _leaving_at_once(made), take_back)


def _leaving(made: AbstractAsyncContextManager[Any]) -> End:
    async def end(error: BaseException | None) -> None:
        await made.__aexit__(None if error is None else type(error), error, None)

    return end


def _leaving_at_once(made: Any) -> End:
    async def end(error: BaseException | None) -> None:
        made.__exit__(None if error is None else type(error), error, None)

    return end


async def of_factory(factory: Callable[[], Any]) -> Opened:
    """A session of the user's. It begins by itself, with its first statement."""
    session = factory()

    async def end(error: BaseException | None) -> None:
        try:
            await _called(session.commit if error is None else session.rollback)
        except BaseException:
            await _quietly(session.rollback)
            raise
        finally:
            await _quietly(session.close)

    try:
        await adapt_for_call(session)  # refuses what is no session, or of the other colour
    except BaseException:
        if hasattr(session, "close"):
            await _quietly(session.close)
        raise
    return Opened(session, end)


async def _called(method: Callable[[], Any]) -> None:
    answer = method()
    if inspect.isawaitable(answer):
        await answer


async def _quietly(method: Callable[[], Any]) -> None:
    try:
        answer = method()
        if inspect.iscoroutine(answer) and asyncio._get_running_loop() is None:
            answer.close()  # an awaited session in a thread; it was refused
        elif inspect.isawaitable(answer):
            await answer
    except Exception:
        _logger.debug("A session could not be tidied up.", exc_info=True)
