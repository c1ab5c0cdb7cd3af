"""`@jobs.task`, with and without options, typed for functions of either colour, with and without a context.

A function that takes a `Context` first is called by the worker with one and by users without: its task has the
parameters that are left. The order of the overloads carries meaning. A first parameter without a type, or typed `Any`
or `object`, would take a context too, and must not lose its first argument; only such a parameter takes an `_Anything`,
so the first two overloads catch exactly these functions and leave their arguments unchecked.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, final, overload

from holdfast.context import Context
from holdfast.core.connection import StoreConnection
from holdfast.declare.policy import TaskOptions, read_task_options
from holdfast.task import AsyncTask, Registry, SyncTask, Task, declare

P = ParamSpec("P")
R = TypeVar("R")


@final
class _Anything:
    """Accepted only by parameters that accept everything."""


class TaskDecorator:
    """`@jobs.task(...)`: the options are given, the function comes."""

    def __init__(self, store: StoreConnection, registry: Registry, options: TaskOptions) -> None:
        read_task_options(options)  # a mistake in them is shown where they stand
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
    """`jobs.task`."""

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
