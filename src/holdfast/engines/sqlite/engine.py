"""The SQLite engine: one file, one host, any number of processes. The default store.

The rules are those of the ledger; `state.py` answers their questions from the database. Three kinds of threads use it,
each with a connection of its own: the writer, which runs all waiting commands in one transaction (`command_thread.py`,
`writer.py`); the reader, which never waits for the writer (`reader.py`); and one renewal connection per worker.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from functools import partial
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.engine import Capabilities, RenewalConnection
from holdfast.engines.command_thread import CommandThread
from holdfast.engines.engine_clock import EngineClock
from holdfast.engines.file_systems import is_network_file_system
from holdfast.engines.host_engine import HostEngine, absolute_path, checked_namespace
from holdfast.engines.sqlite.connection import SYNCHRONOUS
from holdfast.engines.sqlite.examine import examine_sqlite
from holdfast.engines.sqlite.gate_queue import GateQueue
from holdfast.engines.sqlite.own_transaction import BUDGET_S, SqliteOwnTransaction, refuse_inside
from holdfast.engines.sqlite.poller import CommitPoller
from holdfast.engines.sqlite.reader import Reader
from holdfast.engines.sqlite.settings import SqliteSettings
from holdfast.engines.sqlite.store import StoreOptions
from holdfast.engines.sqlite.user_transactions import SqliteUserTransactions
from holdfast.engines.sqlite.writer import Writer
from holdfast.errors import ConfigError, CorruptRecord, EngineUnavailable
from holdfast.file_locks import Gate
from holdfast.model import produce, work
from holdfast.model.address import mask_password
from holdfast.model.command import A, Command
from holdfast.model.findings import Report
from holdfast.model.reads import READS
from holdfast.model.records import WorkerRecord
from holdfast.runtime import Runtime
from holdfast.transactions import UserConnection

SHORT_WRITES = frozenset({produce.Enqueue, work.Exchange})
"""One transaction each. Others have work that goes on after an interrupted call, so the writer's thread does them."""


class SqliteEngine(HostEngine):
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
    transaction_budget_s = BUDGET_S
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
        fast_paths: bool = True,
    ) -> None:
        if durability not in SYNCHRONOUS:
            raise ConfigError(
                f"`durability` must be one of {', '.join(SYNCHRONOUS)}, not {durability!r}.", key="durability"
            )
        super().__init__(runtime)
        self._store = StoreOptions(path_of(url), checked_namespace(namespace), durability, busy_timeout, fast_paths)
        self.store_file = self._store.path
        self._has_relative_address = is_relative(url)
        self._auto_migrate = auto_migrate
        self._clock = EngineClock(runtime, path_of(url))
        self._writer: CommandThread | None = None
        self._reader: CommandThread | None = None
        self._poller: CommitPoller | None = None
        self._gate_queue = GateQueue(self._store, runtime)
        self._user_transactions = SqliteUserTransactions(
            self._store, runtime, self._clock, self._notify_processes, self._gate_queue, auto_migrate=auto_migrate
        )

    # Opening and closing

    def open_now(self) -> None:
        if self._writer is not None:
            return
        store, runtime = self._store, self._runtime
        store.follow_links()
        self._refuse_network_file_systems()
        self._refuse_hard_links()
        self._belong_to_this_process()

        def open_writer() -> Writer:
            writer = Writer(store, runtime, self._clock)
            try:
                writer.prepare(auto_migrate=self._auto_migrate)
            except BaseException:
                writer.close()
                raise
            return writer

        def open_reader() -> Reader:
            return Reader(store, self._clock)

        try:
            self._writer = CommandThread(open_writer, self._notify, runtime, "holdfast-sqlite-writer", SHORT_WRITES)
            self._reader = CommandThread(open_reader, self._notify, runtime, "holdfast-sqlite-reader", READS)
            self._open_processes(store.path, store.namespace)
            self._poller = CommitPoller(store, runtime, self._topics)
        except BaseException:
            self.close_now()
            raise

    def _refuse_network_file_systems(self) -> None:
        folder = os.path.dirname(self._store.real_path)
        kind = self._runtime.fs.file_system_type(folder)
        if is_network_file_system(kind):
            raise ConfigError(
                f"{folder} is on a network file system ({kind}), where SQLite's locks do not hold. Use a local disk, "
                "or PostgreSQL.",
                key="url",
            )

    def _refuse_hard_links(self) -> None:
        """SQLite finds the log by the name of the file. With two names there are two logs, and they damage the file."""
        path = self._store.real_path
        if os.path.isfile(path) and (names := os.stat(path).st_nlink) > 1:  # a folder has several names
            raise ConfigError(
                f"{path} has {names} names (hard links). Processes that open it by different names damage it, so it "
                f"is not opened. Remove the others (`find DIRECTORY -samefile {path}` lists them). A symbolic link "
                "is fine.",
                key="url",
            )

    def close_now(self) -> None:
        for thread in (self._writer, self._reader):
            if thread is not None:
                thread.close()
        if self._poller is not None:
            self._poller.close()
        self._close_processes()
        self._writer = self._reader = self._poller = None
        self._store.file.forget()
        self._topics.close()

    def refuse_migration(self) -> None:
        self._auto_migrate = self._user_transactions.auto_migrate = False

    async def migrate(self) -> tuple[str, ...]:
        def run_migrations() -> tuple[str, ...]:
            writer = Writer(self._store, self._runtime, self._clock)
            try:
                return writer.prepare(auto_migrate=True)
            finally:
                writer.close()

        return await self._runtime.run_blocking(run_migrations)

    # Commands

    async def perform(self, command: Command[A]) -> A:
        if asyncio._get_running_loop() is None:
            return self.perform_now(command)
        try:
            answer: A = await self._thread_for(command).perform(command)
        except CorruptRecord:
            if type(command) not in READS or self._writer is None:
                raise
            answer = await self._writer.perform(command)  # only the writer can repair the damaged row
        return answer

    def perform_now(self, command: Command[A]) -> A:
        """The same, for a thread without an event loop."""
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
            refuse_inside(self._store.real_path)
        thread = self._reader if reads else self._writer
        if thread is None:
            raise EngineUnavailable(f"{self._store.path} is not open. Nothing was written. Call open() first.")
        self._check_process()
        return thread

    # Transactions

    def perform_in(self, command: Command[A], user: UserConnection) -> A:
        self._check_process()
        return self._user_transactions.perform_in(command, user)

    async def aperform_in(self, command: Command[A], user: UserConnection) -> A:
        self._check_process()
        return await self._user_transactions.aperform_in(command, user)

    def transaction(self) -> SqliteOwnTransaction:
        refuse_inside(self._store.real_path)
        self._check_process()
        return SqliteOwnTransaction(self._store, self._runtime, self._gate_queue)

    # Notifications

    def _notify_processes(self, topics: frozenset[str]) -> bool:
        """Notify the topics, if there are any. True: other processes can be notified."""
        if topics:
            self._notify(topics)
        return self._processes is not None

    async def examine(self, report: Report) -> None:
        await self._runtime.run_blocking(
            partial(examine_sqlite, self._store, self._runtime, report, is_relative=self._has_relative_address)
        )

    def _open_gate(self) -> Gate:
        return self._store.open_gate(self._runtime)

    def renewal_connection(self) -> RenewalConnection:
        # A renewal need not wait for the disk: after a restart of the host every lease has expired (TM2). The next
        # commit of class durable syncs the same log.
        store = self._store.with_durability("fast") if self._store.durability == "durable" else self._store
        return SqliteRenewalConnection(Writer(store, self._runtime, self._clock), self._notify)

    @classmethod
    def shown_address(cls, url: str) -> str:
        return path_of(url)


class SqliteRenewalConnection(RenewalConnection):
    """Made and used in the thread that renews leases. It has a connection of its own and passes the gate by itself."""

    def __init__(self, writer: Writer, notify: Callable[[frozenset[str]], None]) -> None:
        self._writer = writer
        self._notify = notify

    def _perform(self, command: Command[A]) -> A:
        (result,) = self._writer.run([command])
        if result.error is not None:
            raise result.error
        if result.topics:
            self._notify(result.topics)
        answer: A = result.answer
        return answer

    def renew(self, jobs: Iterable[work.Renewal]) -> work.RenewAnswer:
        return self._perform(work.Renew(jobs=tuple(jobs)))

    def heartbeat(self, worker: WorkerRecord) -> work.HeartbeatAnswer:
        return self._perform(work.Heartbeat(worker=worker))

    def close(self) -> None:
        self._writer.close()


def is_relative(url: str) -> bool:
    """True if the file of an address depends on the current folder of a process."""
    path = unquote(urlsplit(url).path)
    return not os.path.isabs(os.path.expanduser(path[1:] if url.startswith("sqlite://") else path))


def path_of(url: str) -> str:
    """The file of an address: `sqlite:jobs.db` and `sqlite:///jobs.db` are relative, `sqlite:////abs` is absolute."""
    parts = urlsplit(url)
    if parts.netloc:
        raise ConfigError(
            f"{mask_password(url)!r} contains a host. A SQLite address is sqlite:///relative/path.db or sqlite:////absolute/path.db.",
            key="url",
        )
    if parts.query or parts.fragment:
        raise ConfigError(
            f"{mask_password(url)!r}: a SQLite address takes no options ({parse_qs(parts.query)}).", key="url"
        )
    path = unquote(parts.path)
    path = path[1:] if path.startswith("/") and url.startswith("sqlite://") else path
    if not path or path == ":memory:":
        raise ConfigError(f"{mask_password(url)!r} names no file. For a store in memory use memory://", key="url")
    if "\0" in path:
        raise ConfigError(f"{mask_password(url)!r} contains a zero byte (%00).", key="url")
    return absolute_path(path)
