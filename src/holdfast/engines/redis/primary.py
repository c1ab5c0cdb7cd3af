"""One server that runs our script, used from any event loop: two pipelined connections for each.

One connection carries exchanges, the other everything else, so that a worker's next claim does not wait behind a long
report. A connection is opened when it is first needed, and again after it has ended. A server that restarts between two
calls causes no error.

A call whose reply is lost is sent again only if it reads. The other callers decide for themselves: a worker sends its
exchange again as it is, and an enqueue is looked up by the ids of its jobs (`core/enqueue.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Any, NamedTuple

from holdfast.engines.by_loop import ByLoop
from holdfast.engines.redis import failures
from holdfast.engines.redis.calls import READ_VERBS
from holdfast.engines.redis.connections import Connection, pack
from holdfast.engines.redis.failures import CallTimeout, ConnectionLost, ReplyError
from holdfast.engines.redis.scripts import ServerScript
from holdfast.errors import EngineUnavailable, HoldfastError
from holdfast.runtime import Runtime

TRIES = 5  # of a call that reads, if its connection ends
PAUSE_S = 0.02  # before the second try; longer before each further one

Connect = Callable[[], Awaitable[Connection]]


class ScriptReply(NamedTuple):
    """What the script returned. `run`: the run of the server. `replicas`: how many have confirmed the write."""

    values: list[Any]
    run: str
    replicas: int = 0


class Primary:
    """`connect` makes a connection, `place` names the server in messages.

    `options(root, run, first_rank, replicated)` gives the second argument of a call: what the script must know besides
    the command.
    `refusal(error, root, run)` gives the error for a call that our own script has refused.
    """

    def __init__(
        self,
        connect: Connect,
        place: str,
        script: ServerScript,
        runtime: Runtime,
        options: Callable[[str, str, int, bool], bytes],
        refusal: Callable[[ReplyError, str, str], HoldfastError] | None = None,
    ) -> None:
        self._connect = connect
        self.place = place
        self._script = script
        self._runtime = runtime
        self._options = options
        self._refusal = refusal
        self._closed = False
        self._by_loop = ByLoop(runtime, lambda: PrimaryConnections(connect, closed=self._closed))

    async def call(
        self,
        root: str,
        argv: Sequence[bytes],
        wait: tuple[int, int] | None = None,
        first_rank: int = 0,
        *,
        asking: bool = False,
    ) -> ScriptReply:
        """Run the script. `argv`: verb, command, byte strings. `wait`: (replicas, milliseconds) to wait for afterwards.

        `first_rank`: of the first lease of a claim. `asking`: a node of a cluster carries out the call although it does
        not have the slot yet (`cluster.py`).

        Raises EngineUnavailable if certainly nothing happened, OutcomeUnknown if it may have.
        """
        verb = argv[0]
        connections = self._by_loop.of_running_loop()
        one = connections.exchanges if verb == b"exchange" else connections.others
        attempt = 0
        while True:
            attempt += 1
            connection = one.connection
            if connection is None or not connection.is_usable:
                connection = await one.open()
            arguments = (b"1", root, verb, self._options(root, connection.run, first_rank, wait is not None), *argv[1:])
            try:
                if asking:  # for one request: without the text, a second one might be needed
                    connection.request(b"ASKING")
                    value, replicas = await self._send(connection, (b"EVAL", self._script.text, *arguments), wait)
                else:
                    value, replicas = await self._send(connection, (b"EVALSHA", self._script.sha, *arguments), wait)
                if type(value) is ReplyError and value.code == failures.NO_SCRIPT:
                    value, replicas = await self._send(connection, (b"EVAL", self._script.text, *arguments), wait)
            except ConnectionLost as error:
                reads = verb in READ_VERBS
                if reads and attempt < TRIES and not isinstance(error, CallTimeout):
                    await self._runtime.sleep(self._runtime.random() * PAUSE_S * attempt)
                    continue
                raise failures.of_lost(error, self.place, verb.decode(), reads=reads) from error
            if type(value) is not ReplyError:
                return ScriptReply(value, connection.run, replicas)
            if value.code in failures.ENDS_CONNECTION:
                connection.close()
            if value.code == failures.OWN_ERROR and self._refusal is not None:
                raise self._refusal(value, root, connection.run) from value
            raise failures.of_reply(value, self.place, verb.decode()) from value

    async def _send(
        self, connection: Connection, request: tuple[Any, ...], wait: tuple[int, int] | None
    ) -> tuple[Any, int]:
        if wait is None:
            return await connection.send(pack(request)), 0
        value = connection.send(pack(request))
        replicas = connection.send(pack((b"WAIT", *wait)))
        confirmed = await replicas
        return await value, confirmed if isinstance(confirmed, int) else 0

    async def command(self, *args: bytes | str | float, asking: bool = False) -> Any:
        """Send any other command. Raises `ReplyError`, or EngineUnavailable: use it for commands that only read."""
        one = self._by_loop.of_running_loop().others
        connection = one.connection
        if connection is None or not connection.is_usable:
            connection = await one.open()
        try:
            if asking:
                connection.request(b"ASKING")
            return await connection.command(*args)
        except ConnectionLost as error:
            raise failures.of_lost(error, self.place, str(args[0]), reads=True) from error

    async def server(self) -> dict[str, str]:
        """What the server says about itself (INFO server)."""
        one = self._by_loop.of_running_loop().others
        connection = one.connection
        if connection is None or not connection.is_usable:
            connection = await one.open()
        return connection.server

    async def commands(self) -> list[Callable[..., Awaitable[Any]]]:
        """`command` of every server that holds jobs: of this one. See `ClusterPrimaries.commands`."""
        return [self.command]

    @property
    def is_connected(self) -> bool:
        """True if any event loop has an open connection."""
        return any(each.is_connected for each in self._by_loop.all())

    async def close(self) -> None:
        """A command that is still divided into several calls opens no connection afterwards."""
        self._closed = True
        await self._by_loop.close()

    def close_now(self) -> None:
        """From any thread, without an event loop."""
        self._closed = True
        self._by_loop.close_now()


class OneConnection:
    """One connection of an event loop, opened again after it has ended."""

    __slots__ = ("_closed", "_connect", "_opening", "connection")

    def __init__(self, connect: Connect, *, closed: bool) -> None:
        self._connect = connect
        self.connection: Connection | None = None
        self._opening: asyncio.Future[HoldfastError | None] | None = None
        self._closed = closed

    async def open(self) -> Connection:
        """Open it once for all callers. If the server cannot be reached, all get the error of the one that tried."""
        while True:
            if self._closed:
                raise EngineUnavailable("The store has been closed. Nothing was written. Open it again.")
            if self.connection is not None and self.connection.is_usable:
                return self.connection
            if self._opening is not None:
                error = await asyncio.shield(self._opening)
                if error is not None:
                    raise copy(error) from error
                continue
            opening = self._opening = asyncio.get_running_loop().create_future()
            failure: HoldfastError | None = None
            try:
                self._replace(await self._connect())
            except HoldfastError as error:
                failure = error
                raise
            finally:  # also if this caller was cancelled: the next one tries
                self._opening = None
                opening.set_result(failure)

    def _replace(self, connection: Connection) -> None:
        before, self.connection = self.connection, connection
        if before is not None:
            before.close()
        if self._closed:  # while it was opened
            connection.close()

    def close(self) -> None:
        self._closed = True
        if self.connection is not None:
            self.connection.close()


class PrimaryConnections:
    """The connections of one event loop."""

    __slots__ = ("exchanges", "others")

    def __init__(self, connect: Connect, *, closed: bool) -> None:
        self.exchanges = OneConnection(connect, closed=closed)
        self.others = OneConnection(connect, closed=closed)

    @property
    def is_connected(self) -> bool:
        """From any thread."""
        pair = (self.exchanges.connection, self.others.connection)
        return any(one is not None and not one.closed.done() for one in pair)

    def close(self) -> None:
        """Call it in the thread of the loop."""
        self.exchanges.close()
        self.others.close()
