"""Middleware around a handler.

There are two forms. An onion is an async function that runs on the event loop. It calls `proceed` and may read or
replace the result. A surround is a generator with one `yield`; it runs where the handler runs, in the handler's thread
or on the loop. It sets things up and cleans up, and cannot change the outcome: an error of the handler is raised even
if the generator catches it.

Order: the App's middleware, then the task's; the first in the list is the outermost. All onions are outside of all
surrounds.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast import forks
from holdfast.context import Context, Middleware, Onion, Surround
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.protocols import HandledTask

if TYPE_CHECKING:
    from holdfast.worker.attempt import LeasedAttempt

Call = Callable[["LeasedAttempt", Sequence[Any], Mapping[str, Any]], Awaitable[Any]]
"""Runs a handler with its middleware."""


def compose(task: HandledTask, middleware: Sequence[Middleware], handler_threads: HandlerThreads) -> Call:
    """The handler with its middleware, as one function."""
    surrounds = tuple(one for one in middleware if is_surround(one))
    call = _on_loop(task, surrounds) if task.is_async else _in_thread(task, surrounds, handler_threads)
    for one in reversed(middleware):
        if not is_surround(one):
            call = _wrap(one, call)  # type: ignore[arg-type]
    return call


def is_surround(middleware: Middleware) -> bool:
    """True if it is the generator form."""
    return inspect.isgeneratorfunction(middleware) or inspect.isgeneratorfunction(
        getattr(middleware, "__call__", None)  # noqa: B004 - an object that is called like a function
    )


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
        with _enter_all(surrounds, attempt.context):
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
        with _enter_all(surrounds, attempt.context):
            return _run_sync(attempt, function, arguments, kwargs)

    async def call(attempt: "LeasedAttempt", args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        loop_task, attempt.loop_task = attempt.loop_task, None  # a thread cannot be cancelled
        try:
            return await handler_threads.run(work, attempt, args, kwargs)
        finally:
            attempt.loop_task = loop_task

    return call


def _enter_all(surrounds: tuple[Surround, ...], context: Context[Any]) -> ExitStack:
    """Enter all surrounds, the first one outermost."""
    with ExitStack() as stack:
        for surround in surrounds:
            stack.enter_context(_SurroundContext(surround(context)))
        return stack.pop_all()


class _SurroundContext:
    """A surround as a context manager that never suppresses an error."""

    def __init__(self, generator: Iterator[None]) -> None:
        self._generator: Any = generator

    def __enter__(self) -> None:
        try:
            next(self._generator)
        except StopIteration:
            raise RuntimeError("A generator middleware must yield once; this one did not.") from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                next(self._generator)
            else:
                self._generator.throw(error)
        except StopIteration:
            return  # the handler's error, if any, is raised even if the generator caught it
        except BaseException as raised:
            if raised is error or (error is not None and raised.__cause__ is error):
                return
            raise
        self._generator.close()
        raise RuntimeError("A generator middleware must yield once; this one did so again.")
