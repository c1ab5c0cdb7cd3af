"""The PostgreSQL engine: many hosts, one database.

The rules run in the server, one function per verb (`rules/`); a call is one round trip and one commit. This package
holds the client: connections for each event loop that uses the engine, notifications on a thread of their own, errors
that say whether anything was written, and calls inside users' transactions.

An engine belongs to the process that opened it. In a forked child it is not open. The child does not touch what it
inherited, because its parent uses the same sockets.
"""

import logging
import os
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import asyncpg
from msgspec.structs import replace

from holdfast.engine import Capabilities, RenewalConnection
from holdfast.engines.postgres import failures, renewal_connection
from holdfast.engines.postgres.calls import Caller
from holdfast.engines.postgres.connect import Connector
from holdfast.engines.postgres.connections import Connections
from holdfast.engines.postgres.durability import Durability
from holdfast.engines.postgres.examine import examine_server
from holdfast.engines.postgres.loop_connections import ConnectionsByLoop, LoopConnections
from holdfast.engines.postgres.migrations import PRESENT, Rules, check_namespace
from holdfast.engines.postgres.notifier import Notifier
from holdfast.engines.postgres.rules import LONGEST_LEAD_US
from holdfast.engines.postgres.schema import Schema
from holdfast.engines.postgres.settings import PostgresSettings
from holdfast.engines.postgres.user_transactions import OwnTransaction, UserTransactions
from holdfast.engines.postgres.worker_sessions import DisownSilent
from holdfast.engines.server_engine import ServerEngine
from holdfast.errors import EngineUnavailable, SchemaMismatch
from holdfast.model.address import check_address, without_login
from holdfast.model.command import A, Command
from holdfast.model.findings import Report
from holdfast.model.instants import MILLISECOND, SECOND, Micros
from holdfast.runtime import Runtime
from holdfast.transactions import UserConnection

_logger = logging.getLogger("holdfast.postgres")

OLDEST_SERVER = 15  # major version
MAX_USER_TRANSACTIONS = 100_000  # in effect no limit: the worker's slots limit them already

CAPABILITIES = Capabilities(
    durable=True,
    shared_between_processes=True,
    shared_between_hosts=True,
    push=True,
    user_transactions=True,
    cross_queue_atomic=True,
    order_slack=250 * MILLISECOND,
)
WITHOUT_PUSH = replace(CAPABILITIES, push=False)


class PostgresEngine(ServerEngine[Notifier]):
    """`pooled`: the address is a proxy that shares sessions. `listen_url`: a direct address for notifications.

    For tests: `fast_paths` false leaves everything to the general functions, `rules` is another version of them.
    """

    scheme = "postgresql"
    settings = PostgresSettings

    def __init__(
        self,
        url: str,
        runtime: Runtime,
        *,
        namespace: str = "holdfast",
        durability: str = "durable",
        auto_migrate: bool = False,
        pool_size: int = 10,
        notify: bool = True,
        pooled: bool = False,
        listen_url: str | None = None,
        fast_paths: bool = True,
        rules: Rules = PRESENT,
    ) -> None:
        check_namespace(namespace)
        self._url = _checked(url)
        super().__init__(runtime)
        self._namespace = namespace
        self._durability = Durability(durability, pooled=pooled)
        self._connect = Connector(self._url, self.place, self._durability, pooled=pooled)
        self._connect_notifier = self._connect
        if listen_url:
            self._connect_notifier = Connector(_checked(listen_url), _place(listen_url), self._durability, pooled=False)
        self._offset = 0
        self._not_before_us = 0
        self._notify = notify
        self._schema = Schema(
            namespace, self.place, self._connect.without_timeout, auto_migrate=auto_migrate, version=rules
        )
        self._user_transactions = UserTransactions(
            self._schema.rules, self.place, self._connect, self._send_notifications, notify=notify, fast=fast_paths
        )
        self._caller = Caller(
            self._schema.rules,
            self.place,
            runtime,
            self._times,
            self._note_time,
            self._send_notifications,
            lambda: None if self._notifier is None else self._notifier.sender,
            shared=pooled,
            fast=fast_paths,
        )
        self._pool_size = pool_size
        self._by_loop = ConnectionsByLoop(runtime, self._new_loop_connections)

    @property
    def place(self) -> str:
        """The address for messages: without user name and password."""
        return _place(self._url)

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # `push` depends on the connection
        notifier = self._notifier
        receives = not self._connect_notifier.pooled if notifier is None else notifier.receives
        return CAPABILITIES if receives and self._notify else WITHOUT_PUSH

    # Opening and closing

    async def open(self) -> None:
        if self._pid == os.getpid():
            return
        if self._pid:
            self._leave_to_parent()
        connection = await self._connect()
        try:
            if connection.get_server_version().major < OLDEST_SERVER:
                raise SchemaMismatch(
                    f"PostgreSQL at {self.place} is too old. Holdfast needs {OLDEST_SERVER} or newer.",
                    found=str(connection.get_server_version().major),
                    wanted=str(OLDEST_SERVER),
                    engine=self.scheme,
                )
            await self._connect.check_session(connection)
            await self._schema.check(connection)
            await self._durability.check(connection)
        finally:
            connection.terminate()
        self._connect.login_worked = True
        notifier = None
        if self._notify:
            notifier = Notifier(
                self._connect_notifier,
                self._namespace,
                self._topics,
                self._runtime,
                send_only=self._connect_notifier.pooled,
            )
        self._notifier = notifier
        self._pid = os.getpid()
        if notifier is not None:
            await self._runtime.run_blocking(notifier.wait_ready)

    def _leave_to_parent(self) -> None:
        super()._leave_to_parent()
        self._inherited.append(self._by_loop)
        self._by_loop = ConnectionsByLoop(self._runtime, self._new_loop_connections)

    async def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._pid = 0
        notifier, self._notifier = self._notifier, None
        if notifier is not None:
            await self._runtime.run_blocking(notifier.close)
        await self._by_loop.close()
        self._topics.close()
        self._ended_processes.close()

    def close_now(self) -> None:
        """Close from a thread without an event loop: when the interpreter ends, or when the App is collected."""
        if self._pid == os.getpid():
            self._pid = 0
            notifier, self._notifier = self._notifier, None
            if notifier is not None:
                notifier.close()
            self._by_loop.close_now()
            self._topics.close()
            self._ended_processes.close()

    def refuse_migration(self) -> None:
        self._schema.auto_migrate = False

    async def migrate(self) -> tuple[str, ...]:
        return await self._schema.migrate()

    async def grant(self, role: str) -> None:
        await self._schema.grant(role)

    async def migration_script(self, *, after: int | None = None, roles: Iterable[str] = ()) -> str:
        return await self._schema.script(after, roles)

    async def examine(self, report: Report) -> None:
        await examine_server(
            self._connect,
            self._schema,
            self.place,
            self._durability.name,
            report,
            oldest=OLDEST_SERVER,
            listens=not self._connect_notifier.pooled,
        )

    # Commands

    async def perform(self, command: Command[A]) -> A:
        return await self._caller.perform(command, self._loop_connections().commands)

    def _times(self) -> tuple[int, int]:
        return self._offset, self._not_before_us

    def _note_time(self, wall: int, not_before_us: int) -> None:
        """`wall` is the time of an answer, `not_before_us` the earliest time that its call asked for."""
        if wall < not_before_us:  # TM3: the server has dropped it
            if self._not_before_us - wall > LONGEST_LEAD_US:
                _logger.warning(
                    "The clock of PostgreSQL at %s is %.1f s behind a time that this process has seen: it was set "
                    "back, or another server answers now. From now on the server's time counts.",
                    self.place,
                    (self._not_before_us - wall) / SECOND,
                )
                self._not_before_us = wall
            return
        self._not_before_us = max(self._not_before_us, wall)

    def _loop_connections(self) -> LoopConnections:
        if self._pid != os.getpid():
            raise EngineUnavailable(
                f"PostgreSQL at {self.place} is not open in this process. Nothing was written. Call open() first.",
                engine=self.scheme,
            )
        return self._by_loop.of_running_loop()

    def _new_loop_connections(self) -> LoopConnections:
        return LoopConnections(
            commands=Connections(self._connect, self._pool_size),
            transactions=Connections(self._connect, MAX_USER_TRANSACTIONS, keep=self._pool_size),
        )

    def renewal_connection(self) -> RenewalConnection:
        connect = partial(
            self._connect.connect, renewal_connection.STATEMENT_TIMEOUT_S, renewal_connection.SESSION_SETTINGS
        )
        return renewal_connection.PostgresRenewalConnection(
            Connections(renewal_connection.ConnectTries(connect), 1), self._caller.perform, pooled=self._connect.pooled
        )

    # Workers that have ended

    async def disown_silent(self, watched_us: Micros) -> dict[str, int]:
        return (await self.perform(DisownSilent(watched_us=watched_us))).leases

    # Transactions of users

    def perform_in(self, command: Command[A], user: UserConnection) -> A:
        return self._user_transactions.perform_in(command, user, self._offset, self._not_before_us)

    async def aperform_in(self, command: Command[A], user: UserConnection) -> A:
        return await self._user_transactions.aperform_in(command, user, self._offset, self._not_before_us)

    def transaction(self) -> OwnTransaction:
        return OwnTransaction(self._connection_for_user, self._connect.blocking_transaction)

    @asynccontextmanager
    async def _connection_for_user(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection for the transaction of a user, who may leave settings, locks and listeners on it."""
        async with self._loop_connections().transactions.one() as connection:
            yield connection
            try:
                if not self._connect.pooled:
                    await connection.reset()
            except failures.FAILURES:  # the user's transaction has been committed, so this is no error for the user
                connection.terminate()

    # Notifications

    def _send_notifications(self, topics: frozenset[str], to_others: frozenset[str] | None = None) -> None:
        """Notify this process of all topics, and the other processes of those `to_others` (None: of all)."""
        self._topics.notify(topics)
        if self._notifier is not None and to_others != frozenset():
            self._notifier.notify(topics if to_others is None else to_others)

    @property
    def clock_offset(self) -> int:
        return self._offset

    @clock_offset.setter
    def clock_offset(self, value: int) -> None:
        self._offset = value


def _without_driver(url: str) -> str:
    """`postgres://` and `postgresql+psycopg://` as `postgresql://`."""
    return re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", url)


def _place(url: str) -> str:
    """Hosts and database of an address, without the login. It may name several hosts, or none."""
    parts = urlsplit(without_login(url))
    return f"{parts.netloc or 'localhost'}{parts.path}"


def _checked(url: str) -> str:
    check_address(url)
    return _without_driver(url)
