"""The App: tasks are declared on it, and it gives access to everything else.

    jobs = App("sqlite:///jobs.db")

Making one does no I/O and touches nothing global. The store is opened by the first call that needs it, in every process
for itself, or by `with jobs:` and `async with jobs:`. An App may be shared between threads, event loops and forks.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

from holdfast.blocking import blocking, move_to_loop
from holdfast.client import Client
from holdfast.codec import Codec
from holdfast.context import Middleware, S
from holdfast.control import Control
from holdfast.core import isolated
from holdfast.core.connection import StoreConnection
from holdfast.declare.factory import TaskFactory
from holdfast.declare.policy import read_app_options
from holdfast.declare.registry import Registry
from holdfast.durations import Duration
from holdfast.engine import Engine
from holdfast.errors import InvalidOption
from holdfast.operate.checking import CheckReport, OnPage, check_stored
from holdfast.pool import Pool
from holdfast.pull.workers import PullWorkers
from holdfast.queue import Queue
from holdfast.runtime import Runtime
from holdfast.stream import EventStream
from holdfast.telemetry.bus import Bus
from holdfast.telemetry.events import Event

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.core.settings import Setting
    from holdfast.manager import Manager
    from holdfast.worker import Worker

E = TypeVar("E", bound=Event)
M = TypeVar("M", bound=Middleware)
T = TypeVar("T")

Lifespan = Callable[[], AbstractAsyncContextManager[S]]


class App(Generic[S]):
    """One application's jobs. Docs call it `jobs`.

    `url`: the address of the store, or a function that returns it; None: `HOLDFAST_URL`, else `holdfast.toml`, else
    `sqlite:///holdfast.db`. `lifespan` opens what handlers need, once per worker: `ctx.state`. `modules`: imported by
    workers and commands. `namespace`: the name under which jobs are stored. `auto_migrate`: make the tables when the
    store is opened; by default everywhere but on PostgreSQL.
    """

    def __init__(
        self,
        url: str | Callable[[], str] | None = None,
        /,
        *,
        lifespan: Lifespan[S] | None = None,
        modules: Sequence[str] = (),
        namespace: str | None = None,
        durability: Literal["durable", "fast", "none"] | None = None,
        auto_migrate: bool | None = None,
        codec: Codec | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        read_app_options(url=url, modules=modules, namespace=namespace, durability=durability, codec=codec)
        self._store = StoreConnection(url, codec, namespace=namespace, durability=durability, auto_migrate=auto_migrate)
        self._pull_workers = PullWorkers(self._store)
        self._entered = 0
        self.lifespan = lifespan
        self.modules = tuple(modules)
        self.registry = Registry()
        self.middlewares: list[Middleware] = []
        for each in middleware:
            self.middleware(each)
        self.task: TaskFactory = TaskFactory(self._store, self.registry)
        """The decorator that declares a task."""
        self.client: Client = Client(self._store, self.registry)
        """For producers."""
        self.control: Control = Control(self._store, self.registry)
        """For operators."""
        isolated.note_app(self)

    # For its parts

    @property
    def runtime(self) -> Runtime:
        return self._store.runtime

    @property
    def bus(self) -> Bus:
        return self._store.bus

    @property
    def config(self) -> "Config":
        """The settings; read from file and environment when they are first needed."""
        return self._store.config

    @property
    def flags(self) -> dict[str, str]:
        """The flag of the command line that has given an option of this App, by option, such as `url`."""
        return self._store.flags

    @property
    def url_conflict(self) -> str:
        """A warning with both addresses if `HOLDFAST_URL` and the code name different stores; else empty."""
        return self._store.url_conflict

    def settings(self) -> "tuple[Setting, ...]":
        """All settings as they hold for this App, each with its source. Passwords are masked. Opens no store."""
        from holdfast.core.settings import settings_in_use

        return tuple(settings_in_use(self._store))

    @property
    def engine(self) -> Engine:
        """The engine of this process. `open` it before use."""
        return self._store.process.engine

    @property
    def address(self) -> str:
        """The address of the store as users are shown it: without a password, a file with its whole path."""
        return self._store.address

    @property
    def durability(self) -> str:
        """The durability in use: `durable`, `fast` or `none`.

        On Redis it depends on the server: before the store is opened, it is the one of the settings, else `unknown`.
        """
        return self._store.durability

    @property
    def store_secrets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The addresses of the store, and the variables by which its driver finds a password."""
        return self._store.secrets

    def import_modules(self) -> None:
        """Import what `modules` names, so that its tasks are declared. Workers and the CLI do this when they start."""
        for module in self.modules:
            import_module(module)

    # Open and close

    async def aopen(self, /) -> None:
        """Open the store now, rather than with the first call that needs it."""
        await self._store.engine()

    open = blocking(aopen)

    async def aclose(self, /) -> None:
        """Close the store in this process. The next call that needs it opens it again."""
        await self._pull_workers.stop()
        await self._store.close()

    close = blocking(aclose)

    async def amigrate(self, /, *, grant: Sequence[str] = ()) -> tuple[str, ...]:
        """Bring the store's schema up to date; return the names of the steps taken.

        `grant`: database roles that get the rights which a client needs, and no more.
        """
        await move_to_loop()
        steps = await self.engine.migrate()
        for role in grant:
            await self.engine.grant(role)
        return steps

    migrate = blocking(amigrate)

    async def amigration_script(self, /, *, after: int | None = None, grant: Sequence[str] = ()) -> str:
        """What `migrate` would do, as a script for a database administrator; empty if there is nothing to do.

        `after`: the version to start from, 0 for an empty store; without it the version of the store.
        """
        await move_to_loop()
        return await self.engine.migration_script(after=after, roles=grant)

    migration_script = blocking(amigration_script)

    async def acheck(self, /, *, queues: Sequence[str] = (), on_page: OnPage | None = None) -> CheckReport:
        """Decode every live job of the store with the tasks of this process, and list those that they cannot run.

        Call it with the code of the next release, before that is deployed. Nothing is written, and the store is not
        migrated. `queues`: only these. A job that is enqueued meanwhile may be missed.
        """
        self.import_modules()
        return await check_stored(self._store, self.registry, queues, on_page)

    check = blocking(acheck)

    def __enter__(self) -> Self:
        self.open()
        self._entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if not self._entered:
            self.close()

    async def __aenter__(self) -> Self:
        await self.aopen()
        self._entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._entered -= 1
        if not self._entered:
            await self.aclose()

    # Payloads

    def queue(
        self,
        name: str,
        payload: type[T],
        /,
        *,
        max_depth: int | None = None,
        lane_max_depth: int | None = None,
    ) -> Queue[T]:
        """A queue of payloads of this type, which your own code pulls."""
        queue = Queue(
            self._store, self._pull_workers, name, payload, max_depth=max_depth, lane_max_depth=lane_max_depth
        )
        self.registry.payloads[name] = queue._task
        return queue

    def pool(
        self,
        name: str,
        payload: type[T],
        /,
        *,
        lanes: int,
        max_depth: int | None = None,
        lane_max_depth: int | None = None,
    ) -> Pool[T]:
        """A pool with this number of ordered lanes, for payloads of this type; a handler works on them."""
        return Pool(
            self._store,
            self.registry,
            name,
            payload,
            lanes=lanes,
            max_depth=max_depth,
            lane_max_depth=lane_max_depth,
        )

    # Working, listening

    def worker(
        self,
        *,
        queues: Sequence[str] | Mapping[str, int | None] | None = None,
        concurrency: int | None = None,
        grace: Duration | None = None,
        name: str | None = None,
        signals: bool = False,
        prefetch: int | None = None,
        until_empty: bool = False,
        strict: bool = False,
        max_jobs: int | None = None,
        max_memory: int | str | None = None,
    ) -> "Worker":
        """A worker for this App's tasks: `.run()`, `await .arun()`, or a `with` block. None: as configured.

        `until_empty`: it ends when nothing is left that it could come to run; it waits for retries and blocked jobs,
        and not for jobs due later than in a minute. `strict`: queues in the order given, not in rotation.
        `max_jobs`, `max_memory` (bytes, or text such as "512MiB"): it stops gently after this.
        """
        from holdfast.worker import Worker

        worker = Worker(
            self,
            queues=queues,
            concurrency=concurrency,
            grace=grace,
            name=name,
            signals=signals,
            prefetch=prefetch,
            until_empty=until_empty,
            strict=strict,
            max_jobs=max_jobs,
            max_memory=max_memory,
        )
        self.registry.workers.add(worker)
        return worker

    def manager(
        self,
        target: str | None = None,
        /,
        *,
        min: int | None = None,
        max: int | None = None,
        interval: Duration | None = None,
        idle_before_down: Duration | None = None,
        queues: Sequence[str] | Mapping[str, int | None] | None = None,
        concurrency: int | None = None,
        grace: Duration | None = None,
        name: str | None = None,
        signals: bool = False,
        arguments: Sequence[str] = (),
    ) -> "Manager":
        """Keeps `min` to `max` worker processes for this App: `.run()` or `await .arun()`. None: as configured.

        `target` is this App's `module:name`, by which the workers find it; None: as the configuration names it.
        `queues`, `concurrency` and `grace` are those of each worker; `arguments`: further ones, as for
        `holdfast worker`.
        """
        from holdfast.manager import Manager

        return Manager(
            self,
            target,
            min=min,
            max=max,
            interval=interval,
            idle_before_down=idle_before_down,
            queues=queues,
            concurrency=concurrency,
            grace=grace,
            name=name,
            signals=signals,
            arguments=arguments,
        )

    def middleware(self, middleware: M, /) -> M:
        """Put this around every attempt of every task; a decorator. The first one is the outermost."""
        called = middleware if inspect.isroutine(middleware) else type(middleware).__call__
        if not inspect.iscoroutinefunction(called) and not inspect.isgeneratorfunction(called):
            raise InvalidOption(
                "A middleware is `async def(ctx, proceed)`, or a generator `def(ctx)` with one yield.",
                option="middleware",
            )
        self.middlewares.append(middleware)
        return middleware

    def on(
        self, kind: type[E], /, *, everywhere: bool = False
    ) -> Callable[[Callable[[E], object]], Callable[[E], object]]:
        """Call a function, sync or async, with every event of this kind in this process. A decorator.

        `everywhere`: also with those of other processes that share the store, while it is open here. Some may be lost.
        """
        _check_kind(kind)

        def register(listener: Callable[[E], object]) -> Callable[[E], object]:
            self._store.bus.on(kind, listener, everywhere=everywhere)
            return listener

        return register

    @overload
    def subscribe(
        self, /, *, job_id: str | None = None, queue: str | None = None, everywhere: bool = True
    ) -> EventStream[Event]: ...
    @overload
    def subscribe(
        self, kind: type[E], /, *, job_id: str | None = None, queue: str | None = None, everywhere: bool = True
    ) -> EventStream[E]: ...
    def subscribe(
        self,
        kind: type[Any] = Event,
        /,
        *,
        job_id: str | None = None,
        queue: str | None = None,
        everywhere: bool = True,
    ) -> EventStream[Any]:
        """Events as a stream: `for` or `async for`, in a `with` or an `async with` block.

        Those of all processes that share the store, some of which may be lost, or of this process alone.
        """
        _check_kind(kind)
        return EventStream(self._store, kind, job_id=job_id, queue=queue, everywhere=everywhere)

    # For tests

    def swapped(self, engine: Engine, runtime: Runtime) -> AbstractContextManager[None]:
        """Another engine and another clock under this App for the length of a `with` block. Used by the test kit."""
        return self._store.swapped(engine, runtime)

    def __repr__(self) -> str:
        return f"<App with {len(self.registry)} tasks>"


def _check_kind(kind: Any) -> None:
    if not isinstance(kind, type) or not issubclass(kind, Event):
        raise InvalidOption("`kind` must be a class of holdfast.events.", option="kind")
