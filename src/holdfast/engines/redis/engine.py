"""The Redis and Valkey engine: many hosts, one server in memory.

The rules run in the server, as one script (`lua/`, `scripts.py`): each call is one round trip and one atomic step. This
package holds the client: pipelined connections for each event loop (`primary.py`, `connections.py`), commands and
answers as bytes (`script_caller.py`, `calls.py`, `answers.py`, `records.py`), and errors that say whether anything was
written (`failures.py`).

An engine belongs to the process that opened it. In a forked child it is not open. The child does not touch what it
inherited, because its parent uses the same sockets.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from holdfast.engine import Capabilities, RenewalConnection
from holdfast.engines.redis import failures
from holdfast.engines.redis.acl import check_rights
from holdfast.engines.redis.durability import ServerDurability
from holdfast.engines.redis.examine import check_format, check_server_version, examine_servers
from holdfast.engines.redis.history import StoreHistory
from holdfast.engines.redis.notifier import ChannelNotifier
from holdfast.engines.redis.presence import Presence
from holdfast.engines.redis.queue_names import QueueNames
from holdfast.engines.redis.queues_apart import QueuesApart
from holdfast.engines.redis.renewal_connection import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, RedisRenewalConnection
from holdfast.engines.redis.routes import ManyPrimaries, OnePrimary
from holdfast.engines.redis.script_caller import Primaries, ScriptCaller
from holdfast.engines.redis.scripts import ServerScript, whole_script
from holdfast.engines.redis.servers import QUEUES, Servers, options_in_address
from holdfast.engines.redis.settings import RedisSettings
from holdfast.engines.server_engine import ServerEngine
from holdfast.errors import (
    ConfigError,
    EngineUnavailable,
    SchemaMismatch,
)
from holdfast.model.command import A, Command
from holdfast.model.findings import Report
from holdfast.model.instants import Micros
from holdfast.model.observe import Now
from holdfast.runtime import Runtime
from holdfast.telemetry.events import StoreEvent

_logger = logging.getLogger("holdfast.redis")

OLDEST_SERVER = (6, 2)
_NAMESPACE = re.compile(r"[a-z_][a-z0-9_]{0,30}")


class RedisEngine(ServerEngine[ChannelNotifier]):
    """For tests: `fast_paths` false leaves everything to the rules; `script` is another version of the script;
    `caller_type` may be another class."""

    scheme = failures.SCHEME
    settings = RedisSettings
    caller_type: ClassVar[type[ScriptCaller]] = ScriptCaller

    @classmethod
    def settings_in_address(cls, url: str) -> Mapping[str, object]:
        return options_in_address(url)

    def __init__(
        self,
        url: str,
        runtime: Runtime,
        *,
        namespace: str = "holdfast",
        durability: str | None = None,
        auto_migrate: bool = False,
        fast_paths: bool = True,
        script: ServerScript | None = None,
        **options: Any,
    ) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise ConfigError(
                f"The namespace {namespace!r} must be a lower-case word of at most 31 letters, digits and underscores.",
                key="namespace",
            )
        super().__init__(runtime)
        self._namespace = namespace
        self._servers = Servers(url, namespace, runtime, options)
        settings = self._servers.settings
        self.place = self._servers.place
        """The address for messages: without user name and password."""
        self._notify = settings.notify
        self._routes: OnePrimary | ManyPrimaries | None = None
        self._presence: Presence | None = None
        self.durability = ServerDurability(
            durability,
            self.place,
            replicas=settings.replicas,
            replica_timeout_s=settings.replica_timeout,
            allow_eviction=settings.allow_eviction,
        )
        self.history = StoreHistory(self.place, runtime.wall)
        self._caller = self.caller_type(
            self._servers, self.durability, self.history, runtime, script or whole_script(), fast=fast_paths
        )
        self._set_primary()

    def _set_primary(self) -> None:
        """New connections, which are opened when they are needed."""
        self._primary = self._servers.primary(self._caller.make_primary)
        self._apart = self._queues_apart(self._primary)

    def _queues_apart(self, primary: Primaries) -> QueuesApart | None:
        """Divides commands by queue, where each queue has a root of its own."""
        if self._servers.mode != QUEUES:
            return None
        names = QueueNames(self._namespace, self._runtime, primary.command)
        return QueuesApart(
            self._namespace, partial(self._caller.perform, primary), names, self._receive_from, self.scheme
        )

    @property
    def found_durability(self) -> tuple[str, str]:
        return self.durability.found, self.durability.promise

    def report_to(self, emit: Callable[[StoreEvent], None]) -> None:
        self.history.emit = emit

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # it depends on the server
        return Capabilities(
            durable=self.durability.found != "none",
            shared_between_processes=True,
            shared_between_hosts=True,
            push=self._notify if self._notifier is None else self._notifier.receives,
            user_transactions=False,
            cross_queue_atomic=self._servers.mode != QUEUES,  # S4
        )

    # Opening and closing

    async def open(self) -> None:
        if self._pid == os.getpid():
            return
        if self._pid:
            self._leave_to_parent()
        try:
            with failures.opening(self.place, "open"):
                await self._check_server()
                await self._open_notifier()
        except BaseException:
            notifier, self._notifier, self._presence = self._notifier, None, None
            if notifier is not None:
                await self._runtime.run_blocking(notifier.close)
            await self._primary.close()
            self._set_primary()
            raise
        self._pid = os.getpid()

    async def _open_notifier(self) -> None:
        if self._notify:
            self._routes = self._servers.routes()
            self._notifier = notifier = ChannelNotifier(self._routes, self._topics, self._runtime)
            self._servers.topology.on_change = notifier.wake
            self._presence = Presence(self.perform, notifier, self._runtime, queues_apart=self._servers.mode == QUEUES)
            await self._runtime.run_blocking(notifier.wait_ready)

    async def _check_server(self) -> None:
        await self._find_cluster()
        server = await self._primary.server()
        version = server.get("redis_version", "")
        numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
        if numbers and numbers < OLDEST_SERVER:
            wanted = ".".join(map(str, OLDEST_SERVER))
            raise SchemaMismatch(
                f"The server at {self.place} is too old: Redis {version}. Holdfast needs Redis {wanted} or newer, or "
                "Valkey.",
                found=version,
                wanted=wanted,
                engine=self.scheme,
            )
        self._servers.note_version(numbers)
        await self._servers.check_mode(self._primary)
        await self.durability.check(*await self._primary.commands())
        await self._check_rights()
        await self._caller.perform(self._primary, self._servers.root, Now())

    async def _check_rights(self) -> None:
        servers = self._servers
        channel = servers.channel_prefix(servers.root)
        await check_rights(self._primary.command, servers.root, channel, sharded=servers.sharded)

    async def _find_cluster(self) -> None:
        if await self._servers.look_for_cluster(self._primary):
            await self._primary.close()
            self._set_primary()

    def _leave_to_parent(self) -> None:
        super()._leave_to_parent()
        self._inherited += [self._primary, self._presence]
        self._presence = None
        self._servers.topology.on_change = None
        self._set_primary()

    async def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._pid = 0
        notifier, self._notifier, self._presence = self._notifier, None, None
        if notifier is not None:
            await self._runtime.run_blocking(notifier.close)
        primary = self._primary
        self._set_primary()
        await primary.close()
        self._topics.close()
        self._ended_processes.close()

    def close_now(self) -> None:
        """Close from a thread without an event loop: when the interpreter ends, or when the App is collected."""
        if self._pid == os.getpid():
            self._pid = 0
            notifier, self._notifier, self._presence = self._notifier, None, None
            if notifier is not None:
                notifier.close()
            primary = self._primary
            self._set_primary()
            primary.close_now()
            self._topics.close()
            self._ended_processes.close()

    async def migrate(self) -> tuple[str, ...]:
        """Write the number of the format, which the first call does. There is no older format to migrate from."""
        with failures.opening(self.place, "migrate"):
            await self._find_cluster()
            is_new = await self._primary.command("HEXISTS", f"{self._servers.root}meta", "format") == 0
            await self._check_server()
        await self._close_unless_open()
        return (f"format {failures.FORMAT}",) if is_new else ()

    async def examine(self, report: Report) -> None:
        try:
            if self._pid != os.getpid():
                await self._find_cluster()
            primary, servers = self._primary, self._servers
            report(check_server_version(await primary.server(), OLDEST_SERVER))
            await examine_servers(await primary.commands(), self.durability, servers.settings, report)
            report(check_format(await primary.command("HGET", f"{servers.root}meta", "format")))
        except failures.ReplyError as error:
            raise failures.of_reply(error, self.place, "examine") from error
        finally:
            await self._close_unless_open()

    async def _close_unless_open(self) -> None:
        if self._pid != os.getpid():
            await self._primary.close()
            self._set_primary()

    # Commands

    async def perform(self, command: Command[A]) -> A:
        if self._pid != os.getpid():
            raise EngineUnavailable(
                f"Redis at {self.place} is not open in this process. Nothing was written. Call open() first.",
                engine=self.scheme,
            )
        if self._apart is not None:
            return await self._apart.perform(command)
        return await self._caller.perform(self._primary, self._servers.root, command)

    def renewal_connection(self) -> RenewalConnection:
        primary = self._servers.primary(self._caller.make_primary, CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, CALL_TIMEOUT_S)
        apart = self._queues_apart(primary)
        perform = partial(self._caller.perform, primary, self._servers.root) if apart is None else apart.perform
        return RedisRenewalConnection(perform, self._notifier)

    # Workers that have ended

    async def disown_silent(self, watched_us: Micros) -> dict[str, int] | None:
        return None if self._presence is None else await self._presence.disown_silent(watched_us)

    # Notifications

    def _receive_from(self, queue: str) -> None:
        """This process uses a queue: replies, and messages to its workers, may be published in channels of it."""
        routes, notifier = self._routes, self._notifier
        if notifier is not None and isinstance(routes, ManyPrimaries) and routes.add_queue(queue):
            notifier.subscribe_again()

    @property
    def clock_offset(self) -> int:
        return self._caller.offset_us

    @clock_offset.setter
    def clock_offset(self, value: int) -> None:
        self._caller.offset_us = value
