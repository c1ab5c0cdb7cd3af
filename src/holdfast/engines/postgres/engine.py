"""The PostgreSQL engine: many hosts, one database.

The rules run in the server, one function per verb (`rules/`); a call is one round trip and one commit. Here is what a
client needs: connections for each event loop that uses the engine, bells on a thread of their own, errors that say
whether anything was written, and a door for the user's own transactions.

An engine belongs to the process that opened it. In a forked child it is not open; what it inherited is left alone,
since the sockets are the parent's too.
"""

import os
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import asyncpg
from msgspec.structs import replace

from holdfast.engine import Capabilities, Engine, RenewalConnection, Subscription
from holdfast.engines.postgres import failures, renewal_connection
from holdfast.engines.postgres.calls import Caller
from holdfast.engines.postgres.commits import Commits
from holdfast.engines.postgres.connections import Connections
from holdfast.engines.postgres.desks import Desk, Desks
from holdfast.engines.postgres.dialling import Dialler
from holdfast.engines.postgres.migrations import PRESENT, Rules, check_namespace
from holdfast.engines.postgres.schema import Schema
from holdfast.engines.postgres.settings import PostgresSettings
from holdfast.engines.postgres.tower import Tower
from holdfast.engines.postgres.user_transactions import OwnTransaction, UserTransactions
from holdfast.engines.topics import Topics
from holdfast.errors import EngineUnavailable, SchemaMismatch
from holdfast.model.command import A, Command
from holdfast.model.instants import MILLISECOND
from holdfast.runtime import Runtime
from holdfast.transactions import UserConnection

OLDEST_SERVER = 14
LENT = 100_000
"""Transactions of users are as many as there are handlers in one."""

CAPABILITIES = Capabilities(
    durable=True,
    shared_between_processes=True,
    shared_between_hosts=True,
    push=True,
    user_transactions=True,
    cross_queue_atomic=True,
    order_slack=250 * MILLISECOND,
)
SILENT = replace(CAPABILITIES, push=False)


class PostgresEngine(Engine):
    """`pooled`: the address is a proxy that shares sessions. `listen_url`: one without it, for notifications alone.

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
        self._url = _plain(url)
        self._runtime = runtime
        self._namespace = namespace
        self._commits = Commits(durability, pooled=pooled)
        self._dial = Dialler(self._url, self.place, self._commits, pooled=pooled)
        self._dial_for_bells = self._dial
        if listen_url:
            self._dial_for_bells = Dialler(_plain(listen_url), _place(listen_url), self._commits, pooled=False)
        self._topics = Topics()
        self._offset = 0
        self._not_before_us = 0
        self._pid = 0
        self._notify = notify
        self._tower: Tower | None = None
        self._schema = Schema(namespace, self.place, self._dial.patient, auto_migrate=auto_migrate, version=rules)
        self._user_transactions = UserTransactions(
            self._schema.rules, self.place, self._dial, self._ring, notify=notify, fast=fast_paths
        )
        self._caller = Caller(
            self._schema.rules,
            self.place,
            runtime,
            self._times,
            self._heard,
            self._ring,
            shared=pooled,
            fast=fast_paths,
        )
        self._most = pool_size
        self._desks = Desks(runtime, self._new_desk)
        self._inherited: list[object] = []

    @property
    def place(self) -> str:
        """The address as people are shown it: no name, no password."""
        return _place(self._url)

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # whether bells reach us depends on the way there
        tower = self._tower
        deaf = self._dial_for_bells.pooled if tower is None else tower.deaf
        return SILENT if deaf or not self._notify else CAPABILITIES

    # Life

    async def open(self) -> None:
        if self._pid == os.getpid():
            return
        if self._pid:
            self._start_afresh()
        connection = await self._dial()
        try:
            if connection.get_server_version().major < OLDEST_SERVER:
                raise SchemaMismatch(
                    f"PostgreSQL at {self.place} is too old. Holdfast needs {OLDEST_SERVER} or newer.",
                    found=str(connection.get_server_version().major),
                    wanted=str(OLDEST_SERVER),
                    engine=self.scheme,
                )
            await self._schema.check(connection)
            await self._commits.check(connection)
        finally:
            connection.terminate()
        self._dial.trusted = True
        self._pid = os.getpid()
        if self._notify:
            tower = self._tower = Tower(
                self._dial_for_bells, self._namespace, self._topics, self._runtime, mute=self._dial_for_bells.pooled
            )
            await self._runtime.run_blocking(tower.wait_ready)

    def _start_afresh(self) -> None:
        """This is a forked child: the parent's connections are not even closed, and nothing here is woken by them."""
        self._inherited += [self._desks, self._tower, self._topics]
        self._pid = 0
        self._tower = None
        self._topics = Topics()
        self._desks = Desks(self._runtime, self._new_desk)

    async def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._pid = 0
        tower, self._tower = self._tower, None
        if tower is not None:
            await self._runtime.run_blocking(tower.close)
        await self._desks.close()
        self._topics.close()

    def close_now(self) -> None:
        """From a thread without an event loop, as the interpreter ends or nobody holds the App any more."""
        if self._pid == os.getpid():
            self._pid = 0
            tower, self._tower = self._tower, None
            if tower is not None:
                tower.close()
            self._desks.close_now()
            self._topics.close()

    async def migrate(self) -> tuple[str, ...]:
        return await self._schema.migrate()

    async def grant(self, role: str) -> None:
        await self._schema.grant(role)

    async def migration_script(self, *, after: int | None = None, roles: Iterable[str] = ()) -> str:
        return await self._schema.script(after, roles)

    # Commands

    async def perform(self, command: Command[A]) -> A:
        return await self._caller.perform(command, self._desk().own)

    def _times(self) -> tuple[int, int]:
        return self._offset, self._not_before_us

    def _heard(self, wall: int) -> None:
        self._not_before_us = max(self._not_before_us, wall)

    def _desk(self) -> Desk:
        if self._pid != os.getpid():
            raise EngineUnavailable(
                f"PostgreSQL at {self.place} is not open in this process. Nothing was written. Call open() first.",
                engine=self.scheme,
            )
        return self._desks.here()

    def _new_desk(self) -> Desk:
        return Desk(
            own=Connections(self._dial, self._most),
            lent=Connections(self._dial, LENT, keep=self._most),
        )

    def renewal_connection(self) -> RenewalConnection:
        connect = partial(self._dial.connect, renewal_connection.ANSWER_WITHIN)
        return renewal_connection.PostgresRenewalConnection(Connections(connect, 1), self._caller.perform)

    # Transactions of users

    def perform_in(self, command: Command[A], user: UserConnection) -> A:
        return self._user_transactions.perform_in(command, user, self._offset, self._not_before_us)

    async def aperform_in(self, command: Command[A], user: UserConnection) -> A:
        return await self._user_transactions.aperform_in(command, user, self._offset, self._not_before_us)

    def transaction(self) -> OwnTransaction:
        return OwnTransaction(self._lend, self._url)

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection for a user, who may leave settings, locks and listeners on it."""
        async with self._desk().lent.one() as connection:
            yield connection
            try:
                if not self._dial.pooled:
                    await connection.reset()
            except failures.FAILURES:  # the user's transaction has ended well, and that is all they shall hear
                connection.terminate()

    # Bells

    def _ring(self, bells: frozenset[str], heard: bool = True) -> None:
        self._topics.notify(bells)
        if self._tower is not None and heard:
            self._tower.notify(bells)

    def subscribe(self, *topics: str) -> Subscription:
        ears = self._topics.subscribe(*topics)
        if self._tower is not None:
            self._tower.attend(topics)
        return ears

    @property
    def feed_kinds(self) -> frozenset[str]:
        return frozenset() if self._tower is None else self._tower.feed_kinds

    def publish(self, message: bytes) -> None:
        if self._tower is not None:
            self._tower.publish(message)

    def listen_to_feed(self, kinds: Iterable[str], hear: Callable[[bytes], None]) -> None:
        if self._tower is not None:
            self._tower.listen_to_feed(kinds, hear)

    @property
    def clock_offset(self) -> int:
        return self._offset

    @clock_offset.setter
    def clock_offset(self, value: int) -> None:
        self._offset = value


def _plain(url: str) -> str:
    return re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", url)


def _place(url: str) -> str:
    """There may be several hosts, or none."""
    parts = urlsplit(url)
    return f"{parts.netloc.rpartition('@')[2] or 'localhost'}{parts.path}"
