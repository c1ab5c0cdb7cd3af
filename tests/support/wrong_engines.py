"""Engines that are wrong in one way each, for the tests that show that the oracle notices."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.engines.memory import MemoryEngine
from holdfast.model import observe, operate, produce, work
from holdfast.model.command import A, Command
from holdfast.model.instants import HOUR, At
from holdfast.model.job import JobKey
from holdfast.model.states import TERMINAL, JobState

Bend = Callable[[Any], Any]
"""An answer turned into a lie, or left alone where there is nothing to lie about."""


class WrongAnswer(NamedTuple):
    """`found_in` is how the oracle's line begins, as a pattern."""

    name: str
    answer: type
    bend: Bend
    found_in: str


class WrongAnswerEngine(MemoryEngine):
    """Tells one lie whenever it can."""

    lie: WrongAnswer

    def perform_now(self, command: Command[A]) -> A:
        answer: Any = super().perform_now(command)
        return self.lie.bend(answer) if isinstance(answer, self.lie.answer) else answer  # type: ignore[no-any-return]


# --- Ways to bend an answer ---


def first(field: str, bend: Bend, which: Callable[[Any], object] = lambda item: True) -> Bend:
    """WrongAnswer about the first item of a list that can be lied about."""

    def bent(answer: Any) -> Any:
        items = list(getattr(answer, field))
        for place, item in enumerate(items):
            if item is not None and which(item) and bend(item) != item:
                items[place] = bend(item)
                return replace(answer, **{field: tuple(items)})
        return answer

    return bent


def more(field: str, by: int = 1) -> Bend:
    def bent(item: Any) -> Any:
        value = getattr(item, field)
        return item if value is None else replace(item, **{field: value + by})

    return bent


def with_(**fields: Any) -> Bend:
    return lambda item: replace(item, **fields)


def instead(wrong: Any, right: Any) -> Bend:
    return lambda item: wrong if item is right else item


def without_last(field: str) -> Bend:
    return lambda answer: replace(answer, **{field: getattr(answer, field)[:-1]})


def backwards(field: str) -> Bend:
    return lambda answer: replace(answer, **{field: getattr(answer, field)[::-1]})


def in_groups(bend: Bend) -> Bend:
    return first("groups", bend, lambda group: isinstance(group, produce.GroupAccepted))


def swapped_arrivals(group: Any) -> Any:
    created = [job for job in group.jobs if job.status is produce.EnqueueStatus.CREATED]
    if len(created) < 2 or created[:2] != list(group.jobs[:2]):
        return group
    one, two = created[:2]
    return replace(group, jobs=(replace(one, arrival=two.arrival), replace(two, arrival=one.arrival), *group.jobs[2:]))


CREATED, DONE = produce.EnqueueStatus.CREATED, operate.OperateStatus.DONE
HELD, LATE, APPLIED = work.RenewStatus.HELD, work.SettleStatus.LOST, work.SettleStatus.APPLIED

ANSWERS = (
    WrongAnswer(
        "time-goes-back",
        observe.GetAnswer,
        lambda a: replace(a, at=At(a.at.wall - HOUR, a.at.lease - HOUR)),
        "Get: time",
    ),
    # Enqueue
    WrongAnswer(
        "state",
        produce.EnqueueAnswer,
        in_groups(first("jobs", with_(state=JobState.RUNNING))),
        r".*\.jobs\[\d\]\.state",
    ),
    WrongAnswer("depth", produce.EnqueueAnswer, in_groups(first("jobs", more("depth"))), r"Enqueue: .*\.depth is"),
    WrongAnswer(
        "position", produce.EnqueueAnswer, in_groups(first("jobs", more("position"))), r"Enqueue: .*\.position is"
    ),
    WrongAnswer("arrivals-swapped", produce.EnqueueAnswer, in_groups(swapped_arrivals), r"Enqueue: .*\.arrival is"),
    WrongAnswer(
        "duplicate-created", produce.EnqueueAnswer, in_groups(first("jobs", with_(status=CREATED))), r".*\.status is"
    ),
    WrongAnswer(
        "result-forgotten", produce.EnqueueAnswer, in_groups(first("jobs", with_(result=None))), r".*\.result is None"
    ),
    WrongAnswer(
        "full-at-another-depth",
        produce.EnqueueAnswer,
        first("groups", more("depth"), lambda group: isinstance(group, produce.GroupFull)),
        r"Enqueue: groups\[0\]\.depth is",
    ),
    WrongAnswer("group-dropped", produce.EnqueueAnswer, without_last("groups"), "Enqueue: groups has 0"),
    # Exchange
    WrongAnswer("attempt", work.ExchangeAnswer, first("leases", more("attempt")), r"Exchange: leases\[0\]\.attempt"),
    WrongAnswer("due", work.ExchangeAnswer, first("leases", more("due")), r"Exchange: leases\[0\]\.due"),
    WrongAnswer("fence", work.ExchangeAnswer, first("leases", more("fence", -1)), r"Exchange: leases\[0\]\.fence"),
    WrongAnswer("expiry", work.ExchangeAnswer, first("leases", more("lease_expires")), r"Exchange: .*\.lease_expires"),
    WrongAnswer("token", work.ExchangeAnswer, first("leases", with_(token="c9.9")), r"Exchange: leases\[0\]\.token"),
    WrongAnswer("order-of-leases", work.ExchangeAnswer, backwards("leases"), r"Exchange: leases\[0\]\."),
    WrongAnswer("dropped-lease", work.ExchangeAnswer, without_last("leases"), r"Exchange: leases has \d"),
    WrongAnswer("next-due", work.ExchangeAnswer, more("next_due"), "Exchange: next_due"),
    WrongAnswer("lane-emptied-untold", work.ExchangeAnswer, without_last("emptied"), "Exchange: emptied"),
    WrongAnswer(
        "late-called-applied", work.ExchangeAnswer, first("settled", instead(APPLIED, LATE)), r"Exchange: settled\[\d\]"
    ),
    WrongAnswer(
        "applied-called-late", work.ExchangeAnswer, first("settled", instead(LATE, APPLIED)), r"Exchange: settled\[\d\]"
    ),
    WrongAnswer(
        "late-start-allowed",
        work.ExchangeAnswer,
        first("started", instead(work.StartStatus.STARTED, work.StartStatus.LOST)),
        r"Exchange: started\[\d\]",
    ),
    # Leases
    WrongAnswer("lost-called-held", work.RenewAnswer, first("jobs", with_(status=HELD)), r"Renew: jobs\[\d\]\.status"),
    WrongAnswer(
        "renewed-for-longer", work.RenewAnswer, first("jobs", more("lease_expires")), r"Renew: jobs.*lease_expires"
    ),
    WrongAnswer("expired-left-out", work.ExpiredAnswer, without_last("leases"), "Expired: leases has"),
    WrongAnswer(
        "expired-twice", work.ExpiredAnswer, lambda a: replace(a, leases=a.leases * 2), "Expired: leases names"
    ),
    WrongAnswer(
        "losses-at-reaping", work.ExpiredAnswer, first("leases", more("losses")), r"Expired: leases\[0\]\.losses"
    ),
    WrongAnswer("disowned-left-out", work.DisownAnswer, without_last("leases"), "Disown: leases has"),
    WrongAnswer("nobody-is-to-stop", work.HeartbeatAnswer, with_(stop=False), "Heartbeat: stop"),
    # Operating
    WrongAnswer(
        "cancelled-called-finished",
        operate.CancelJobsAnswer,
        first("jobs", with_(status=operate.CancelStatus.FINISHED)),
        r"Cancel: jobs\[\d\]\.status",
    ),
    WrongAnswer(
        "operator-told-done", operate.OperateAnswer, first("jobs", with_(status=DONE)), r".*: jobs\[\d\]\.status"
    ),
    WrongAnswer("count-of-a-scope", operate.ScopeAnswer, more("count"), ".*: count is"),
    WrongAnswer("emptied-again", operate.EmptiedAnswer, with_(emptied=True), "Emptied: emptied"),
    WrongAnswer("pool-made-anew", operate.PoolAnswer, with_(changed=True), "PutPool: changed"),
    # Looking and keeping house
    WrongAnswer("record-missing", observe.GetAnswer, first("jobs", lambda job: None), r"Get: jobs\[\d+\] is None"),
    WrongAnswer("history-forgotten", observe.GetAnswer, first("jobs", with_(history=())), "Get: .*history has 0"),
    WrongAnswer("kept-for-longer", observe.GetAnswer, first("jobs", more("visible_until")), "Get: .*visible_until"),
    WrongAnswer("found-in-another-order", observe.FindAnswer, backwards("jobs"), r"Find: jobs\[0\]"),
    WrongAnswer("last-page", observe.FindAnswer, with_(cursor=None), "Find: cursor"),
    WrongAnswer("due-count", observe.StatsAnswer, first("queues", more("due")), r"Stats: queues\[0\]\.due"),
    WrongAnswer("lane-depth", observe.LanesAnswer, first("lanes", more("depth")), r"Lanes: lanes\[0\]\.depth"),
    WrongAnswer("pruned-a-stranger", observe.PruneAnswer, with_(deleted=(JobKey("q", "z"),)), "Prune: deleted has"),
    WrongAnswer("pruned-unsaid", observe.PruneAnswer, without_last("deleted"), "Prune: more is False"),
    WrongAnswer("nothing-more-to-prune", observe.PruneAnswer, with_(more=False), "Prune: more is False"),
    WrongAnswer("always-more-to-prune", observe.PruneAnswer, with_(more=True), "Prune: more is True"),
    WrongAnswer("worker-forgotten-unsaid", observe.PruneAnswer, without_last("workers"), "Prune: workers is"),
    WrongAnswer(
        "audit-finds-something", observe.AuditAnswer, with_(problems=("oh",)), "Audit: the engine's structure.*oh"
    ),
)


# --- Wrong deeds ---


class WrongActionEngine(MemoryEngine):
    """Carries out something else than it was asked, and answers as if nothing were amiss."""

    def perform_now(self, command: Command[A]) -> A:
        wrong: Command[A] = self.bent(command)
        return super().perform_now(wrong)

    def bent(self, command: Any) -> Any:
        if isinstance(command, work.Exchange):
            return replace(command, settlements=tuple(map(self.bent_settlement, command.settlements)))
        if isinstance(command, produce.Enqueue):
            return replace(command, groups=tuple(map(self.bent_group, command.groups)))
        return command

    def bent_settlement(self, settlement: work.Settlement) -> work.Settlement:
        return settlement

    def bent_group(self, group: produce.Group) -> produce.Group:
        return group

    def job(self, queue: str, id: str) -> Any:
        return super().perform_now(observe.Get(jobs=(JobKey(queue, id),))).jobs[0]


class SettlesAnyToken(WrongActionEngine):
    def bent_settlement(self, settlement: work.Settlement) -> work.Settlement:
        job = self.job(settlement.queue, settlement.id)
        return settlement if job is None or job.token is None else replace(settlement, token=job.token)


class CountsNoLoss(WrongActionEngine):
    def bent_settlement(self, settlement: work.Settlement) -> work.Settlement:
        return replace(settlement, listed_expiry=None)


class ReleasesAtTheCostOfAnAttempt(WrongActionEngine):
    def bent_settlement(self, settlement: work.Settlement) -> work.Settlement:
        return replace(settlement, refund=False)


class ForgetsDelays(WrongActionEngine):
    def bent_group(self, group: produce.Group) -> produce.Group:
        return replace(group, jobs=tuple(replace(job, delay=0) for job in group.jobs))


class IgnoresLimits(WrongActionEngine):
    def bent_group(self, group: produce.Group) -> produce.Group:
        return replace(group, limits=())


class RunsOnWhilePaused(WrongActionEngine):
    def perform_now(self, command: Command[A]) -> A:
        answer = super().perform_now(command)
        if isinstance(command, operate.Pause):
            super().perform_now(operate.Resume(queue=command.queue, lane=command.lane))
        return answer


class ClaimsTwiceByOneId(WrongActionEngine):
    claims = 0

    def bent(self, command: Any) -> Any:
        if isinstance(command, work.Exchange) and command.claim is not None:
            self.claims += 1
            return replace(command, claim=replace(command.claim, claim_id=f"{command.claim.claim_id}-{self.claims}"))
        return command

    def perform_now(self, command: Command[A]) -> A:
        answer: Any = super().perform_now(command)
        if isinstance(answer, work.ExchangeAnswer):
            answer = replace(answer, leases=tuple(map(self.disguised, answer.leases)))
        return answer  # type: ignore[no-any-return]

    def disguised(self, lease: work.Lease) -> work.Lease:
        claim_id, _, rest = lease.token.partition("-")
        return replace(lease, token=f"{claim_id}.{rest.partition('.')[2]}")


class LosesFinishedJobs(WrongActionEngine):
    def perform_now(self, command: Command[A]) -> A:
        answer = super().perform_now(command)
        if isinstance(command, observe.Get):
            for key in command.jobs:
                job = self.job(key.queue, key.id)
                if job is not None and job.state in TERMINAL:
                    super().perform_now(operate.Delete(queue=key.queue, ids=(key.id,)))
        return answer


class ClearsNothing(WrongActionEngine):
    def perform_now(self, command: Command[A]) -> A:
        if not isinstance(command, operate.Clear):
            return super().perform_now(command)
        counted: Any = super().perform_now(operate.Resume(queue=command.queue, lane=command.lane))
        return replace(counted, changed=True)  # type: ignore[no-any-return]


class RenewsNothing(WrongActionEngine):
    def perform_now(self, command: Command[A]) -> A:
        renewals = command.jobs if isinstance(command, work.Renew) else ()
        before = [self.job(renewal.queue, renewal.id) for renewal in renewals]
        answer = super().perform_now(command)
        for old in before:
            new = None if old is None else self.job(old.queue, old.id)
            if new != old:
                self._ledger.state.swap_job(new, old)
        return answer


WRONG_ACTIONS: tuple[type[WrongActionEngine], ...] = (
    SettlesAnyToken,
    CountsNoLoss,
    ReleasesAtTheCostOfAnAttempt,
    ForgetsDelays,
    IgnoresLimits,
    RunsOnWhilePaused,
    ClaimsTwiceByOneId,
    LosesFinishedJobs,
    ClearsNothing,
    RenewsNothing,
)
