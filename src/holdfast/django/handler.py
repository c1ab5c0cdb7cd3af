"""How a worker calls the function of a Django task.

Around each attempt, old database connections are closed, as Django does around a request, and `task_started` is sent
when it begins. A plain function has a thread of the worker, where its connections are. The sync code of an async one,
such as its queries, has a thread for each attempt (`sync_code.py`). `ends.py` sends `task_finished`.

A retry reads the job first: its result has the errors and the workers of the earlier attempts, and a lease has neither.
If the store does not answer, the attempt goes on without them.

With `transaction=True` the function runs in `atomic()`, and the commit of that block also completes the job.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from django.db import close_old_connections

from holdfast.context import AbortReason, Context, Next
from holdfast.django.atomic import AtomicTransaction
from holdfast.django.context import HoldfastTaskContext
from holdfast.django.ends import close_connections
from holdfast.django.results import RunningResult
from holdfast.django.sync_code import own_thread
from holdfast.django.tasks_api import InvalidTask, task_started
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.django.backend_apps import BackendApp

RUNNING: ContextVar[RunningResult] = ContextVar("holdfast_django_running")
"""The result object of the attempt that runs in this thread or asyncio task."""


def handler_of(
    task: Any, backend_app: "BackendApp", *, in_transaction: bool
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that an App gets for a task, and the options that go with it."""
    if inspect.iscoroutinefunction(task.func):
        if in_transaction:
            raise InvalidTask(
                f"Task {task.module_path} is async, and Django's atomic() is for plain functions: leave out "
                "transaction=True, or write the task as a plain function."
            )
        return _with_signature(_async_handler(task), task), {"middleware": (_around_async(task, backend_app),)}
    options: dict[str, Any] = {"middleware": (_around_sync(task, backend_app),)}
    if in_transaction:
        options["transaction"] = lambda: AtomicTransaction(backend_app.database)
    return _with_signature(_sync_handler(task, in_transaction), task), options


def _with_signature(handler: Any, task: Any) -> Callable[..., Any]:
    """The handler with the parameters of the function: a Context in place of Django's, or before the others."""
    function = task.func
    parameters = list(inspect.signature(function).parameters.values())
    hints = dict(getattr(function, "__annotations__", {}))
    if task.takes_context:
        hints.pop(parameters.pop(0).name, None)
    first = inspect.Parameter("_holdfast_context", inspect.Parameter.POSITIONAL_ONLY, annotation=Context)
    handler.__wrapped__ = function  # names in hints are looked up in its module
    handler.__name__, handler.__qualname__, handler.__module__ = (
        function.__name__,
        function.__qualname__,
        function.__module__,
    )
    handler.__annotations__ = {first.name: Context, **hints}
    handler.__signature__ = inspect.Signature([first, *parameters])
    found: Callable[..., Any] = handler
    return found


# --- Plain functions ---


def _sync_handler(task: Any, in_transaction: bool) -> Callable[..., Any]:
    function, takes_context = task.func, task.takes_context

    def handle(ctx: Context[Any], /, *args: Any, **kwargs: Any) -> Any:
        running = RUNNING.get()
        if in_transaction:
            _ = ctx.tx  # enters atomic(); the worker leaves it, with the end of the job in it
        if takes_context:
            args = (HoldfastTaskContext(task_result=running.result, holdfast=ctx), *args)
        running.value = function(*args, **kwargs)
        return running.value

    return handle


def _around_sync(task: Any, backend_app: "BackendApp") -> Callable[[Context[Any]], Iterator[None]]:
    def around(ctx: Context[Any]) -> Iterator[None]:
        close_old_connections()
        try:
            job = ctx.job
            if ctx.is_retry:
                with suppress(HoldfastError):
                    job = backend_app.app.control.get(job.id, queue=job.queue)
            running = RunningResult(task, backend_app, ctx, job)
            token = RUNNING.set(running)
            backend_app.ends.begin(ctx, running)
            try:
                task_started.send_robust(running.sender, task_result=running.result)
                yield
            except BaseException:
                backend_app.ends.forget(ctx)
                raise
            finally:
                RUNNING.reset(token)
            if ctx.abort_reason is AbortReason.OWNERSHIP_LOST:
                backend_app.ends.forget(ctx)
        finally:
            close_connections()

    return around


# --- Async functions ---


def _async_handler(task: Any) -> Callable[..., Any]:
    function, takes_context = task.func, task.takes_context

    async def handle(ctx: Context[Any], /, *args: Any, **kwargs: Any) -> Any:
        if takes_context:
            args = (HoldfastTaskContext(task_result=RUNNING.get().result, holdfast=ctx), *args)
        return await function(*args, **kwargs)

    return handle


def _around_async(task: Any, backend_app: "BackendApp") -> Callable[[Context[Any], Next], Any]:
    async def around(ctx: Context[Any], proceed: Next) -> Any:
        async with own_thread():
            job = ctx.job
            if ctx.is_retry:
                with suppress(HoldfastError):
                    job = await backend_app.app.control.aget(job.id, queue=job.queue)
            running = RunningResult(task, backend_app, ctx, job)
            token = RUNNING.set(running)
            backend_app.ends.begin(ctx, running)
            try:
                await task_started.asend_robust(running.sender, task_result=running.result)
                running.value = await proceed()
            except BaseException:
                backend_app.ends.forget(ctx)
                raise
            finally:
                RUNNING.reset(token)
            if ctx.abort_reason is AbortReason.OWNERSHIP_LOST:
                backend_app.ends.forget(ctx)
            return running.value

    return around
