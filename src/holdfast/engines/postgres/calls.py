"""One command, one call: repeated where it is certain that nothing was written, or where the call only reads.

A call goes out as one statement that commits by itself. Behind a proxy that shares sessions it is a transaction of
several statements; there, a failure before the COMMIT has certainly written nothing.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import asyncpg

from holdfast.engines.postgres import encode_calls, failures
from holdfast.engines.postgres.claim_cursor import ClaimCursors, Cursor
from holdfast.engines.postgres.connections import Connections
from holdfast.engines.postgres.exchange_call import EXCHANGE
from holdfast.engines.postgres.fast_paths import FRESH_ID_FUNCTIONS
from holdfast.engines.postgres.messages import Call, Read, Reply, Rows
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.model import operate, work
from holdfast.model.command import A, Command
from holdfast.model.reads import READS
from holdfast.runtime import Runtime

TRIES = 5
PAUSE_S = 0.02
HOLDERS_TIMEOUT_S = 2.0
"""For the question who holds a lock: it waits for no lock itself."""

_logger = logging.getLogger("holdfast.postgres")

Times = Callable[[], tuple[int, int]]
Notify = Callable[[frozenset[str], frozenset[str]], None]
"""The topics, and those of which other processes still have to be notified."""


@dataclass(slots=True)
class CallProgress:
    """How far one try of a call has come."""

    may_have_committed: bool = False
    """The statement that commits was sent, or is about to be sent."""
    lock_holders: str = ""
    """After a lock timeout: the sessions that may hold the lock."""


class Caller:
    """`rules`: the schema of the functions. `times`: the offset of the clock and the earliest time to answer.
    `note_time`: gets the time of each answer and the earliest time that its call asked for. `notify`: gets its topics.
    `sender`: the name of this process in notifications that the server sends; None: it sends none.
    `shared`: a proxy shares sessions. `fast`: use the fast paths."""

    def __init__(
        self,
        rules: str,
        place: str,
        runtime: Runtime,
        times: Times,
        note_time: Callable[[int, int], None],
        notify: Notify,
        sender: Callable[[], str | None],
        *,
        shared: bool,
        fast: bool,
    ) -> None:
        self._rules = rules
        self._fast = fast
        self._shared = shared
        self._place = place
        self._runtime = runtime
        self._times = times
        self._note_time = note_time
        self._notify = notify
        self._sender = sender
        self._cursors = ClaimCursors()
        self._statements: dict[str, str] = {}

    async def perform(self, command: Command[A], connections: Connections) -> A:
        if isinstance(command, operate.Clear):
            return await self._clear(command, connections)  # type: ignore[return-value]  # which is a Clear's answer
        answer: A = await self._persist(command, self._call_of(command), connections)
        return answer

    async def _clear(self, command: operate.Clear, connections: Connections) -> operate.ScopeAnswer:
        """Chunk by chunk. Meanwhile nothing of the queue is claimed; jobs that arrive after the first chunk stay."""
        count, up_to = 0, None
        while True:
            try:
                call = encode_calls.chunk_call(command, up_to, fast=self._fast)
                chunk: encode_calls.ClearChunk = await self._persist(command, call, connections)
            except HoldfastError as error:
                if up_to is None:
                    raise
                message = f"Only a part of {command.queue!r} has been cleared: {error} Clear it again for the rest."
                raise OutcomeUnknown(message, verb="clear", engine=failures.SCHEME) from error
            count, up_to = count + chunk.count, chunk.up_to
            if not chunk.more:
                return operate.ScopeAnswer(at=chunk.at, count=count)

    async def _persist(self, command: Command[Any], call: Call, connections: Connections) -> Any:
        reads = type(command) in READS
        wait = True
        attempt = 0
        while True:
            attempt += 1
            progress = CallProgress()
            try:
                async with connections.one() as connection:
                    try:
                        return await self._make(connection, call, progress)
                    except asyncpg.LockNotAvailableError:
                        progress.lock_holders = await self._lock_holders(connection)
                        raise
            except HoldfastError:
                raise
            except failures.FAILURES as error:
                if isinstance(error, asyncpg.UniqueViolationError) and call.function in FRESH_ID_FUNCTIONS:
                    call = encode_calls.enqueue(command, fast=self._fast)  # an id is not new: look up each of them
                    continue
                if isinstance(error, asyncpg.LockNotAvailableError) and isinstance(command, work.Exchange) and wait:
                    _logger.warning(
                        "PostgreSQL at %s: an exchange met a locked job and is sent again without waiting for it. %s",
                        self._place,
                        progress.lock_holders,
                    )
                    wait = False  # G8
                    call = self._call_of(command, wait=False)
                    continue
                unknown = progress.may_have_committed and not failures.wrote_nothing(error, shared=self._shared)
                if attempt < TRIES and failures.may_try_again(error, reads=reads, unknown=unknown):
                    await self._runtime.sleep(self._runtime.random() * PAUSE_S * attempt)
                    continue
                raise failures.of_call(
                    error, command, self._place, reads=reads, unknown=unknown, lock_holders=progress.lock_holders
                ) from error

    async def _make(self, connection: asyncpg.Connection, call: Call, progress: CallProgress) -> Any:
        sql = self._statements.get(call.function) or self._statement(call)
        times = self._times()
        arguments = (*call.arguments, *times)
        if call.takes_sender:
            arguments = (*arguments, self._sender() if self._fast else None)
        if self._shared:
            async with connection.transaction(isolation="read_committed"):
                rows = await connection.fetch(sql, *arguments)
                progress.may_have_committed = True  # the end of this block sends COMMIT
        else:
            progress.may_have_committed = True
            rows = await connection.fetch(sql, *arguments)
        reply = call.read(rows)
        self._note_time(reply.answer.at.wall, times[1])
        if reply.topics:
            topics = frozenset(reply.topics)
            self._notify(topics, topics.difference(reply.sent) if reply.has_listeners else frozenset())
        return reply.answer

    async def _lock_holders(self, connection: asyncpg.Connection) -> str:
        """A sentence that names the sessions for which a call has waited; empty if they cannot be named."""
        try:
            found = await connection.fetchval(f"SELECT {self._rules}.lock_holders()", timeout=HOLDERS_TIMEOUT_S)
        except failures.FAILURES:
            return ""
        return f"Locks are held by {found}." if found else "The lock is free again."

    def _statement(self, call: Call) -> str:
        count = len(call.arguments) + (3 if call.takes_sender else 2)
        placeholders = ", ".join(f"${number}" for number in range(1, count + 1))
        # As a table, a function that returns one text would cost more: the server would store its rows first.
        select = "SELECT * FROM" if call.function == EXCHANGE else "SELECT"
        statement = self._statements[call.function] = f"{select} {self._rules}.{call.function}({placeholders})"
        return statement

    def _call_of(self, command: Command[Any], *, wait: bool = True) -> Call:
        if not isinstance(command, work.Exchange) or command.claim is None or not self._fast:
            return encode_calls.call_of(command, fast=self._fast, wait=wait)
        cursors = self._cursors.of(command.claim, self._runtime.monotonic())
        call = encode_calls.call_of(command, cursors, fast=self._fast, wait=wait)
        return call._replace(read=self._read_and_move_cursors(call.read, command.claim, cursors))

    def _read_and_move_cursors(self, read: Read, claim: work.Claim, used: dict[str, Cursor]) -> Read:
        """A function that reads the reply and sets where the next claims of these queues begin."""

        def read_reply(rows: Rows) -> Reply[Any]:
            reply = read(rows)
            self._cursors.learn(claim, used, reply.answer, reply.scanned, self._runtime.monotonic())
            return reply

        return read_reply
