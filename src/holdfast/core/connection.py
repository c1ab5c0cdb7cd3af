"""The App's connection to its store: settings, codecs, event bus, and the engine of this process.

The App shares it with everything it makes: tasks, client, control, handles, queues, pools. Making one does no I/O. The
first call that needs the engine opens it, on any thread or event loop. After a fork, the child's first call opens an
engine of its own.
"""

import asyncio
import atexit
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import WeakMethod, finalize

from holdfast.blocking import LoopThread, move_to_loop
from holdfast.codec import Codec, JsonCodec, Limits, MsgpackCodec, codec_for
from holdfast.core import isolated
from holdfast.core.process import PerLoop, Process
from holdfast.engine import Engine
from holdfast.model.address import mask_password
from holdfast.model.produce import DepthLimit
from holdfast.runtime import Runtime, SystemRuntime
from holdfast.telemetry.bus import Bus

if TYPE_CHECKING:
    from holdfast.config import Config

DEFAULT_URL = "sqlite:///holdfast.db"
DEFAULT_NAMESPACE = "holdfast"

_logger = logging.getLogger("holdfast")


class QueueLimits(NamedTuple):
    """How many live jobs a queue may hold, and each lane of it. 0: any number."""

    max_depth: int
    lane_max_depth: int


class StoreConnection:
    """`url`, `codec` and `options` come from code. Where one is None or absent, the configuration decides.

    `url` may be a function. It is called whenever the store is needed; another answer than before opens another store.
    """

    def __init__(self, url: str | Callable[[], str] | None = None, codec: Codec | None = None, **options: Any) -> None:
        self.runtime: Runtime = SystemRuntime()
        self.bus = Bus(self.runtime)
        self._url = url if isinstance(url, str) else None
        self._find_url = url if callable(url) else None
        self._codec = codec
        self._codecs: dict[tuple[str, int], Codec] = {}
        self._options = {name: value for name, value in options.items() if value is not None}
        self.flags: dict[str, str] = {}
        """The flag of the command line that has given an option, by option, such as `url`."""
        self._config: Config | None = None
        self._limits: dict[str, QueueLimits] = {}
        self._epoch = 0
        self._processes: dict[tuple[int, int], Process] = {}
        self.is_swapped = False
        """True inside `swapped`: the address is not that of the store in use."""
        self._in_memory: dict[int, Engine] = {}
        finalize(self, _abandon, self._processes, self.runtime).atexit = False

    # Settings

    @property
    def config(self) -> "Config":
        if self._config is None:
            from holdfast.config import load
            from holdfast.engines import settings_tables

            self._config = load(self.runtime, engine_tables=settings_tables())
        return self._config

    def limit_depth(self, queue: str, max_depth: int | None, lane_max_depth: int | None) -> None:
        """Limits given in code replace the configured ones, for every producer of this App."""
        if max_depth is not None or lane_max_depth is not None:
            limits = self._limits.get(queue, QueueLimits(0, 0))
            self._limits[queue] = QueueLimits(max_depth or limits.max_depth, lane_max_depth or limits.lane_max_depth)

    def queue_limits(self, queue: str) -> QueueLimits:
        """The limits of a queue, from code and configuration."""
        settings = self.config.queue(queue)
        limits = self._limits.get(queue, QueueLimits(0, 0))
        return QueueLimits(limits.max_depth or settings.max_depth, limits.lane_max_depth or settings.lane_max_depth)

    def depth_limits(self, queues: Iterable[str]) -> tuple[DepthLimit, ...]:
        """The limits of these queues, as an engine takes them."""
        config = self._config or self.config
        if not self._limits and not config.queues:
            return ()
        found = []
        for queue in dict.fromkeys(queues):
            limits = self.queue_limits(queue)
            if limits.max_depth:
                found.append(DepthLimit(queue, limits.max_depth))
            if limits.lane_max_depth:
                found.append(DepthLimit(queue, limits.lane_max_depth, each_lane=True))
        return tuple(found)

    @property
    def url(self) -> str:
        if self._find_url is not None:
            self._follow_url(self._find_url())
        return self._url or self.config.url or DEFAULT_URL

    def _follow_url(self, url: str) -> None:
        if self._url not in (None, url):
            self._epoch += 1  # the next call opens the other store; `close` and the exit close the earlier one, too
        self._url = url

    @property
    def url_source(self) -> str:
        """How the code gives the address, for people; empty: it does not."""
        if self._find_url is not None:
            return "App(function)"
        return "" if self._url is None else "App(url)"

    @property
    def url_conflict(self) -> str:
        """A warning if the environment and the code name different stores, with both addresses. A flag is no code."""
        of_environment, of_code = self.config.environment_url, self._url
        if of_environment is None or of_code in (None, of_environment) or "url" in self.flags:
            return ""
        return (
            f"HOLDFAST_URL says {mask_password(of_environment)}, the code says {mask_password(str(of_code))}. "
            "The code wins; write App() to let the environment decide."
        )

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that the code gives: namespace, durability, auto_migrate."""
        return self._options

    @property
    def limits_in_code(self) -> Mapping[str, QueueLimits]:
        """Depth limits that the code gives, by queue; 0: none given."""
        return self._limits

    @property
    def namespace(self) -> str:
        return str(self._options.get("namespace", self.config.namespace) or DEFAULT_NAMESPACE)

    @property
    def address(self) -> str:
        """The store as users are shown it: a file with its whole path, a server's address without its password."""
        return self.engine_type.shown_address(self.url)

    @property
    def engine_type(self) -> type[Engine]:
        """The class of the engine. Raises as `engines.engine_class`."""
        from holdfast.engines import engine_class

        return engine_class(self.url)

    @property
    def secrets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The addresses of the store, and the variables by which its driver finds a password: see `isolation`."""
        from holdfast.engines import engine_class

        addresses = {self.url, self.config.url or "", self.config.environment_url or ""} - {""}
        return tuple(addresses), getattr(engine_class(self.url).settings, "secret_variables", ())

    # Bytes

    def limit_bytes(self, payload: int, result: int) -> None:
        """Use these limits instead of the configured ones."""
        self._config = replace(self.config, limits=replace(self.config.limits, payload=payload, result=result))

    @property
    def codec(self) -> Codec:
        """For payloads."""
        if self._codec is None:
            self._codec = JsonCodec(Limits(size=self.config.limits.payload))
        return self._codec

    def codec_named(self, name: str) -> Codec:
        """The codec with this name, which is stored with the bytes it wrote."""
        own = self.codec
        if name == own.name:
            return own
        for kind in (JsonCodec, MsgpackCodec):
            if name == kind.name:
                return self._ours(kind, max(self.config.limits.payload, self.config.limits.result))
        return codec_for(name)

    def result_codec(self, codec: Codec) -> Codec:
        """For results of jobs with this codec: its `for_results`, else itself. Ours have the size limit of results."""
        codec = getattr(codec, "for_results", codec)
        if isinstance(codec, JsonCodec | MsgpackCodec) and codec.limits.size < self.config.limits.result:
            return self._ours(type(codec), self.config.limits.result)
        return codec

    def _ours(self, kind: type[JsonCodec | MsgpackCodec], size: int) -> Codec:
        """One of our own codecs, made once: it caches decoders by type."""
        found = self._codecs.get((kind.name, size))
        if found is None:
            found = self._codecs.setdefault((kind.name, size), kind(Limits(size=size)))
        return found

    # The engine

    @property
    def process(self) -> Process:
        """What this App has opened in this process; nothing at first."""
        if self._find_url is not None:
            self._follow_url(self._find_url())
        key = os.getpid(), self._epoch
        found = self._processes.get(key)
        if found is None:  # `setdefault` keeps the first of two threads; a lock could be held during a fork
            found = self._processes.setdefault(key, Process(self._engine_of(key[0]), self.runtime, self.bus))
        return found

    def _engine_of(self, pid: int) -> Engine:
        engine = self._in_memory.get(pid)
        if engine is None:
            isolated.refuse_store()
            engine = self._make_engine()
            if not engine.capabilities.shared_between_processes:
                return self._in_memory.setdefault(pid, engine)  # its jobs are in this object, open or closed
        return engine

    @property
    def durability(self) -> str:
        """The durability in use: what the store was found to have, else the chosen one, else the best of the engine."""
        engine = self.process.engine
        if engine.found_durability is not None:
            return engine.found_durability[0]
        if not engine.capabilities.durable:
            return "none"
        chosen: str | None = self._options.get("durability") or self.config.durability
        return chosen or "durable"

    def _make_engine(self) -> Engine:
        from holdfast.engines import engine_class, open_engine

        config, url = self.config, self.url
        if conflict := self.url_conflict:
            _logger.warning("%s", conflict)
        settings = engine_class(url).settings
        options: dict[str, Any] = {} if settings is None else asdict(cast(Any, config.engine(settings)))
        for name in ("namespace", "durability", "auto_migrate"):
            value = self._options.get(name, getattr(config, name))
            if value is not None and value != DEFAULT_NAMESPACE:
                options[name] = value
        return open_engine(url, runtime=self.runtime, **options)

    async def engine(self) -> Engine:
        """The open engine. A caller without an event loop moves to the loop thread if the engine needs a loop."""
        process = self.process
        if not process.open:
            await move_to_loop()
            await process.open_engine()
            atexit.register(_at_exit, WeakMethod(process.abandon))
        if asyncio._get_running_loop() is None and not process.engine.capabilities.blocking_calls:
            await move_to_loop()
        return process.engine

    async def engine_without_migration(self) -> Engine:
        """The open engine. If it is opened for this, a store of another schema is refused and not migrated."""
        process = self.process
        if not process.open:
            process.engine.refuse_migration()
        return await self.engine()

    @property
    def is_missing(self) -> bool:
        """True if the store is a file or folder that was not made yet, or was removed."""
        path = self.process.engine.store_file
        try:
            return bool(path) and not self.process.open and not self.runtime.fs.size(path)
        except OSError:  # no permission, or not a folder: the engine refuses the store, and says why
            return False

    async def per_loop(self) -> PerLoop:
        """The objects of the running event loop, or of that of the loop thread."""
        await move_to_loop()
        await self.engine()
        return self.process.per_loop()

    def loop_thread(self) -> LoopThread:
        """Where blocking calls run what needs an event loop; see `blocking`."""
        return self.process.loop_thread()

    async def close(self) -> None:
        pid = os.getpid()
        if not any(key[0] == pid for key in tuple(self._processes)):
            return
        await move_to_loop()
        await self.bus.wait_for_listeners()  # they may use the store
        for key in [key for key in self._processes if key[0] == pid]:  # more than one if the address has changed
            process = self._processes.pop(key, None)
            if process is not None:
                self._epoch += 1  # the next call opens a new engine
                await process.close()
                process.close_loop_thread(wait=False)

    # For tests

    @contextmanager
    def swapped(self, engine: Engine, runtime: Runtime) -> Iterator[None]:
        """Use another engine and another clock under the same App, until the end of the block."""
        before = self.runtime, self._processes, self._in_memory, self._epoch
        self.is_swapped = True
        find_url, self._find_url = self._find_url, None
        feed, self.bus.feed = self.bus.feed, None
        process = Process(engine, runtime, self.bus)
        self.runtime, self._processes = runtime, {(process.pid, self._epoch): process}
        self._in_memory = {process.pid: engine}  # if it is closed and opened again, it must not be the real store
        try:
            yield
        finally:
            for opened in (process, *self._processes.values()):
                opened.close_loop_thread(wait=True)
                opened.caller_loop.close()
            self.runtime, self._processes, self._in_memory, self._epoch = before
            self._find_url = find_url
            self.is_swapped = False
            self.bus.attach(feed)


def _abandon(processes: dict[tuple[int, int], Process], runtime: Runtime) -> None:
    for (pid, _), process in processes.items():
        if pid == os.getpid() and process.has_threads:
            # The garbage collector may run this on one of the threads that `abandon` waits for.
            runtime.thread(process.abandon, name="holdfast-abandoned")


def _at_exit(abandon: "WeakMethod[Any]") -> None:
    method = abandon()
    if method is not None:
        method()
