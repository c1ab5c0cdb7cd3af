"""The threads for sync code that async code calls: `sync_to_async`, async queries of the ORM, plain receivers.

asgiref has one such thread for the process, or takes the one that waits in `async_to_sync`. An attempt gets a thread of
its own, as Django's ASGI handler gives one to each request. So no attempt waits for the sync code of another one, its
end closes no connection of another one, and a worker may itself run in asgiref's thread.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from asgiref.sync import AsyncToSync, SyncToAsync, ThreadSensitiveContext
from django.db import connections
from django.utils.asyncio import async_unsafe

F = TypeVar("F", bound=Callable[..., Any])

CLOSING_TIMEOUT_S = 1.0
"""A thread that still runs sync code of a cancelled attempt closes its connections after that, and nobody waits."""


@contextmanager
def sync_code_in(thread: ThreadSensitiveContext) -> Iterator[None]:
    """Sync code that this block awaits runs in this thread, which asgiref starts at the first call."""
    waiting_thread = getattr(AsyncToSync.executors, "current", None)
    token = SyncToAsync.thread_sensitive_context.set(thread)
    AsyncToSync.executors.current = None  # asgiref would prefer it
    try:
        yield
    finally:
        AsyncToSync.executors.current = waiting_thread
        SyncToAsync.thread_sensitive_context.reset(token)


@asynccontextmanager
async def own_thread() -> AsyncIterator[None]:
    """Sync code that this block awaits runs in a thread of its own. The end closes its connections to databases."""
    thread = ThreadSensitiveContext()
    with sync_code_in(thread):
        try:
            yield
        finally:
            executor = SyncToAsync.context_to_thread_executor.pop(thread, None)
            if executor is not None:
                closing = asyncio.wrap_future(executor.submit(connections.close_all))
                executor.shutdown(wait=False)
                await asyncio.wait([closing], timeout=CLOSING_TIMEOUT_S)


def refused_in_async_code(name: str, instead: str) -> Callable[[F], F]:
    """The method blocks. On an event loop it raises Django's SynchronousOnlyOperation, which names the async form."""
    decorate: Callable[[F], F] = async_unsafe(f"{name}() blocks, and this is async code: write `await {instead}`.")
    return decorate
