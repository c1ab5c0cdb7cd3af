"""Middleware around a handler.

There are two forms. An onion is an async function that runs on the event loop. It calls `proceed` and may read or
replace the result. A surround is a generator with one `yield`; it runs where the handler runs, in the handler's thread,
on the loop, or in the process of an isolated handler. It sets things up and cleans up, and cannot change the outcome:
an error of the handler is raised even if the generator catches it.

Order: the App's middleware, then the task's; the first in the list is the outermost. All onions are outside of all
surrounds.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast import forks
from holdfast.context import Middleware, Onion
from holdfast.isolation.surrounds import enter_all, is_surround
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.protocols import HandledTask

if TYPE_CHECKING:
    from holdfast.worker.attempt import LeasedAttempt

Call = Callable[["LeasedAttempt", Sequence[Any], Mapping[str, Any]], Awaitable[Any]]
"""Runs a handler with its middleware."""


def compose(
    task: HandledTask,
    middleware: Sequence[Middleware],
    handler_threads: HandlerThreads,
    isolated_call: Call | None = None,
) -> Call:
    """The handler with its middleware, as one function. `isolated_call` runs handler and surrounds in a child."""
    surrounds = tuple(one for one in middleware if is_surround(one))
    if isolated_call is not None:
        call = isolated_call
    else:
        call = _on_loop(task, surrounds) if task.is_async else _in_thread(task, surrounds, handler_threads)
    for one in reversed(middleware):
        if not is_surround(one):
            call = _wrap(one, call)  # type: ignore[arg-type]
    return call


def _wrap(onion: Onion, inner: Call) -> Call:
    async def call(attempt: "LeasedAttempt", args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        async def proceed() -> Any:
            return await inner(attempt, args, kwargs)

        return await onion(attempt.context, proceed)

    return call


def _on_loop(task: HandledTask, surrounds: tuple[Any, ...]) -> Call:
    function, takes_context = task.function, task.takes_context

    async def call(attempt: "LeasedAttempt", args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        arguments = (attempt.context, *args) if takes_context else args
        if not surrounds:
            return await _run_async(attempt, function, arguments, kwargs)
        with enter_all(surrounds, attempt.context):
            return await _run_async(attempt, function, arguments, kwargs)

    return call


async def _run_async(
    attempt: "LeasedAttempt", function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Run an async handler, and commit or roll back its transactions."""
    depth = forks.depth
    try:
        value = await function(*args, **kwargs)
        if forks.depth != depth:
            forks.end_child()
        if attempt.used_transactions is not None:
            await attempt.used_transactions.finish(value)
    except GeneratorExit:  # the loop is being closed: nothing can be awaited any more
        raise
    except BaseException as error:
        if forks.depth != depth:
            forks.end_child(error)
        if attempt.used_transactions is not None:
            await attempt.used_transactions.rollback(error)
        raise
    return value


def _run_sync(
    attempt: "LeasedAttempt", function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The same for a sync handler, in its thread: a connection may belong to that thread."""
    depth = forks.depth
    try:
        value = function(*args, **kwargs)
        if forks.depth != depth:
            forks.end_child()
        if attempt.used_transactions is not None:
            attempt.used_transactions.finish_sync(value)
    except BaseException as error:
        if forks.depth != depth:
            forks.end_child(error)
        if attempt.used_transactions is not None:
            attempt.used_transactions.rollback_sync(error)
        raise
    return value


def _in_thread(task: HandledTask, surrounds: tuple[Any, ...], handler_threads: HandlerThreads) -> Call:
    function, takes_context = task.function, task.takes_context

    def work(attempt: "LeasedAttempt", args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        arguments = (attempt.context, *args) if takes_context else args
        with enter_all(surrounds, attempt.context):
            return _run_sync(attempt, function, arguments, kwargs)

    async def call(attempt: "LeasedAttempt", args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        loop_task, attempt.loop_task = attempt.loop_task, None  # a thread cannot be cancelled
        try:
            return await handler_threads.run(work, attempt, args, kwargs)
        finally:
            attempt.loop_task = loop_task

    return call
