"""The SQLite engine: one file, one host, any number of processes. The default store.

The rules are the ledger's, asked of the database (`state.py`). Three kinds of threads use it, each with a connection
of its own: the writer, which takes everything that waits into one transaction (`threads.py`, `transactor.py`); the
reader, which never waits for the writer; and a renewal connection per worker for renewals and heartbeats.
"""

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.engine import Capabilities, Engine, RenewalConnection, Subscription
from holdfast.engines.host import Doorbell, has_sockets
from holdfast.engines.sqlite.connection import SYNCHRONOUS
from holdfast.engines.sqlite.joined import Joiner
from holdfast.engines.sqlite.lookout import Lookout
from holdfast.engines.sqlite.own import BUDGET, OwnTransaction, refuse_inside
from holdfast.engines.sqlite.settings import SqliteSettings
from holdfast.engines.sqlite.threads import CommandThread
from holdfast.engines.sqlite.transactor import Clock, Place, Reader, Transactor
from holdfast.engines.sqlite.turns import Turns
from holdfast.engines.topics import Topics
from holdfast.errors import ConfigError, CorruptRecord, EngineUnavailable
from holdfast.model import work
from holdfast.model.command import A, Command
from holdfast.model.reads import READS
from holdfast.model.records import WorkerRecord
from holdfast.runtime import Runtime
from holdfast.transactions import UserConnection

log = logging.getLogger("holdfast")

NETWORK_DISKS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs"})
NAMESPACE = re.compile(r"[a-z_][a-z0-9_]{0,30}")


class SqliteEngine(Engine):
    scheme = "sqlite"
    capabilities = Capabilities(
        durable=True,
        shared_between_processes=True,
        shared_between_hosts=False,
        push=True,
        user_transactions=True,
        cross_queue_atomic=True,
        blocking_calls=True,
        concurrent_writers=False,
    )
    settings = SqliteSettings
    transaction_budget_s = BUDGET
    transactions_before_open = True

    def __init__(
        self,
        url: str,
        runtime: Runtime,
        *,
        namespace: str = "holdfast",
        durability: str = "durable",
        auto_migrate: bool = True,
        busy_timeout: float = 10.0,
    ) -> None:
        if durability not in SYNCHRONOUS:
            raise ConfigError(
                f"`durability` must be one of {', '.join(SYNCHRONOUS)}, not {durability!r}.", key="durability"
            )
        self._runtime = runtime
        self._place = Place(path_of(url), checked_namespace(namespace), durability, busy_timeout)
        self._auto_migrate = auto_migrate
        self._topics = Topics()
        self._clock = Clock(runtime)
        self._pid = 0
        self._writer: CommandThread | None = None
        self._reader: CommandThread | None = None
        self._doorbell: Doorbell | None = None
        self._lookout: Lookout | None = None
        self._turns = Turns(runtime)
        self._joiner = Joiner(
            self._place, runtime, self._clock, self._ring_for_users, self._turns, auto_migrate=auto_migrate
        )

    # Life

    async def open(self) -> None:
        if self._writer is None:
            await self._runtime.run_blocking(self.open_now)

    def open_now(self) -> None:
        """Open, blocking the calling thread."""
        if self._writer is not None:
            return
        place, runtime = self._place, self._runtime
        self._refuse_network_disks()
        self._pid = os.getpid()

        def writer() -> Transactor:
            transactor = Transactor(place, runtime, self._clock)
            try:
                transactor.prepare(auto_migrate=self._auto_migrate)
            except BaseException:
                transactor.close()
                raise
            return transactor

        try:
            self._writer = CommandThread(writer, self._ring, runtime, "holdfast-sqlite-writer")
            self._reader = CommandThread(
                lambda: Reader(place, self._clock), self._ring, runtime, "holdfast-sqlite-reader"
            )
            self._doorbell = self._hang_doorbell() if has_sockets() else None
            self._lookout = Lookout(place, runtime, self._topics)
        except BaseException:
            self.close_now()
            raise

    def _hang_doorbell(self) -> Doorbell | None:
        try:
            return Doorbell(self._place.path, self._runtime, self._topics.notify, namespace=self._place.namespace)
        except OSError as error:  # such as a folder with too long a name for a socket
            log.warning("No bells between processes, so they poll: %s. Set XDG_RUNTIME_DIR to a short folder.", error)
            return None

    def _refuse_network_disks(self) -> None:
        folder = os.path.dirname(os.path.abspath(self._place.path))
        kind = self._runtime.fs.kind_of_disk(folder)
        if kind in NETWORK_DISKS:
            raise ConfigError(
                f"{folder} is on a network file system ({kind}), where SQLite's locks do not hold. Use a local disk, "
                "or PostgreSQL.",
                key="url",
            )

    async def close(self) -> None:
        if self._writer is not None and self._pid == os.getpid():
            await self._runtime.run_blocking(self.close_now)

    def close_now(self) -> None:
        for thread in (self._writer, self._reader):
            if thread is not None:
                thread.close()
        for aide in (self._lookout, self._doorbell):
            if aide is not None:
                aide.close()
        self._writer = self._reader = self._doorbell = self._lookout = None
        self._topics.close()

    async def migrate(self) -> tuple[str, ...]:
        def steps() -> tuple[str, ...]:
            transactor = Transactor(self._place, self._runtime, self._clock)
            try:
                return transactor.prepare(auto_migrate=True)
            finally:
                transactor.close()

        return await self._runtime.run_blocking(steps)

    # Commands

    async def perform(self, command: Command[A]) -> A:
        if asyncio._get_running_loop() is None:
            return self.perform_now(command)
        try:
            answer: A = await self._thread_for(command).perform(command)
        except CorruptRecord:
            if type(command) not in READS or self._writer is None:
                raise
            answer = await self._writer.perform(command)  # which can set the damaged row aside
        return answer

    def perform_now(self, command: Command[A]) -> A:
        """The same for a thread without an event loop."""
        try:
            answer: A = self._thread_for(command).perform_now(command)
        except CorruptRecord:
            if type(command) not in READS or self._writer is None:
                raise
            answer = self._writer.perform_now(command)
        return answer

    def _thread_for(self, command: Command[A]) -> CommandThread:
        reads = type(command) in READS
        if not reads:
            refuse_inside(self._place.path)
        thread = self._reader if reads else self._writer
        if thread is None:
            raise EngineUnavailable(f"{self._place.path} is not open. Nothing was written. Call open() first.")
        self._check_process()
        return thread

    def _check_process(self) -> None:
        if self._pid not in (0, os.getpid()):
            raise EngineUnavailable(
                "This connection was opened before a fork and belongs to the parent process. Nothing was written. "
                "Open the store anew in the child."
            )

    # Transactions

    def perform_in(self, command: Command[A], user: UserConnection) -> A:
        self._check_process()
        return self._joiner.perform_in(command, user)

    async def aperform_in(self, command: Command[A], user: UserConnection) -> A:
        self._check_process()
        return await self._joiner.aperform_in(command, user)

    def transaction(self) -> OwnTransaction:
        refuse_inside(self._place.path)
        self._check_process()
        return OwnTransaction(self._place, self._runtime, self._turns)

    # Bells

    def _ring(self, bells: frozenset[str]) -> None:
        self._topics.notify(bells)
        if self._doorbell is not None:
            self._doorbell.notify(bells)

    def _ring_for_users(self, bells: frozenset[str]) -> bool:
        """Ring, if other processes can hear it. Without bells: only whether they could."""
        if bells:
            self._ring(bells)
        return self._doorbell is not None

    def subscribe(self, *topics: str) -> Subscription:
        return self._topics.subscribe(*topics)

    @property
    def feed_kinds(self) -> frozenset[str]:
        doorbell = self._doorbell
        return frozenset() if doorbell is None else doorbell.earshot.feed_kinds

    def publish(self, message: bytes) -> None:
        doorbell = self._doorbell
        if doorbell is not None:
            doorbell.earshot.publish(message)

    def listen_to_feed(self, kinds: Iterable[str], hear: Callable[[bytes], None]) -> None:
        doorbell = self._doorbell
        if doorbell is not None:
            doorbell.earshot.listen_to_feed(kinds, hear)

    @property
    def process_name(self) -> str:
        return "" if self._doorbell is None else self._doorbell.name

    async def ended_workers(self) -> tuple[str, ...]:
        doorbell = self._doorbell
        if doorbell is None:
            return ()
        records = (await self.workers()).workers
        gone = {name for name in {record.process for record in records} if doorbell.is_gone(name)}
        return tuple(record.worker for record in records if record.process in gone)

    def renewal_connection(self) -> RenewalConnection:
        return SqliteRenewalConnection(Transactor(self._place, self._runtime, self._clock), self._ring)

    @classmethod
    def shown_address(cls, url: str) -> str:
        return path_of(url)

    @property
    def clock_offset(self) -> int:
        return self._runtime.clock_offset

    @clock_offset.setter
    def clock_offset(self, value: int) -> None:
        self._runtime.clock_offset = value


class SqliteRenewalConnection(RenewalConnection):
    """Made and used in the keeper's thread: its own connection, its own turn at the gate."""

    def __init__(self, transactor: Transactor, ring: "Callable[[frozenset[str]], None]") -> None:
        self._transactor = transactor
        self._ring = ring

    def _perform(self, command: Command[A]) -> A:
        (done,) = self._transactor.run([command])
        if done.error is not None:
            raise done.error
        if done.topics:
            self._ring(done.topics)
        answer: A = done.answer
        return answer

    def renew(self, jobs: Iterable[work.Renewal]) -> work.RenewAnswer:
        return self._perform(work.Renew(jobs=tuple(jobs)))

    def heartbeat(self, worker: WorkerRecord) -> work.HeartbeatAnswer:
        return self._perform(work.Heartbeat(worker=worker))

    def close(self) -> None:
        self._transactor.close()


def path_of(url: str) -> str:
    """The file an address names: `sqlite:jobs.db` and `sqlite:///jobs.db` relative, `sqlite:////abs` absolute."""
    parts = urlsplit(url)
    if parts.netloc:
        raise ConfigError(
            f"{url!r} has a host in it. A SQLite address is sqlite:///relative/path.db or sqlite:////absolute/path.db.",
            key="url",
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"{url!r}: a SQLite address takes no options ({parse_qs(parts.query)}).", key="url")
    path = unquote(parts.path)
    path = path[1:] if path.startswith("/") and url.startswith("sqlite://") else path
    if not path or path == ":memory:":
        raise ConfigError(f"{url!r} names no file. For a store in memory use memory://", key="url")
    return os.path.abspath(path)


def checked_namespace(namespace: str) -> str:
    if not NAMESPACE.fullmatch(namespace):
        raise ConfigError(
            f"The namespace {namespace!r} must be a lower-case word of at most 31 letters, digits and underscores.",
            key="namespace",
        )
    return namespace
