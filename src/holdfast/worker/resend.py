"""Sends an exchange to the engine, again and again, until the engine has answered.

There are two kinds of failure. If the engine cannot be reached, or its answer was lost, the same request is sent again
with the same claim id and the same settlements; the engine recognises both. If the engine refuses the data, the batch
is halved until one settlement is left that it refuses: that job ends as failed(unstorable), and the others are settled
normally.

A settlement that the engine answers `busy` is no failure: another transaction has locked its job, and may do so for
long. `BusySettlements` sends it again, without the others, until it gets another answer.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from holdfast.engine import Engine
from holdfast.errors import CorruptRecord, EngineError
from holdfast.model.check import MAX_SETTLEMENTS
from holdfast.model.instants import SECOND, Micros, Seconds
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo, describe, shown
from holdfast.model.work import Claim, ExchangeAnswer, LaneName, Settlement, SettleStatus, Start
from holdfast.runtime import Runtime
from holdfast.service import Service, StoreOutage, back_off
from holdfast.worker.attempt import LeasedAttempt

LONGEST_BUSY_PAUSE_S: Seconds = 2.0
"""Between two tries of busy settlements: a lock that is released is noticed within this time."""

_logger = logging.getLogger("holdfast.worker")


class Resender:
    """Sends exchanges of one worker."""

    def __init__(self, runtime: Runtime, engine: Engine, outage: StoreOutage | None = None) -> None:
        self._runtime = runtime
        self._engine = engine
        self._outage = StoreOutage(runtime) if outage is None else outage

    async def send(
        self, settlements: Sequence[Settlement], starts: Sequence[Start] = (), claim: Claim | None = None
    ) -> tuple[ExchangeAnswer, Sequence[Settlement]]:
        """Send one exchange; return its answer and the settlements as sent in the end (some may have been replaced)."""
        try:
            return await self._send_until_answered(settlements, starts, claim), settlements
        except Exception as error:
            if not settlements:
                raise
            _logger.warning(
                "The store refused a batch of %d settlements (%s). It is sent again in parts.", len(settlements), error
            )
        parts = await self._in_parts(settlements)
        answer = await self._send_until_answered((), starts, claim)
        combined = ExchangeAnswer(
            at=answer.at,
            settled=tuple(settled for _, settled in parts.settled),
            started=answer.started,
            emptied=(*parts.emptied, *answer.emptied),
            leases=answer.leases,
            next_due=answer.next_due,
        )
        return combined, [settlement for settlement, _ in parts.settled]

    async def _send_until_answered(
        self, settlements: Sequence[Settlement], starts: Sequence[Start] = (), claim: Claim | None = None
    ) -> ExchangeAnswer:
        """Send the same request until the engine answers it. Raises only what sending again cannot cure."""
        failures = 0
        while True:
            try:
                answer = await self._engine.exchange(settlements, starts, claim)
            except CorruptRecord:
                raise
            except EngineError as error:
                failures += 1
                self._outage.note(error)
                await self._outage.pause(back_off(failures, self._runtime.random()))
            else:
                if failures:
                    self._outage.end()
                return answer

    async def _in_parts(self, settlements: Sequence[Settlement]) -> "_Parts":
        try:
            answer = await self._send_until_answered(settlements)
            return _Parts(list(zip(settlements, answer.settled, strict=True)), answer.emptied)
        except Exception as error:
            if len(settlements) == 1:
                return await self._fail_job(settlements[0], error)
        middle = len(settlements) // 2
        first = await self._in_parts(settlements[:middle])
        second = await self._in_parts(settlements[middle:])
        return _Parts(first.settled + second.settled, first.emptied + second.emptied)

    async def _fail_job(self, refused: Settlement, error: Exception) -> "_Parts":
        """Fail the job whose outcome cannot be stored. If that cannot be stored either, its lease expires."""
        info = describe(error)
        failure = Settlement(
            queue=refused.queue,
            id=refused.id,
            token=refused.token,
            target=JobState.FAILED,
            reason=Reason.UNSTORABLE,
            error=ErrorInfo(info.type, info.message, ""),
        )
        _logger.error("The outcome of job %s cannot be stored: %s. The job fails.", shown(refused.id), error)
        try:
            answer = await self._send_until_answered([failure])
        except Exception:
            _logger.exception("Job %s cannot be settled at all; its lease will expire.", shown(refused.id))
            return _Parts([(failure, SettleStatus.GONE)], ())
        return _Parts([(failure, answer.settled[0])], answer.emptied)


class _Parts(NamedTuple):
    """Settlements that were sent in parts, in order, each with its answer."""

    settled: list[tuple[Settlement, SettleStatus]]
    emptied: tuple[LaneName, ...]


class BusySettlements(Service):
    """Sends settlements of locked jobs again, all of them in one call, while the exchange goes on with the others."""

    name = "busy settlements"

    def __init__(
        self,
        runtime: Runtime,
        resender: Resender,
        on_answer: Callable[[list[LeasedAttempt], Sequence[Settlement], ExchangeAnswer], Awaitable[None]],
    ) -> None:
        super().__init__(runtime)
        self._resender = resender
        self._on_answer = on_answer
        self._waiting: dict[LeasedAttempt, Micros] = {}
        """Since when each of them is busy, on the monotonic clock."""
        self._tries = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, attempt: LeasedAttempt) -> None:
        """The engine answered `busy`."""
        if attempt not in self._waiting:
            self._waiting[attempt] = self.runtime.monotonic()
            self._tries = 0
            _logger.warning(
                "Job %s (%s) has ended, but another transaction has locked it: its outcome is sent again until the "
                "lock is free.",
                shown(attempt.lease.id),
                shown(attempt.lease.task),
            )
            self.waker.wake()

    async def tick(self) -> float | None:
        if not self._waiting:
            return None
        self._tries += 1
        await self.runtime.sleep(min(back_off(self._tries), LONGEST_BUSY_PAUSE_S))
        batch = [attempt for attempt in self._waiting if attempt.settlement is not None][:MAX_SETTLEMENTS]
        answer, settlements = await self._resender.send([a.settlement for a in batch if a.settlement is not None])
        for attempt, status in zip(batch, answer.settled, strict=True):
            since = self._waiting.pop(attempt)
            if status is SettleStatus.BUSY:
                self._waiting[attempt] = since  # at the end: if there are many, each of them gets its turn
            else:
                waited_s = (self.runtime.monotonic() - since) / SECOND
                _logger.info("Job %s is no longer locked, after %.1f s: %s.", shown(attempt.lease.id), waited_s, status)
        await self._on_answer(batch, settlements, answer)
        return 0 if self._waiting else None
