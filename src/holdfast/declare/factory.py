"""`@jobs.task`, with and without options, typed for sync and async functions, with and without a context.

If the first parameter of a function is a `Context`, the worker passes one and callers do not: the task has the other
parameters. The order of the overloads matters. A first parameter without a type, or of type `Any` or `object`, would
accept a context too, and the task must not lose it. Only such a parameter accepts an `_Anything`; so the first two
overloads match exactly these functions, and their arguments are not checked.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, final, overload

from holdfast.context import Context
from holdfast.core.connection import StoreConnection
from holdfast.declare.policy import TaskOptions, read_task_options
from holdfast.declare.registry import Registry
from holdfast.task import AsyncTask, SyncTask, Task, declare

P = ParamSpec("P")
R = TypeVar("R")


@final
class _Anything:
    """Accepted only by parameters that accept everything."""


class TaskDecorator:
    """`@jobs.task(...)`: has the options, and is called with the function."""

    def __init__(self, store: StoreConnection, registry: Registry, options: TaskOptions) -> None:
        read_task_options(options)  # so that an error points to the line of the decorator
        self._store = store
        self._registry = registry
        self._options = options

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[_Anything, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[_Anything, P], R], /) -> SyncTask[..., R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context[Any], P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context[Any], P], R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Task[..., Any]:
        task = declare(self._store, function, self._options)
        self._registry.add(task)
        return task


class TaskFactory:
    """`jobs.task`: a decorator, with or without options. It makes a `Task` of a function.

    If the first parameter of the function is annotated `Context`, the worker passes it, and callers do not. An async
    function runs on the worker's event loop, a plain one in a thread.
    """

    def __init__(self, store: StoreConnection, registry: Registry) -> None:
        self._store = store
        self._registry = registry

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[_Anything, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[_Anything, P], R], /) -> SyncTask[..., R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context[Any], P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context[Any], P], R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def __call__(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        decorate = TaskDecorator(self._store, self._registry, options)
        return decorate if function is None else decorate(function)
