"""Carries exchanges to the engine and does not come back without an answer.

Two kinds of trouble. The engine cannot be reached, or its answer was lost: then the very same request is sent again,
with the same claim id and the same settlements, until it is answered; the engine recognises both. Or the engine chokes
on the data: then the batch is halved until the culprit stands alone, and that job ends as failed(unstorable), while
the others are settled as if nothing had been.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.engine import Engine
from holdfast.errors import CorruptRecord, EngineError
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo, describe
from holdfast.model.work import Claim, ExchangeAnswer, LaneName, Settlement, SettleStatus, Start
from holdfast.runtime import Runtime
from holdfast.service import back_off

_logger = logging.getLogger("holdfast.worker")


class Resender:
    """Each request until it is answered."""

    def __init__(self, runtime: Runtime, engine: Engine) -> None:
        self._runtime = runtime
        self._engine = engine

    async def send(
        self, settlements: Sequence[Settlement], starts: Sequence[Start] = (), claim: Claim | None = None
    ) -> tuple[ExchangeAnswer, Sequence[Settlement]]:
        """One exchange: its answer, as if it had gone at once, and the settlements as they were sent in the end."""
        try:
            return await self._persist(settlements, starts, claim), settlements
        except Exception as error:
            if not settlements:
                raise
            _logger.warning(
                "The store refused a batch of %d settlements (%s); it is sent in parts.", len(settlements), error
            )
        parts = await self._in_parts(settlements)
        answer = await self._persist((), starts, claim)
        whole = ExchangeAnswer(
            at=answer.at,
            settled=tuple(settled for _, settled in parts.settled),
            started=answer.started,
            emptied=(*parts.emptied, *answer.emptied),
            leases=answer.leases,
            next_due=answer.next_due,
        )
        return whole, [settlement for settlement, _ in parts.settled]

    async def _persist(
        self, settlements: Sequence[Settlement], starts: Sequence[Start] = (), claim: Claim | None = None
    ) -> ExchangeAnswer:
        """The same request again and again, while only the engine is in trouble."""
        failures = 0
        while True:
            try:
                answer = await self._engine.exchange(settlements, starts, claim)
            except CorruptRecord:
                raise
            except EngineError as error:
                failures += 1
                pause = back_off(failures)
                _logger.warning("%s The same request goes out again in %.1f s.", error, pause)
                await self._runtime.sleep(pause)
            else:
                return answer

    async def _in_parts(self, settlements: Sequence[Settlement]) -> "_Parts":
        try:
            answer = await self._persist(settlements)
            return _Parts(list(zip(settlements, answer.settled, strict=True)), answer.emptied)
        except Exception as error:
            if len(settlements) == 1:
                return await self._set_aside(settlements[0], error)
        middle = len(settlements) // 2
        first = await self._in_parts(settlements[:middle])
        second = await self._in_parts(settlements[middle:])
        return _Parts(first.settled + second.settled, first.emptied + second.emptied)

    async def _set_aside(self, culprit: Settlement, error: Exception) -> "_Parts":
        """End the job whose outcome cannot be stored. If not even that can be, its lease runs out."""
        told = describe(error)
        plain = Settlement(
            queue=culprit.queue,
            id=culprit.id,
            token=culprit.token,
            target=JobState.FAILED,
            reason=Reason.UNSTORABLE,
            error=ErrorInfo(told.type, told.message, ""),
        )
        _logger.error("The outcome of job %s cannot be stored: %s. The job fails.", culprit.id, error)
        try:
            answer = await self._persist([plain])
        except Exception:
            _logger.exception("Job %s cannot be settled at all; its lease will run out.", culprit.id)
            return _Parts([(plain, SettleStatus.GONE)], ())
        return _Parts([(plain, answer.settled[0])], answer.emptied)


class _Parts(NamedTuple):
    """Settlements that were sent in parts, with their answers in order."""

    settled: list[tuple[Settlement, SettleStatus]]
    emptied: tuple[LaneName, ...]
