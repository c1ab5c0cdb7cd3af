"""Several callers at once, on every engine: the answers fit some order of the calls. And the judge can fail."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.engine import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.model.command import A, Command
from holdfast.model.instants import FOREVER, MILLISECOND, SECOND, At
from holdfast.model.observe import Get, Now, Stats
from holdfast.model.operate import Pause, Resume
from holdfast.model.produce import DepthLimit, Enqueue, EnqueueStatus, Group, GroupAccepted, NewJob
from holdfast.model.records import Totals
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Exchange, QueueClaim, Renew, RenewStatus, SettleStatus, TaskClaim
from holdfast.testing import FrozenRuntime
from holdfast.testing.histories import (
    AllVerbsCaller,
    History,
    Load,
    OpenTransactionCaller,
    RecordedCall,
    Verdict,
    check,
    check_roughly,
    check_transactions,
    overlap,
)
from holdfast.testing.histories.callers import RandomCaller

SURELY_MET = ["grants", "limits", "key holders", "EnqueueStatus.CREATED", "EnqueueStatus.DUPLICATE", "GroupFull"]
MET = [
    *SURELY_MET,
    "losses",
    "lost",
    "turns in lanes",
    "claims beside pauses",
    "jobs left behind",
    "EnqueueStatus.COMPLETED",
]
"""What a run must have come across, or it proves nothing about it."""

Judge = Callable[[History], Verdict]


async def judged(engines: list[Engine], seed: int, load: Load, kind: type[RandomCaller], judge: Judge) -> Counter[str]:
    """What was seen, if there was nothing wrong."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await engine.migrate()
            await engine.open()
            stack.push_async_callback(engine.close)
        verdict = judge(await overlap(engines, seed, load, kind=kind))
    assert verdict.problems == [], f"seed {seed}:\n" + "\n".join(verdict.problems)
    return verdict.seen


async def test_overlapping_calls_are_answered_in_some_order(make_engines: Callable[[int], list[Engine]]) -> None:
    seen = await judged(make_engines(6), 1, Load(callers=6, calls=120), RandomCaller, check)
    assert [what for what in SURELY_MET if not seen[what]] == []


async def test_callers_that_stop_at_nothing_leave_a_sound_store(make_engines: Callable[[int], list[Engine]]) -> None:
    seen = await judged(make_engines(6), 2, Load(callers=6, calls=80), AllVerbsCaller, check_roughly)
    assert [what for what in ("grants", "Clear", "Resize", "Requeue", "Audit") if not seen[what]] == []


async def test_open_transactions_of_users_make_no_other_call_wait(make_engines: Callable[[int], list[Engine]]) -> None:
    # PF5
    engines = make_engines(6)
    if not engines[0].capabilities.user_transactions:
        pytest.skip("not offered: the engine does not take part in transactions of its users")
    seen = await judged(engines, 3, Load(callers=6, calls=60), OpenTransactionCaller, check_transactions)
    assert seen["jobs in order"]
    assert seen["released children"] or not engines[0].capabilities.concurrent_writers


class LongTransactionCaller(OpenTransactionCaller):
    """More arrivals than one call admits, and transactions that stay open for longer than a call waits for a lock."""

    arrivals = 1_200
    open_ms = 3_000


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(300, 304))
@pytest.mark.time_limit(600)
async def test_open_transactions_of_users_make_no_other_call_wait_for_long(
    make_engines: Callable[[int], list[Engine]], seed: int
) -> None:
    # PF5
    engines = make_engines(10)
    capabilities = engines[0].capabilities
    if not (capabilities.user_transactions and capabilities.concurrent_writers):
        pytest.skip("not offered: no other call writes while a transaction of a user is open")
    await judged(engines, seed, Load(callers=10, calls=40), LongTransactionCaller, check_transactions)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 120))
async def test_overlapping_calls_are_answered_in_some_order_for_long(
    make_engines: Callable[[int], list[Engine]], seed: int
) -> None:
    seen = await judged(make_engines(10), seed, Load(callers=10, calls=400), RandomCaller, check)
    assert [what for what in MET if not seen[what]] == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200, 220))
async def test_callers_that_stop_at_nothing_leave_a_sound_store_for_long(
    make_engines: Callable[[int], list[Engine]], seed: int
) -> None:
    await judged(make_engines(10), seed, Load(callers=10, calls=300), AllVerbsCaller, check_roughly)


# --- The judge can fail: a true history, and one thing in it altered ---


class TickingEngine(MemoryEngine):
    """A millisecond passes with every call, and no other time; others may come in between."""

    async def perform(self, command: Command[A]) -> A:
        await asyncio.sleep(0)
        self.clock_offset += MILLISECOND
        return await super().perform(command)


class YieldingRuntime(FrozenRuntime):
    """Who sleeps only lets the others go first."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
def truth() -> History:
    """The same in every run."""

    async def played() -> History:
        engine = TickingEngine("memory://", FrozenRuntime())
        await engine.open()
        try:
            return await overlap([engine], 1, Load(callers=5, calls=300), YieldingRuntime())
        finally:
            await engine.close()

    return asyncio.run(played())


def test_right_answers_are_accepted(truth: History) -> None:
    assert check(truth).problems == []


Alter = Callable[[RecordedCall], Any]
"""The answer that is put in place of a call's own; None: it stays."""


def altered(truth: History, alter: Alter, *, once: bool = True) -> History:
    """The history with another answer, the first that can be altered or all of them."""
    calls, done = [], False
    for call in truth.calls:
        answer = None if done and once else alter(call)
        done = done or answer is not None
        calls.append(call if answer is None else RecordedCall(call.caller, call.command, answer, call.ticks))
    assert done, "nothing to alter"
    return History(calls, drained=True)


def problems(history: History) -> str:
    return "\n".join(check(history).problems)


def test_a_lease_that_is_given_twice_is_found_out(truth: History) -> None:
    first: list[Any] = []

    def alter(call: RecordedCall) -> Any:
        if not isinstance(call.command, Exchange) or call.command.claim is None or call.answer.leases:
            return None if not isinstance(call.command, Exchange) else first.extend(call.answer.leases[:1])
        if not first:
            return None
        lease = first[-1]
        again = replace(lease, token=f"{call.command.claim.claim_id}.0", fence=lease.fence + 1)
        return replace(call.answer, leases=(again,))

    said = problems(altered(truth, alter))
    assert "was leased as" in said or "two leases at once" in said


def test_a_settlement_that_is_applied_twice_is_found_out(truth: History) -> None:
    def alter(call: RecordedCall) -> Any:
        if isinstance(call.command, Exchange) and SettleStatus.LOST in call.answer.settled:
            reaps = all(one.listed_expiry is not None for one in call.command.settlements)
            return replace(call.answer, settled=(SettleStatus.APPLIED,) * len(call.answer.settled)) if reaps else None
        return None

    assert "settled more than once" in problems(altered(truth, alter))


def test_a_settlement_that_is_lost_for_no_reason_is_found_out(truth: History) -> None:
    def alter(call: RecordedCall) -> Any:
        if isinstance(call.command, Exchange) and call.answer.settled[:1] == (SettleStatus.APPLIED,):
            return replace(call.answer, settled=(SettleStatus.LOST, *call.answer.settled[1:]))
        return None

    assert "was answered lost, and no caller had taken the lease" in problems(altered(truth, alter))


def test_a_job_that_is_created_twice_is_found_out(truth: History) -> None:
    def alter(call: RecordedCall) -> Any:
        if isinstance(call.command, Enqueue):
            for group in call.answer.groups:
                if isinstance(group, GroupAccepted) and group.jobs[0].status is EnqueueStatus.DUPLICATE:
                    twin = replace(group.jobs[0], status=EnqueueStatus.CREATED)
                    return replace(call.answer, groups=(GroupAccepted((twin, *group.jobs[1:])),))
        return None

    assert "created more than once in one generation" in problems(altered(truth, alter))


def test_lanes_out_of_order_are_found_out(truth: History) -> None:
    """As if every job of a lane had come in front of those that were there."""

    def alter(call: RecordedCall) -> Any:
        if isinstance(call.command, Enqueue) and call.command.groups[0].jobs[0].queue == "lanes":
            group = call.answer.groups[0]
            if isinstance(group, GroupAccepted):
                jobs = tuple(replace(job, arrival=-job.arrival) for job in group.jobs)
                return replace(call.answer, groups=(GroupAccepted(jobs),))
        return None

    assert "which had waited in front of it" in problems(altered(truth, alter, once=False))


def test_a_fence_that_goes_back_is_found_out(truth: History) -> None:
    def alter(call: RecordedCall) -> Any:
        if isinstance(call.command, Exchange) and call.caller == "last":
            leases = tuple(replace(one, fence=1 if one.lane else one.fence) for one in call.answer.leases)
            return replace(call.answer, leases=leases) if leases else None
        return None

    assert "is not above" in problems(altered(truth, alter))


def test_a_claim_out_of_order_is_found_out(truth: History) -> None:
    def alter(call: RecordedCall) -> Any:
        if isinstance(call.command, Exchange) and len({lease.arrival for lease in call.answer.leases}) > 1:
            first, second, *rest = call.answer.leases
            swapped = (replace(second, token=first.token), replace(first, token=second.token), *rest)
            return replace(call.answer, leases=swapped)
        return None

    assert "got its leases out of order" in problems(altered(truth, alter))


def test_a_claim_that_leaves_a_ready_job_is_found_out(truth: History) -> None:
    """As if claims had asked for one job more than they did, and were not given it."""
    calls = []
    for call in truth.calls:
        command = call.command
        if isinstance(command, Exchange) and command.claim is not None and call.caller != "last":
            command = replace(command, claim=replace(command.claim, prefetch=command.claim.prefetch + 1))
        calls.append(RecordedCall(call.caller, command, call.answer, call.ticks))
    assert "had room, and left" in problems(History(calls, drained=True))


@pytest.mark.parametrize(("due_us", "left_wrongly"), [(150, False), (100, True)])
async def test_a_claim_may_leave_a_job_that_fell_due_after_it_visited_the_queue(
    due_us: int, left_wrongly: bool
) -> None:
    """Where each queue has its own time. The claim visits `a` between 100, the caller's last answer, and 200."""
    engine = MemoryEngine("memory://", FrozenRuntime())
    await engine.open()
    jobs = (NewJob(queue="a", id="a", task="t", delay=due_us), NewJob(queue="b", id="b", task="t"))
    queues = tuple(QueueClaim(queue, (TaskClaim(task="t", lease_len=SECOND),)) for queue in "ab")
    claim = Claim(claim_id="c", worker="w", queues=queues, limit=1)
    history = History(cross_queue_atomic=False)
    commands: list[Command[Any]] = [Enqueue(groups=(Group(jobs),)), Now(), Exchange(claim=claim)]
    for command in commands:
        await history.ask(engine, "w", command)
    await engine.close()
    start_us = history.calls[0].answer.at.wall
    for place, passed_us in enumerate((0, 100, 200)):
        call = history.calls[place]
        answer = replace(call.answer, at=At(start_us + passed_us, call.answer.at.lease))
        history.calls[place] = RecordedCall(call.caller, call.command, answer, call.ticks)
    assert ("was ready and better" in problems(history)) == left_wrongly


def test_a_claim_of_what_is_paused_is_found_out(truth: History) -> None:
    """As if nobody had resumed it."""
    assert any(isinstance(call.command, Pause) and call.command.queue == "plain" for call in truth.calls)
    calls = [call for call in truth.calls if not (isinstance(call.command, Resume) and call.command.queue == "plain")]
    assert "had paused" in problems(History(calls, drained=True))


def test_a_limit_that_is_exceeded_is_found_out(truth: History) -> None:
    """As if everybody had asked for a tighter one."""
    calls = []
    for call in truth.calls:
        command = call.command
        if isinstance(command, Enqueue):
            group = command.groups[0]
            limits = tuple(DepthLimit(limit.queue, 2, each_lane=limit.each_lane) for limit in group.limits)
            command = Enqueue(groups=(replace(group, limits=limits),))
        calls.append(RecordedCall(call.caller, command, call.answer, call.ticks))
    assert "jobs lived at once in small; the limit is 2" in problems(History(calls, drained=True))


def test_a_renewal_of_what_has_ended_is_found_out(truth: History) -> None:
    def alter(call: RecordedCall) -> Any:
        if isinstance(call.command, Renew) and any(one.status is RenewStatus.LOST for one in call.answer.jobs):
            return replace(call.answer, jobs=tuple(replace(one, status=RenewStatus.HELD) for one in call.answer.jobs))
        return None

    assert "was renewed after it had ended" in problems(altered(truth, alter))


def test_a_reap_of_what_was_renewed_is_found_out(truth: History) -> None:
    def alter(call: RecordedCall) -> Any:
        if isinstance(call.command, Renew):
            jobs = [replace(one, lease_expires=one.lease_expires and FOREVER) for one in call.answer.jobs]
            return replace(call.answer, jobs=tuple(jobs))
        return None

    assert "had renewed it before" in problems(altered(truth, alter, once=False))


def test_a_wrong_count_is_found_out(truth: History) -> None:
    def alter(call: RecordedCall) -> Any:
        if isinstance(call.command, Stats) and call.caller == "last":
            first, *rest = call.answer.queues
            more = Totals(first.totals.succeeded + 1, first.totals.failed, first.totals.cancelled)
            return replace(call.answer, queues=(replace(first, totals=more), *rest))
        return None

    assert "succeeded, as answered" in problems(altered(truth, alter))


def test_a_job_that_is_nowhere_in_the_end_is_found_out(truth: History) -> None:
    def alter(call: RecordedCall) -> Any:
        if isinstance(call.command, Get):
            return replace(call.answer, jobs=(None,) * len(call.answer.jobs))
        return None

    assert "is not there any more" in problems(altered(truth, alter))


def test_a_job_that_never_ends_is_found_out(truth: History) -> None:
    def alter(call: RecordedCall) -> Any:
        if isinstance(call.command, Exchange) and call.caller == "last" and call.command.settlements:
            return replace(call.answer, settled=(SettleStatus.LOST,) * len(call.answer.settled))
        return None

    assert "has never ended" in problems(altered(truth, alter, once=False))


def test_what_was_asked_to_cancel_does_not_run_again(truth: History) -> None:
    """As if no settlement had become a cancel."""
    calls = []
    for call in truth.calls:
        answer = call.answer
        if isinstance(call.command, Exchange) and SettleStatus.CANCELLED_INSTEAD in answer.settled:
            told = [SettleStatus.APPLIED if one is SettleStatus.CANCELLED_INSTEAD else one for one in answer.settled]
            answer = replace(answer, settled=tuple(told))
            assert any(one.target is not JobState.CANCELLED for one in call.command.settlements)
        calls.append(RecordedCall(call.caller, call.command, answer, call.ticks))
    assert "asked to cancel it, and it was let run again" in problems(History(calls, drained=True))
