"""The Redis and Valkey engine: many hosts, one server in memory.

The rules run in the server, as one script (`lua/`, `scripts.py`): each call is one round trip and one atomic step. This
package holds the client: pipelined connections for each event loop (`primary.py`, `connections.py`), commands and
answers as bytes (`calls.py`, `records.py`), and errors that say whether anything was written (`failures.py`).

An engine belongs to the process that opened it. In a forked child it is not open. The child does not touch what it
inherited, because its parent uses the same sockets.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.engine import Capabilities, Engine, RenewalConnection, Subscription
from holdfast.engines.ended_processes import EndedProcesses
from holdfast.engines.redis import answers, audit, calls, failures
from holdfast.engines.redis.cluster import ClusterPrimaries
from holdfast.engines.redis.durability import ServerDurability
from holdfast.engines.redis.history import History
from holdfast.engines.redis.notifier import Notifier
from holdfast.engines.redis.presence import Presence, SessionHeartbeat
from holdfast.engines.redis.primary import Connect, Primary
from holdfast.engines.redis.queue_names import QueueNames
from holdfast.engines.redis.queues_apart import QueuesApart
from holdfast.engines.redis.renewal_connection import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, RedisRenewalConnection
from holdfast.engines.redis.routes import ManyPrimaries, OnePrimary
from holdfast.engines.redis.scripts import Script, whole_script
from holdfast.engines.redis.servers import QUEUES, Servers
from holdfast.engines.redis.settings import RedisSettings
from holdfast.engines.redis.unfinished import ContinueWork
from holdfast.engines.topics import Topics
from holdfast.errors import (
    ConfigError,
    EngineError,
    EngineUnavailable,
    HoldfastError,
    OutcomeUnknown,
    SchemaMismatch,
)
from holdfast.model.command import A, Command
from holdfast.model.instants import SECOND, Micros
from holdfast.model.observe import Audit, AuditAnswer, Now, Prune
from holdfast.model.operate import ScopeAnswer
from holdfast.model.reads import READS
from holdfast.model.work import Heartbeat, Renew
from holdfast.runtime import Runtime
from holdfast.telemetry.events import StoreEvent

_logger = logging.getLogger("holdfast.redis")

OLDEST_SERVER = (6, 2)
LONGEST_LEAD_US = 5 * SECOND
"""A client may have seen a later time than the server's clock has: after a failover, or a step of the clock. Up to this
lead the answers to this client do not go back. A longer lead was a wrong time, and is dropped (TM3)."""

_WITHOUT_REPLICAS = READS | {Renew, Heartbeat, SessionHeartbeat}
"""Commands that do not wait for replicas. If a failover loses a renewal, the job may run again sooner."""
Primaries = Primary | ClusterPrimaries
_NAMESPACE = re.compile(r"[a-z_][a-z0-9_]{0,30}")


class RedisEngine(Engine):
    """For tests: `fast_paths` false leaves everything to the rules; `script` is another version of the script."""

    scheme = failures.SCHEME
    settings = RedisSettings

    def __init__(
        self,
        url: str,
        runtime: Runtime,
        *,
        namespace: str = "holdfast",
        durability: str | None = None,
        auto_migrate: bool = False,
        fast_paths: bool = True,
        script: Script | None = None,
        **options: Any,
    ) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise ConfigError(
                f"The namespace {namespace!r} must be a lower-case word of at most 31 letters, digits and underscores.",
                key="namespace",
            )
        self._runtime = runtime
        self._namespace = namespace
        self._servers = Servers(url, namespace, runtime, options)
        settings = self._servers.settings
        self.place = self._servers.place
        """The address for messages: without user name and password."""
        self._notify = settings.notify
        self._fast = fast_paths
        self._script = script
        self._offset = 0
        self._not_before_us = 0
        self._pid = 0
        self._topics = Topics()
        self._notifier: Notifier | None = None
        self._routes: OnePrimary | ManyPrimaries | None = None
        self._presence: Presence | None = None
        self._ended_processes = EndedProcesses(self.scheme, runtime)
        self.durability = ServerDurability(
            durability,
            self.place,
            replicas=settings.replicas,
            replica_timeout_s=settings.replica_timeout,
            allow_eviction=settings.allow_eviction,
        )
        self.history = History(self.place, runtime.wall)
        self._set_primary()
        self._inherited: list[object] = []

    def _set_primary(self) -> None:
        """New connections, which are opened when they are needed."""
        self._primary = self._servers.primary(self._make_primary)
        self._apart = self._queues_apart(self._primary)

    def _make_primary(self, connect: Connect, place: str) -> Primary:
        script = whole_script() if self._script is None else self._script
        return Primary(connect, place, script, self._runtime, self._options, self._refusal)

    def _queues_apart(self, primary: Primaries) -> QueuesApart | None:
        """Divides commands by queue, where each queue has a root of its own."""
        if self._servers.mode != QUEUES:
            return None
        names = QueueNames(self._namespace, self._runtime, primary.command)
        return QueuesApart(
            self._namespace, partial(self._perform_on_root, primary), names, self._receive_from, self.scheme
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
            await self._check_server()
        except BaseException:
            await self._primary.close()
            self._set_primary()
            raise
        notifier = None
        if self._notify:
            self._routes = self._servers.routes()
            notifier = Notifier(self._routes, self._topics, self._runtime)
            self._servers.topology.on_change = notifier.refresh
        self._notifier = notifier
        self._pid = os.getpid()
        if notifier is not None:
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
        await self._perform_on_root(self._primary, self._servers.root, Now())

    async def _find_cluster(self) -> None:
        if await self._servers.look_for_cluster(self._primary):
            await self._primary.close()
            self._set_primary()

    def _leave_to_parent(self) -> None:
        """This is a forked child. Keep what belongs to the parent, so that the collector does not close its sockets."""
        self._inherited += [self._primary, self._topics, self._notifier, self._presence, self._ended_processes]
        self._pid = 0
        self._notifier = self._presence = None
        self._servers.topology.on_change = None
        self._ended_processes = EndedProcesses(self.scheme, self._runtime)
        self._topics = Topics()
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
            self._primary.close_now()
            self._topics.close()
            self._ended_processes.close()

    async def migrate(self) -> tuple[str, ...]:
        """Write the number of the format, which the first call does. There is no older format to migrate from."""
        await self._find_cluster()
        is_new = await self._primary.command("HEXISTS", f"{self._servers.root}meta", "format") == 0
        await self._check_server()
        if self._pid != os.getpid():
            await self._primary.close()
            self._set_primary()
        return (f"format {failures.FORMAT}",) if is_new else ()

    # Commands

    async def perform(self, command: Command[A]) -> A:
        if self._pid != os.getpid():
            raise EngineUnavailable(
                f"Redis at {self.place} is not open in this process. Nothing was written. Call open() first.",
                engine=self.scheme,
            )
        if self._apart is not None:
            return await self._apart.perform(command)
        return await self._perform_on_root(self._primary, self._servers.root, command)

    async def _perform_on_root(self, primary: Primaries, root: str, command: Command[A], *, first_rank: int = 0) -> A:
        """Carry out a command over these connections. `first_rank`: of the first lease of its claim."""
        if isinstance(command, Audit):
            return await self._audit(primary, root)  # type: ignore[return-value]  # the type that belongs to the command
        not_before_us = self._not_before_us
        wait = self.durability.wait
        if wait is not None and type(command) in _WITHOUT_REPLICAS:
            wait = None
        try:
            reply = await primary.call(root, calls.encode(command), wait, first_rank)
            if wait is not None and reply.replicas < wait[0]:
                self.durability.check_replicas(reply.replicas, calls.verb_of(type(command)), failures.ids_of(command))
        except OutcomeUnknown as unknown:
            raise failures.with_ids(unknown, command) from unknown.__cause__
        head, answer = answers.decode(command, reply.values)
        self.history.note(root, head.born, head.tip, reply.run)
        self._note_time(head.wall, not_before_us)
        if head.begun:
            answer = await self._finish(primary, root, head.begun, answer)
        if type(command) is Prune:
            await self.durability.check_again(primary.commands, head.wall)
        return answer

    async def _audit(self, primary: Primaries, root: str) -> AuditAnswer:
        now = await self._perform_on_root(primary, root, Now())
        return AuditAnswer(at=now.at, problems=await audit.problems(primary.command, root, now.at.wall))

    async def _finish(self, primary: Primaries, root: str, begun: tuple[str, ...], answer: A) -> A:
        """Do the rest of a clear or resize, piece by piece. Other clients have their turns in between."""
        count = 0
        for name in begun:
            more = True
            while more:
                try:
                    piece = await self._perform_on_root(primary, root, ContinueWork(name=name))
                except EngineError as error:
                    if isinstance(answer, ScopeAnswer):
                        raise OutcomeUnknown(
                            f"The clear has begun and stopped before its end: {error} A worker will continue it.",
                            verb="clear",
                            engine=self.scheme,
                        ) from error
                    _logger.warning(
                        "Redis at %s: the end of a resize stopped (%s). The next claim or prune will continue it.",
                        self.place,
                        error,
                    )
                    return answer
                count, more = count + piece.count, piece.more
        if isinstance(answer, ScopeAnswer):
            return replace(answer, count=answer.count + count)
        return answer

    def _refusal(self, error: failures.ReplyError, root: str, run: str) -> HoldfastError:
        """The error for a call that the script has refused: `HISTORY born tip`, or `FORMAT number`."""
        kind, _, rest = error.text.partition(" ")
        if kind == "HISTORY":
            return self.history.lost(root, rest, run)
        if kind == "FORMAT":
            return failures.of_format(rest, self.place)
        return EngineError(f"Redis at {self.place}: {error.text}.", engine=self.scheme)

    def _options(self, root: str, run: str, first_rank: int) -> bytes:
        """The second argument of a call."""
        options: dict[str, Any] = self.history.options(root, run)
        options["format"] = failures.FORMAT
        options["channel"] = self._servers.channel_prefix(root)
        if self._servers.sharded:
            options["sharded"] = True
        if first_rank:
            options["first_rank"] = first_rank
        if self._offset:
            options["offset"] = self._offset
        if self._not_before_us:
            options["last"] = self._not_before_us
        if not self._fast:
            options["fast"] = False
        return calls.encode_map(options)

    def _note_time(self, wall: int, not_before_us: int) -> None:
        """`wall` is the time of an answer, `not_before_us` the earliest time that its call asked for."""
        if wall >= self._not_before_us:
            self._not_before_us = wall
        elif wall < not_before_us and self._not_before_us - wall > LONGEST_LEAD_US:  # TM3: the server has dropped it
            _logger.warning(
                "The clock of Redis at %s is %.1f s behind a time that this process has seen: it was set back, or "
                "another server answers now. From now on the server's time counts.",
                self.place,
                (self._not_before_us - wall) / SECOND,
            )
            self._not_before_us = wall

    def renewal_connection(self) -> RenewalConnection:
        primary = self._servers.primary(self._make_primary, CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, CALL_TIMEOUT_S)
        apart = self._queues_apart(primary)
        perform = partial(self._perform_on_root, primary, self._servers.root) if apart is None else apart.perform
        return RedisRenewalConnection(perform, self._notifier)

    # Workers that have ended

    @property
    def process_name(self) -> str:
        return self._ended_processes.process_name

    def keep_process_record(self) -> None:
        self._ended_processes.keep_record()

    async def ended_workers(self) -> tuple[str, ...]:
        ended = await self._runtime.run_blocking(self._ended_processes.names)
        if not ended:
            return ()
        return self._ended_processes.workers_of(ended, (await self.workers()).workers)

    async def disown_silent(self, watched_us: Micros) -> dict[str, int] | None:
        return None if self._presence is None else await self._presence.disown_silent(watched_us)

    # Notifications

    def subscribe(self, *topics: str) -> Subscription:
        subscription = self._topics.subscribe(*topics)
        if self._notifier is not None:
            self._notifier.subscribe(topics)
        return subscription

    def _receive_from(self, queue: str) -> None:
        """This process uses a queue: replies, and messages to its workers, may be published in channels of it."""
        routes, notifier = self._routes, self._notifier
        if notifier is not None and isinstance(routes, ManyPrimaries) and routes.add_queue(queue):
            notifier.subscribe_again()

    @property
    def feed_kinds(self) -> frozenset[str]:
        return frozenset() if self._notifier is None else self._notifier.feed.kinds

    def publish(self, message: bytes) -> None:
        if self._notifier is not None:
            self._notifier.feed.publish(message)

    def listen_to_feed(self, kinds: Iterable[str], on_message: Callable[[bytes], None]) -> None:
        if self._notifier is not None:
            self._notifier.listen_to_feed(kinds, on_message)

    @property
    def clock_offset(self) -> int:
        return self._offset

    @clock_offset.setter
    def clock_offset(self, value: int) -> None:
        self._offset = value
