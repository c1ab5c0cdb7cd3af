"""What an App and everything made by it share: settings, codec, bus, and the way to the engine of this process.

An App does no I/O when it is made. The first call that needs the engine opens it, in whatever process and on whatever
thread or event loop that is. After a fork, the child's first call opens its own.
"""

import asyncio
import atexit
import logging
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakMethod, finalize

from holdfast.blocking import Portal, away_from_here, run_here
from holdfast.codec import Codec, JsonCodec, Limits, MsgpackCodec, codec_for
from holdfast.core.process import Desk, Process
from holdfast.engine import Engine
from holdfast.errors import PayloadTooLarge
from holdfast.runtime import Runtime, SystemRuntime
from holdfast.telemetry.bus import Bus

if TYPE_CHECKING:
    from holdfast.config import Config

R = TypeVar("R")

DEFAULT_URL = "sqlite:///holdfast.db"
DEFAULT_NAMESPACE = "holdfast"
_TABLES = {"sqlite": "sqlite", "postgresql": "postgres", "postgres": "postgres"}
"""Where the settings of an engine stand, by the scheme of its address."""

_logger = logging.getLogger("holdfast")


class Room(NamedTuple):
    """How many live jobs a queue may hold, and each lane of it. 0: any number."""

    queue: int
    lane: int


class Link:
    """`url`, `codec` and `options` are what code said; None and absent: the configuration decides."""

    def __init__(self, url: str | None = None, codec: Codec | None = None, **options: Any) -> None:
        self.runtime: Runtime = SystemRuntime()
        self.bus = Bus(self.runtime)
        self._url = url
        self._codec = codec
        self._codecs: dict[tuple[str, int], Codec] = {}
        self._options = {name: value for name, value in options.items() if value is not None}
        self._config: Config | None = None
        self._rooms: dict[str, Room] = {}
        """What code says of queues; 0: nothing."""
        self._epoch = 0
        self._processes: dict[tuple[int, int], Process] = {}
        self._in_memory: dict[int, Engine] = {}
        finalize(self, _abandon, self._processes, self.runtime).atexit = False

    # Settings

    @property
    def config(self) -> "Config":
        if self._config is None:
            from holdfast.config import load

            self._config = load(self.runtime)
        return self._config

    def limit_depth(self, queue: str, max_depth: int | None, lane_max_depth: int | None) -> None:
        """Limits that code gives: they go over the configured ones, for every producer of this App."""
        if max_depth is not None or lane_max_depth is not None:
            said = self._rooms.get(queue, Room(0, 0))
            self._rooms[queue] = Room(max_depth or said.queue, lane_max_depth or said.lane)

    @property
    def limited(self) -> bool:
        """Whether anybody said anything of any queue."""
        return bool(self._rooms or self.config.queues)

    def room(self, queue: str) -> Room:
        settings = self.config.queue(queue)
        said = self._rooms.get(queue, Room(0, 0))
        return Room(said.queue or settings.max_depth, said.lane or settings.lane_max_depth)

    @property
    def url(self) -> str:
        return self._url or self.config.url or DEFAULT_URL

    @property
    def place(self) -> str:
        """The store as people are shown it: a file with its whole path, an address without its password."""
        from urllib.parse import unquote, urlsplit

        parts = urlsplit(self.url)
        path = unquote(parts.path)
        if parts.netloc or not path or _TABLES.get(parts.scheme.partition("+")[0]) == "postgres":
            return shown(self.url)
        return os.path.abspath(path[1:] if f"{parts.scheme}://" in self.url else path)

    # Bytes

    @property
    def codec(self) -> Codec:
        """For payloads."""
        if self._codec is None:
            self._codec = JsonCodec(Limits(size=self.config.limits.payload))
        return self._codec

    def codec_named(self, name: str) -> Codec:
        """The codec by which stored bytes say they were written."""
        own = self.codec
        if name == own.name:
            return own
        for kind in (JsonCodec, MsgpackCodec):
            if name == kind.name:
                return self._ours(kind, max(self.config.limits.payload, self.config.limits.result))
        return codec_for(name)

    def result_codec(self, codec: Codec) -> Codec:
        """The same codec with the limit for results, where it has a lower one."""
        if isinstance(codec, JsonCodec | MsgpackCodec) and codec.limits.size < self.config.limits.result:
            return self._ours(type(codec), self.config.limits.result)
        return codec

    def _ours(self, kind: type[JsonCodec | MsgpackCodec], size: int) -> Codec:
        """One of our own codecs, made once: it keeps what it has learnt about types."""
        found = self._codecs.get((kind.name, size))
        if found is None:
            found = self._codecs.setdefault((kind.name, size), kind(Limits(size=size)))
        return found

    def check_size(self, data: bytes, limit: int) -> bytes:
        """For codecs that have no limit of their own."""
        if len(data) > limit:
            raise PayloadTooLarge(size=len(data), limit=limit)
        return data

    # The engine

    @property
    def process(self) -> Process:
        """What is open in this process; nothing at first."""
        key = os.getpid(), self._epoch
        found = self._processes.get(key)
        if found is None:  # `setdefault` takes the first of two threads, and no lock that a fork could leave taken
            found = self._processes.setdefault(key, Process(self._engine_of(key[0]), self.runtime, self.bus))
        return found

    def _engine_of(self, pid: int) -> Engine:
        engine = self._in_memory.get(pid)
        if engine is None:
            engine = self._make_engine()
            if not engine.capabilities.shared_between_processes:
                return self._in_memory.setdefault(pid, engine)  # closed or not, all it holds is in this very object
        return engine

    @property
    def durability(self) -> str:
        """The class in force: what was said, else the best that the engine can."""
        if not self.process.engine.capabilities.durable:
            return "none"
        said: str | None = self._options.get("durability") or self.config.durability
        return said or "durable"

    def _make_engine(self) -> Engine:
        from holdfast.engines import open_engine

        config, url = self.config, self.url
        if self._url is not None and config.environment_url not in (None, self._url):
            _logger.warning(
                "HOLDFAST_URL says %s, the code says %s. The code wins; write App() to let the environment decide.",
                shown(str(config.environment_url)),
                shown(self._url),
            )
        options: dict[str, Any] = {}
        table = _TABLES.get(url.partition(":")[0].partition("+")[0])
        if table is not None:
            options |= asdict(getattr(config, table))
        for name in ("namespace", "durability", "auto_migrate"):
            value = self._options.get(name, getattr(config, name))
            if value is not None and value != DEFAULT_NAMESPACE:
                options[name] = value
        return open_engine(url, runtime=self.runtime, **options)

    async def engine(self) -> Engine:
        """The engine, open: on an event loop itself, in a thread without one its blocking door."""
        process = self.process
        if not process.open:
            await self._open(process)
        if asyncio._get_running_loop() is None:
            if process.door is not None:
                return process.door
            await away_from_here()
        return process.engine

    async def _open(self, process: Process) -> None:
        await away_from_here()
        await process.opened()
        atexit.register(_at_exit, WeakMethod(process.abandon))

    async def desk(self) -> Desk:
        """What belongs to the event loop; moves to the portal's where there is none."""
        await away_from_here()
        await self.engine()
        return self.process.desk()

    async def close(self) -> None:
        if (os.getpid(), self._epoch) not in self._processes:
            return
        await away_from_here()
        process = self._processes.pop((os.getpid(), self._epoch), None)
        if process is not None:
            self._epoch += 1  # whoever comes now opens anew
            await process.close()
            process.close_portal(wait=False)

    def run(self, asked: Coroutine[Any, Any, R], *, here: bool) -> R:
        """Run what a blocking method asked for; see `blocking`."""
        if here:
            return run_here(asked, self._portal)
        answer: R = self._portal().run(asked)
        return answer

    def _portal(self) -> Portal:
        return self.process.portal()

    # For tests

    @contextmanager
    def swapped(self, engine: Engine, runtime: Runtime) -> Iterator[None]:
        """Another engine and another clock under the same App, until the end of the block."""
        before = self.runtime, self._processes, self._in_memory, self._epoch
        feed, self.bus.feed = self.bus.feed, None
        process = Process(engine, runtime, self.bus)
        self.runtime, self._processes = runtime, {(process.pid, self._epoch): process}
        self._in_memory = {process.pid: engine}  # closed and opened again, it must never be the real store
        try:
            yield
        finally:
            for opened in (process, *self._processes.values()):
                opened.close_portal(wait=True)
            self.runtime, self._processes, self._in_memory, self._epoch = before
            self.bus.attach(feed)


def shown(url: str) -> str:
    """An address as it may be shown: without the passwords in it."""
    import re
    from urllib.parse import urlsplit

    password = urlsplit(url).password
    known = url.replace(f":{password}@", ":***@", 1) if password else url
    return re.sub(r"(?i)([?&][^=&]*password=)[^&]*", r"\1***", known)


def _abandon(processes: dict[tuple[int, int], Process], runtime: Runtime) -> None:
    for (pid, _), process in processes.items():
        if pid == os.getpid() and process.has_threads:
            # The garbage collector may have come by on one of the very threads that have to be waited for.
            runtime.thread(process.abandon, name="holdfast-abandoned")


def _at_exit(abandon: "WeakMethod[Any]") -> None:
    method = abandon()
    if method is not None:
        method()
