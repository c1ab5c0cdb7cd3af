"""The handler of a pool: a function of the payload, or of the context and the payload, as a task of the pool's name.

Options of enqueueing (name, queue, priority, lane, keys) do not exist here: a producer may have the pool without its
handler, so they are given where a payload is enqueued.
"""

import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, get_type_hints, overload

from holdfast.context import Context, Middleware
from holdfast.core.connection import StoreConnection
from holdfast.declare.function import is_redefinition, refuse_method
from holdfast.declare.isolation import check_isolation, declaring_module
from holdfast.declare.option_readers import check_factory
from holdfast.declare.payload import PayloadSignature, chosen, in_pool
from holdfast.declare.policy import read_task_options
from holdfast.declare.registry import Registry
from holdfast.draft import Draft
from holdfast.durations import Duration
from holdfast.errors import DuplicateTask, InvalidOption
from holdfast.model.produce import PoolPlace
from holdfast.model.retry import Backoff, BackoffFunction
from holdfast.task import AsyncTask, Definition, SyncTask, Task

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


AsyncWithContext = Callable[[Context[Any], T], Coroutine[Any, Any, R]]
SyncWithContext = Callable[[Context[Any], T], R]
AsyncAlone = Callable[[T], Coroutine[Any, Any, R]]
SyncAlone = Callable[[T], R]


class HandlerOptions(TypedDict, total=False):
    """The keywords of `@pool.handler`. They mean what they mean in `TaskOptions`."""

    max_attempts: int | None
    backoff: Backoff | Duration | Sequence[Duration] | BackoffFunction
    retry_on: tuple[type[BaseException], ...]
    give_up_on: tuple[type[BaseException], ...]
    retry_for: Duration | None
    max_losses: int
    timeout: Duration | None
    lease: Duration
    concurrency: int | None
    result_ttl: Duration
    retention: Duration
    failed_retention: Duration
    middleware: Sequence[Middleware]
    transaction: bool | Callable[[], Any]
    isolate: Literal["process"] | None
    memory_limit: int | None


class _InPool(Task[P, R]):
    """Its jobs go to the pool's lanes, round-robin. To pass a key, use `pool.enqueue(payload, key=...)`."""

    def __init__(self, definition: Definition, lanes: int) -> None:
        super().__init__(definition)
        self._lanes = lanes

    def draft(self, /, *args: P.args, **kwargs: P.kwargs) -> Draft[R]:
        return in_pool(super().draft(*args, **kwargs), PoolPlace(self._lanes))


class AsyncHandler(_InPool[P, R], AsyncTask[P, R]):
    """An async function that works on a pool."""


class SyncHandler(_InPool[P, R], SyncTask[P, R]):
    """A plain function that works on a pool."""


class HandlerDecorator(Generic[T]):
    """`@pool.handler(...)`: has the options, and is called with the function."""

    def __init__(
        self,
        store: StoreConnection,
        registry: Registry,
        pool: str,
        payload: type[T],
        lanes: int,
        dead_letter_hooks: list[Callable[..., object]],
        options: HandlerOptions,
    ) -> None:
        self._options = read_task_options({**_checked(options), "queue": pool})
        self._store = store
        self._registry = registry
        self._pool = pool
        self._payload = payload
        self._lanes = lanes
        self._dead_letter_hooks = dead_letter_hooks

    @overload
    def __call__(self, function: AsyncWithContext[T, R], /) -> AsyncTask[[T], R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: SyncWithContext[T, R], /) -> SyncTask[[T], R]: ...
    @overload
    def __call__(self, function: AsyncAlone[T, R], /) -> AsyncTask[[T], R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: SyncAlone[T, R], /) -> SyncTask[[T], R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Task[..., Any]:
        pool = self._pool
        refuse_method(function)
        earlier = self._registry.find(pool)
        if earlier is not None and not is_redefinition(earlier._definition.function, function):
            message = f"Pool {pool!r} has a handler already, or a task of its name. Give the pool or the task another."
            raise DuplicateTask(message, task=pool)
        takes_context, is_async = _kind_of(function, pool)
        check_factory(self._options.get("transaction"), is_async=is_async)
        check_isolation(pool, function, self._options)
        signature = PayloadSignature(
            f"Pool {pool!r}", pool, self._payload, takes_context=takes_context, returns=_returns(function)
        )
        definition = Definition(
            self._store,
            pool,
            signature,
            self._options,
            function,
            is_async,
            declared_in=declaring_module() if self._options.get("isolate") else "",
            dead_letter_hooks=self._dead_letter_hooks,
        )
        task_class: type[_InPool[..., Any]] = AsyncHandler if is_async else SyncHandler
        task = task_class(definition, self._lanes)
        self._registry.add(task)
        return task


def _checked(options: HandlerOptions) -> dict[str, Any]:
    options_set = chosen(options, HandlerOptions)
    return {**options_set, **{name: None for name, value in options.items() if value is None}}


def _kind_of(function: Callable[..., Any], pool: str) -> tuple[bool, bool]:
    """Returns (takes a context, is async)."""
    if not callable(function):
        raise InvalidOption("A handler is a function: @pool.handler, or @pool.handler(...).", option="function")
    called = function if inspect.isroutine(function) else type(function).__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise InvalidOption(f"The handler of pool {pool!r} is a generator; it must return.", option="function")
    parameters = inspect.signature(function).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    others = [p for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    if not 1 <= len(needed) <= 2 or others:
        message = f"The handler of pool {pool!r} must take (payload) or (ctx, payload)."
        raise InvalidOption(message, option="function")
    return len(needed) == 2, inspect.iscoroutinefunction(called)


def _returns(function: Callable[..., Any]) -> Any:
    """The declared return type, by which results are decoded; `Any` if there is none."""
    try:
        hints = get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except NameError:
        return Any
    return hints.get("return", Any)
