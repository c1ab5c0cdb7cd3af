"""One command, one call of the script: what goes with it, and what its reply means.

With each call goes what the server must know besides the command: the last time and the history that this process has
seen, the channel for notifications, the offset of the clock in tests. With each reply comes the time and the history as
they are now. A clear or resize that is not done after one call is finished here, piece by piece.
"""

import logging
from typing import Any

from msgspec.structs import replace

from holdfast.engines.redis import answers, audit, calls, failures
from holdfast.engines.redis.cluster import ClusterPrimaries
from holdfast.engines.redis.durability import ServerDurability
from holdfast.engines.redis.history import StoreHistory
from holdfast.engines.redis.presence import SubscribedHeartbeat
from holdfast.engines.redis.primary import Connect, Primary
from holdfast.engines.redis.scripts import ServerScript
from holdfast.engines.redis.servers import Servers
from holdfast.engines.redis.unfinished import ContinueWork
from holdfast.errors import EngineError, HoldfastError, OutcomeUnknown
from holdfast.model.command import A, Command
from holdfast.model.instants import SECOND, Instant, Micros
from holdfast.model.observe import Audit, AuditAnswer, Now, Prune
from holdfast.model.operate import ScopeAnswer
from holdfast.model.reads import READS
from holdfast.model.text import shown
from holdfast.model.work import Heartbeat, Renew
from holdfast.runtime import Runtime

_logger = logging.getLogger("holdfast.redis")

LONGEST_LEAD_US = 5 * SECOND
"""A client may have seen a later time than the server's clock has: after a failover, or a step of the clock. Up to this
lead the answers to this client do not go back. A longer lead was a wrong time, and is dropped (TM3)."""

_WITHOUT_REPLICAS = READS | {Renew, Heartbeat, SubscribedHeartbeat}
"""Commands that do not wait for replicas. If a failover loses a renewal, the job may run again sooner."""
Primaries = Primary | ClusterPrimaries


class ScriptCaller:
    """`fast`: use the fast path of the script."""

    def __init__(
        self,
        servers: Servers,
        durability: ServerDurability,
        history: StoreHistory,
        runtime: Runtime,
        script: ServerScript,
        *,
        fast: bool,
    ) -> None:
        self._servers = servers
        self._place = servers.place
        self._durability = durability
        self._history = history
        self._runtime = runtime
        self._script = script
        self._fast = fast
        self.offset_us: Micros = 0
        """Added to the server's clock: for tests."""
        self.not_before_us: Instant = 0
        """The latest time that this process has seen."""

    def make_primary(self, connect: Connect, place: str) -> Primary:
        return Primary(connect, place, self._script, self._runtime, self.options, self.refusal)

    async def perform(self, primary: Primaries, root: str, command: Command[A], *, first_rank: int = 0) -> A:
        """Carry out a command over these connections. `first_rank`: of the first lease of its claim."""
        if isinstance(command, Audit):
            return await self._audit(primary, root)  # type: ignore[return-value]  # the type that belongs to the command
        not_before_us = self.not_before_us
        seen = self._history.seen(root)
        wait = self._durability.wait
        if wait is not None and type(command) in _WITHOUT_REPLICAS:
            wait = None
        try:
            reply = await primary.call(root, calls.encode(command), wait, first_rank)
            if wait is not None and reply.replicas < wait[0]:
                self._durability.check_replicas(reply.replicas, calls.verb_of(type(command)), failures.ids_of(command))
        except OutcomeUnknown as unknown:
            raise failures.with_ids(unknown, command, replicated=wait is not None) from unknown.__cause__
        head, answer = answers.decode(command, reply.values)
        self._history.note(root, seen, head.born, head.tip, (reply.run, head.begin))
        self._note_time(head.wall, not_before_us)
        for queue, job_id, note in head.repaired:
            _logger.error("Job %s of queue %s: %s.", shown(job_id), shown(queue), note)
        if head.begun:
            answer = await self._finish(primary, root, head.begun, answer)
        if type(command) is Prune:
            await self._durability.check_again(primary.commands, head.wall)
        return answer

    async def _audit(self, primary: Primaries, root: str) -> AuditAnswer:
        async def read_time() -> Instant:
            return (await self.perform(primary, root, Now())).at.wall

        problems = await audit.problems(primary.command, root, read_time)
        return AuditAnswer(at=(await self.perform(primary, root, Now())).at, problems=problems)

    async def _finish(self, primary: Primaries, root: str, begun: tuple[str, ...], answer: A) -> A:
        """Do the rest of a clear or resize, piece by piece. Other clients have their turns in between."""
        count, at = 0, answer.at
        for name in begun:
            more = True
            while more:
                try:
                    piece = await self.perform(primary, root, ContinueWork(name=name))
                except EngineError as error:
                    if isinstance(answer, ScopeAnswer):
                        raise OutcomeUnknown(
                            f"The clear has begun and stopped before its end: {error} A worker will continue it.",
                            verb="clear",
                            engine=failures.SCHEME,
                        ) from error
                    _logger.warning(
                        "Redis at %s: the end of a resize stopped (%s). The next claim or prune will continue it.",
                        self._place,
                        error,
                    )
                    return answer
                count, more, at = count + piece.count, piece.more, piece.at
        if isinstance(answer, ScopeAnswer):
            return replace(answer, at=at, count=answer.count + count)
        return answer

    def refusal(self, error: failures.ReplyError, root: str, run: str) -> HoldfastError:
        """The error for a call that the script has refused: `HISTORY born tip begin`, or `FORMAT number`."""
        kind, _, rest = error.text.partition(" ")
        if kind == "HISTORY":
            return self._history.lost(root, rest, run)
        if kind == "FORMAT":
            return failures.of_format(rest, self._place)
        return EngineError(f"Redis at {self._place}: {error.text}.", engine=failures.SCHEME)

    def options(self, root: str, run: str, first_rank: int, replicated: bool) -> bytes:
        """The second argument of a call. `replicated`: WAIT follows the call."""
        options: dict[str, Any] = self._history.options(root, run)
        options["format"] = failures.FORMAT
        options["channel"] = self._servers.channel_prefix(root)
        if self._servers.sharded:
            options["sharded"] = True
        if first_rank:
            options["first_rank"] = first_rank
        if replicated:
            options["replicated"] = True
        if self.offset_us:
            options["offset"] = self.offset_us
        if self.not_before_us:
            options["last"] = self.not_before_us
        if not self._fast:
            options["fast"] = False
        return calls.encode_map(options)

    def _note_time(self, wall: int, not_before_us: int) -> None:
        """`wall` is the time of an answer, `not_before_us` the earliest time that its call asked for."""
        if wall >= self.not_before_us:
            self.not_before_us = wall
        elif wall < not_before_us and self.not_before_us - wall > LONGEST_LEAD_US:  # TM3: the server has dropped it
            _logger.warning(
                "The clock of Redis at %s is %.1f s behind a time that this process has seen: it was set back, or "
                "another server answers now. From now on the server's time counts.",
                self._place,
                (self.not_before_us - wall) / SECOND,
            )
            self.not_before_us = wall
