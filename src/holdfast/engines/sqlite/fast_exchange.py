"""Fast path: an exchange with the short ways of `fast_settle.py` and `fast_claim.py`.

The order of the steps is that of the ledger's `exchange` and `claim`, which are translated into the rules of another
engine and so take no functions as parameters.
"""

from holdfast.engines.ledger import parents
from holdfast.engines.ledger.claim import claim, promote_due
from holdfast.engines.ledger.settle import start
from holdfast.engines.ledger.step import Step
from holdfast.engines.sqlite.fast_claim import PlainClaims
from holdfast.engines.sqlite.fast_settle import PlainSettlements
from holdfast.model.instants import Instant
from holdfast.model.work import Claim, Exchange, ExchangeAnswer, Lease


class PlainExchanges(PlainSettlements, PlainClaims):
    def exchange(self, step: Step, command: Exchange) -> ExchangeAnswer:
        # W2: settlements, then children, then starts, then due jobs and the claim.
        settled = self.settle_all(step, command.settlements)
        parents.resolve(step)
        started = [start(step, one) for one in command.starts]
        leases, next_due = ((), None) if command.claim is None else self._claim(step, command.claim)
        return ExchangeAnswer(
            at=step.at,
            settled=tuple(settled),
            started=tuple(started),
            emptied=tuple(step.emptied),  # L8
            leases=leases,
            next_due=next_due,
        )

    def _claim(self, step: Step, request: Claim) -> tuple[tuple[Lease, ...], Instant | None]:
        if self.held_by(request.claim_id):  # T2: it was sent again
            return claim(step, request)
        leases: list[Lease] = []
        dues: list[Instant] = []
        for wanted in request.queues:  # S3
            record = self.queue(wanted.queue)
            if record is None or record.paused:  # C5, U1
                continue
            promote_due(step, wanted.queue)  # C1
            self.take(step, request, wanted, leases)
            due = self.next_due(wanted.queue)
            if due is not None:
                dues.append(due)
        return tuple(leases), min(dues, default=None)  # C4
