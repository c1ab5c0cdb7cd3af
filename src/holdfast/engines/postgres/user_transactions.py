"""Enqueue and settle in a user's transaction: the effect is there if, and only if, that transaction commits.

The call goes over the user's own connection, whatever its driver is. Its effects on lanes, pools and children are
deferred: the next call that comes by after the commit carries them out; see `rules/deferred.sql`. Notifications go
out with the commit: by NOTIFY inside the transaction, or by the session's own hook where it has one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from holdfast.engines.postgres.encode_calls import user_transaction_call_of
from holdfast.engines.postgres.messages import Call, Reply
from holdfast.errors import WrongDatabase
from holdfast.model.command import A, Command
from holdfast.transactions import UserConnection
from holdfast.transactions.postgresql import IDENTITY

Notify = Callable[[frozenset[str]], None]
Connect = Callable[[], Awaitable[asyncpg.Connection]]


class UserTransactions:
    """Makes calls over users' connections, after checking that they lead to the same database."""

    def __init__(
        self, rules: str, place: str, connect: Connect, notify_topics: Notify, *, notify: bool, fast: bool
    ) -> None:
        self._rules = rules
        self._fast = fast
        self._place = place
        self._connect = connect
        self._notify_topics = notify_topics
        self._notify = notify
        self._identity = ""

    def perform_in(self, command: Command[A], user: UserConnection, offset: int, not_before_us: int) -> A:
        self._check_dialect(user)
        found = user.identity()
        if found != self._identity:
            with asyncio.Runner() as runner:  # in a thread without an event loop: else it would be `aperform_in`
                runner.run(self._identify())
            self._check(found)
        call, topics = self._call(command, user, offset, not_before_us)
        reply: Reply[A] = call.read([[user.call(f"{self._rules}.{call.function}", *call.arguments)]])
        topics.update(reply.topics)
        return reply.answer

    async def aperform_in(self, command: Command[A], user: UserConnection, offset: int, not_before_us: int) -> A:
        self._check_dialect(user)
        found = await user.aidentity()
        if found != self._identity:
            await self._identify()
            self._check(found)
        call, topics = self._call(command, user, offset, not_before_us)
        reply: Reply[A] = call.read([[await user.acall(f"{self._rules}.{call.function}", *call.arguments)]])
        topics.update(reply.topics)
        return reply.answer

    def _call(
        self, command: Command[A], user: UserConnection, offset: int, not_before_us: int
    ) -> tuple[Call, set[str]]:
        """The call, and the topics that the session notifies after its commit; the call's answer fills them in."""
        topics: set[str] = set()
        session_notifies = user.after_commit(lambda: self._notify_topics(frozenset(topics)))
        notify = self._notify and not session_notifies
        return user_transaction_call_of(
            command, notify=notify, offset=offset, not_before_us=not_before_us, fast=self._fast
        ), topics

    async def _identify(self) -> None:
        """Read the identity of the engine's own database. A restart of the server changes it."""
        connection = await self._connect()
        try:
            self._identity = str(await connection.fetchval(IDENTITY))
        finally:
            await connection.close()

    def _check_dialect(self, user: UserConnection) -> None:
        if user.dialect != "postgresql":
            raise WrongDatabase(expected=f"PostgreSQL at {self._place}", found=user.name)

    def _check(self, found: str) -> None:
        if found != self._identity:
            raise WrongDatabase(expected=f"PostgreSQL at {self._place}", found="another PostgreSQL database")


class OwnTransaction:
    """A transaction of the engine's own: on an event loop over asyncpg, in a thread over psycopg."""

    def __init__(self, lend: Callable[[], Any], begin_blocking: Callable[[], Any]) -> None:
        self._lend = lend
        self._begin_blocking = begin_blocking
        self._open: Any = None

    async def __aenter__(self) -> asyncpg.Connection:
        self._open = self._lent()
        connection: asyncpg.Connection = await self._open.__aenter__()
        return connection

    async def __aexit__(self, *exc: Any) -> None:
        await self._open.__aexit__(*exc)

    def __enter__(self) -> Any:
        self._open = self._begin_blocking()
        return self._open.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._open.__exit__(*exc)

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[asyncpg.Connection]:
        async with self._lend() as connection, connection.transaction(isolation="read_committed"):
            yield connection
