"""An engine whose processes run on one host and share files: notifications, feed and liveness between them."""

import asyncio
import logging
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import closing

from holdfast.engine import Engine, Subscription
from holdfast.engines.host import HostProcesses, has_sockets
from holdfast.engines.topics import Topics
from holdfast.errors import ConfigError, EngineUnavailable
from holdfast.file_locks import Gate
from holdfast.runtime import Runtime, ThreadCall

log = logging.getLogger("holdfast")

BLOCKED_AFTER_S = 1.0
"""A gate that is not free for this long counts as blocked. A batch holds it for tens of milliseconds."""
NAMESPACE = re.compile(r"[a-z_][a-z0-9_]{0,30}")


class HostEngine(Engine):
    """What such engines have in common."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._topics = Topics()
        self._processes: HostProcesses | None = None
        self._pid = 0
        """The process that has opened the store; 0: it was never open."""
        self._opening: ThreadCall[None] | None = None

    # Opening and closing

    @abstractmethod
    def open_now(self) -> None:
        """Open, unless it is open. Blocks the calling thread."""

    async def open(self) -> None:
        """A caller that is cancelled leaves the opening at work. The next one waits for it and starts no other."""
        if self._opening is None or self._opening.done():
            self._opening = self._runtime.start_blocking(self.open_now)
        await asyncio.wrap_future(self._opening)

    async def close(self) -> None:
        if self._opening is not None and not self._opening.done():
            await self._runtime.run_blocking(self._opening.exception)  # no limit: to open a store has limits
        if self._is_in_its_process():
            await self._runtime.run_blocking(self.close_now)

    # The gate

    @abstractmethod
    def _open_gate(self) -> Gate:
        """The lock that all writers of all processes take in order."""

    async def blocked_by(self) -> str:
        return await self._runtime.run_blocking(self._blocked_by)

    def _blocked_by(self) -> str:
        with closing(self._open_gate()) as gate:
            holder = gate.blocked_by(BLOCKED_AFTER_S)
            return f"{gate.path} is locked. {holder}" if holder else ""

    # Processes

    def _belong_to_this_process(self) -> None:
        self._pid = os.getpid()

    def _is_in_its_process(self) -> bool:
        return self._pid == os.getpid()

    def _check_process(self) -> None:
        if self._pid not in (0, os.getpid()):
            raise EngineUnavailable(
                "This connection was opened before a fork and belongs to the parent process. Nothing was written. "
                "Open the store again in the child process."
            )

    def _open_processes(self, file: str, namespace: str) -> None:
        """Take a record for this process. All processes that share `file` find each other."""
        if not has_sockets():
            return
        try:
            self._processes = HostProcesses(file, self._runtime, self._topics.notify, namespace=namespace)
        except OSError as error:  # for example, the path of the folder is too long for a socket
            log.warning(
                "Processes cannot notify each other, so they poll: %s. Set XDG_RUNTIME_DIR to a short path.",
                error,
            )

    def _close_processes(self) -> None:
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.close()

    @property
    def process_name(self) -> str:
        return "" if self._processes is None else self._processes.name

    def keep_process_record(self) -> None:
        if self._processes is not None:
            self._processes.outlives_close = True

    async def known_processes(self) -> frozenset[str] | None:
        return None if self._processes is None else frozenset(self._processes.names())

    async def ended_workers(self) -> tuple[str, ...]:
        processes = self._processes
        if processes is None:
            return ()
        records = (await self.workers()).workers
        ended = {name for name in {record.process for record in records} if processes.has_ended(name)}
        return tuple(record.worker for record in records if record.process in ended)

    # Notifications and feed

    def _notify(self, topics: frozenset[str]) -> None:
        self._topics.notify(topics)
        if self._processes is not None:
            self._processes.notify(topics)

    def subscribe(self, *topics: str) -> Subscription:
        return self._topics.subscribe(*topics)

    @property
    def feed_kinds(self) -> frozenset[str]:
        processes = self._processes
        return frozenset() if processes is None else processes.feed.feed_kinds

    def publish(self, message: bytes) -> None:
        processes = self._processes
        if processes is not None:
            processes.feed.publish(message)

    def listen_to_feed(self, kinds: Iterable[str], on_message: Callable[[bytes], None]) -> None:
        processes = self._processes
        if processes is not None:
            processes.feed.listen_to_feed(kinds, on_message)

    # Time

    @property
    def clock_offset(self) -> int:
        return self._runtime.clock_offset

    @clock_offset.setter
    def clock_offset(self, value: int) -> None:
        self._runtime.clock_offset = value


def absolute_path(path: str) -> str:
    """The path of a store, from its address. `~` is the home of the user: no shell has seen the address."""
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        user = expanded.partition("/")[0]
        raise ConfigError(f"{path!r}: the home of {user} is not known. Write the whole path.", key="url")
    return os.path.abspath(expanded)


def checked_namespace(namespace: str) -> str:
    if not NAMESPACE.fullmatch(namespace):
        raise ConfigError(
            f"The namespace {namespace!r} must be a lower-case word of at most 31 letters, digits and underscores.",
            key="namespace",
        )
    return namespace
