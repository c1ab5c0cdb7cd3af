"""An exchange over several queues, where each queue has a root of its own: one call per queue.

Settlements and starts go to their queues at the same time. Claims go to one queue after the other, in the order of the
claim, until its limit is filled; a queue's settlements travel with its claim. The ranks of the leases go on from queue
to queue, so every token of the claim is different.

If the primary of one queue cannot be reached, or has lost its history, the others go on: its settlements and starts are
answered `busy`, and the claim passes over it.

A claim sent again must take nothing new while it holds leases, and no call sees the leases of another queue. The engine
remembers its last claims over several queues. A claim that it has sent before first asks every queue for the leases
that the claim holds there, and takes jobs only if there are none.
"""

import asyncio
from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.engines.ledger.state import rank_of
from holdfast.engines.redis.calls_apart import PASSING, CallsApart, in_parallel, latest
from holdfast.model.work import (
    Claim,
    Exchange,
    ExchangeAnswer,
    LaneName,
    Lease,
    QueueClaim,
    Settlement,
    SettleStatus,
    Start,
    StartStatus,
)

CLAIMS_REMEMBERED = 1_000
"""A worker sends an unanswered claim again before it makes many others."""


class ExchangesApart:
    def __init__(self, calls: CallsApart) -> None:
        self._calls = calls
        self._sent_claims: dict[str, None] = {}

    async def perform(self, command: Exchange) -> ExchangeAnswer:
        queue = _only_queue(command)
        if queue is not None:
            return await self._calls.on_queue(queue, command)
        parts = _ExchangeParts(command)
        claim = command.claim
        if not parts.claims and not parts.unclaimed:
            return await self._calls.on_no_queue(command)
        if claim is None or not parts.claims:
            return await self._settle(parts, parts.unclaimed)
        repeated = claim.claim_id in self._sent_claims
        self._remember(claim.claim_id)
        if not repeated:
            return await self._settle(parts, parts.unclaimed, claim)
        held = await self._settle(parts, parts.unclaimed, replace(claim, limit=0, prefetch=0))
        if held.leases or claim.limit + claim.prefetch == 0:
            return replace(held, leases=tuple(sorted(held.leases, key=lambda lease: rank_of(lease.token))))
        new = await self._settle(_ExchangeParts(Exchange(claim=claim)), (), claim)
        return replace(new, settled=held.settled, started=held.started, emptied=(*held.emptied, *new.emptied))

    def _remember(self, claim_id: str) -> None:
        self._sent_claims.pop(claim_id, None)
        self._sent_claims[claim_id] = None
        if len(self._sent_claims) > CLAIMS_REMEMBERED:
            del self._sent_claims[next(iter(self._sent_claims))]

    async def _settle(
        self, parts: "_ExchangeParts", unclaimed: Iterable[str], claim: Claim | None = None
    ) -> ExchangeAnswer:
        """Settle and start in the queues that are not claimed from, and meanwhile claim, if there is a claim."""
        queues = list(unclaimed)
        calls = in_parallel([self._calls.on_queue(queue, parts.of(queue)) for queue in queues])
        if claim is None:
            return parts.join(dict(zip(queues, await calls, strict=True)))
        claimed, answers = await asyncio.gather(self._claim(parts, claim), calls, return_exceptions=True)
        for outcome in (claimed, answers):
            if isinstance(outcome, BaseException):
                raise outcome
        assert isinstance(claimed, dict)
        assert isinstance(answers, list)
        return parts.join(claimed | dict(zip(queues, answers, strict=True)))

    async def _claim(self, parts: "_ExchangeParts", claim: Claim) -> "dict[str, ExchangeAnswer | Exception]":
        """One queue after the other. Only an error after which nothing was written lets the claim go on."""
        outcomes: dict[str, ExchangeAnswer | Exception] = {}
        most = claim.limit + claim.prefetch
        count = 0
        for queue, wanted in parts.claims.items():
            full = most > 0 and count >= most
            request = parts.of(queue, None if full else replace(claim, queues=wanted))
            if full and not (request.settlements or request.starts):
                continue
            try:
                answer = await self._calls.on_queue(queue, request, first_rank=count)
            except PASSING as error:
                outcomes[queue] = error
            else:
                outcomes[queue] = answer
                count += len(answer.leases)
        return outcomes


class _ExchangeParts:
    """An exchange, divided by queue."""

    def __init__(self, command: Exchange) -> None:
        self._command = command
        self._settlements: dict[str, list[Settlement]] = {}
        self._starts: dict[str, list[Start]] = {}
        self.claims: dict[str, tuple[QueueClaim, ...]] = {}
        """In the order of the claim."""
        for settlement in command.settlements:
            self._settlements.setdefault(settlement.queue, []).append(settlement)
        for start in command.starts:
            self._starts.setdefault(start.queue, []).append(start)
        if command.claim is not None:
            for wanted in command.claim.queues:
                self.claims[wanted.queue] = (*self.claims.get(wanted.queue, ()), wanted)

    @property
    def unclaimed(self) -> list[str]:
        """Queues with settlements or starts, and without a claim."""
        return [queue for queue in {**self._settlements, **self._starts} if queue not in self.claims]

    def of(self, queue: str, claim: Claim | None = None) -> Exchange:
        return Exchange(
            settlements=tuple(self._settlements.get(queue, ())), starts=tuple(self._starts.get(queue, ())), claim=claim
        )

    def join(self, outcomes: "dict[str, ExchangeAnswer | Exception]") -> ExchangeAnswer:
        """One answer. What was meant for a primary that cannot carry it out now is `busy`."""
        answers = {queue: answer for queue, answer in outcomes.items() if isinstance(answer, ExchangeAnswer)}
        errors = [error for error in outcomes.values() if isinstance(error, Exception)]
        for error in errors:
            if not isinstance(error, PASSING) or not answers:
                raise error
        settled = {queue: iter(answer.settled) for queue, answer in answers.items()}
        started = {queue: iter(answer.started) for queue, answer in answers.items()}
        leases: list[Lease] = []
        emptied: list[LaneName] = []
        for answer in answers.values():
            leases += answer.leases
            emptied += answer.emptied
        return ExchangeAnswer(
            at=latest(answer.at for answer in answers.values()),
            settled=tuple(
                next(settled[one.queue]) if one.queue in settled else SettleStatus.BUSY
                for one in self._command.settlements
            ),
            started=tuple(
                next(started[one.queue]) if one.queue in started else StartStatus.BUSY for one in self._command.starts
            ),
            emptied=tuple(emptied),
            leases=tuple(leases),
            next_due=min((answer.next_due for answer in answers.values() if answer.next_due is not None), default=None),
        )


def _only_queue(command: Exchange) -> str | None:
    """The only queue that the exchange names; None: it names several, or none."""
    queue: str | None = None
    if command.claim is not None:
        if len(command.claim.queues) != 1:
            return None
        queue = command.claim.queues[0].queue
    for part in (command.settlements, command.starts):
        for one in part:
            if queue is None:
                queue = one.queue
            elif one.queue != queue:
                return None
    return queue
