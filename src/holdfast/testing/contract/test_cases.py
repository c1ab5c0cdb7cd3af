"""The cases that broke other systems. A case that concerns one verb is in the file of that verb:

1 a renewal between listing and reaping: test_renew. 2 a cancel between deciding and settling: test_cancel. 3 a
settlement sent again: test_guards. 4 a claim sent again: test_claim_again. 6 and 7 an enqueue in a user's transaction:
test_transactions. 10 a higher priority while a head retries: test_lanes. 11 a cancel in the middle of a lane:
test_cancel. 12 no retention but a result: test_lifetimes. The others are here.
"""

import asyncio

from holdfast.model.produce import EnqueueStatus
from holdfast.model.states import JobState
from holdfast.model.text import describe
from holdfast.model.work import LaneName, Lease, SettleStatus
from holdfast.testing.contract.bench import Bench, DamageOneChange
from holdfast.testing.contract.builders import QUEUE, fail, jobs, new_job, reap, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee
from holdfast.testing.contract.interleave import Dice, overlapping, pass_turns

INTERLEAVINGS = 200


@guarantee(Guarantee.LANES)
async def test_a_lane_whose_head_ends_while_jobs_arrive_never_stops(bench: Bench) -> None:
    """Case 5"""
    for seed in range(INTERLEAVINGS):
        dice, lane = Dice(f"lane/{seed}"), f"lane-{seed}"
        await bench.put(new_job(f"{lane}/head", lane=lane))
        head = await bench.take_one()
        end = retry(head) if dice.below(4) == 0 else succeed(head)
        again = [head.id] if end.target is JobState.RETRYING else []
        ids = [f"{lane}/{name}" for name in "abc"[: 1 + dice.below(3)]]

        await overlapping(dice, bench.settle(end), *(bench.put(new_job(id, lane=lane)) for id in ids))

        arrived = sorted(ids, key={id: (await bench.get(id)).arrival for id in ids}.__getitem__)
        ended = []
        while lease := next(iter(await bench.take(5)), None):
            ended.append(lease.id)
            answer = await bench.engine.settle(succeed(lease))
            assert answer.emptied == ((LaneName(QUEUE, lane),) if len(ended) == len(again + ids) else ())
        assert ended == again + arrived, f"seed {seed}"
        assert (await bench.lane(lane)).depth == 0, f"seed {seed}"


@guarantee(Guarantee.LANES)
async def test_claims_settlements_and_arrivals_may_overlap_in_any_order(bench: Bench) -> None:
    """Case 5, with concurrent workers"""
    for seed in range(50):
        dice, lane = Dice(f"race/{seed}"), f"lane-{seed}"
        ids = [f"{lane}/{number}" for number in range(6)]
        started: list[str] = []

        async def work(started: list[str], worker: str, rounds: int) -> None:
            for _ in range(rounds):
                for lease in await bench.take(2, worker=worker):
                    started.append(lease.id)
                    await bench.settle(succeed(lease))

        arrivals = [bench.put(new_job(id, lane=lane)) for id in ids]
        workers = [work(started, f"worker-{number}", 1 + dice.below(5)) for number in range(3)]
        await overlapping(dice, *arrivals, *workers)
        await work(started, "last", len(ids))

        assert sorted(started) == ids, f"seed {seed}: each ran once"
        by_arrival = sorted(ids, key={id: (await bench.get(id)).arrival for id in ids}.__getitem__)
        assert started == by_arrival, f"seed {seed}"


@guarantee(Guarantee.EMPTIED)
async def test_after_the_last_two_settlements_at_once_one_call_reports_the_queue_empty(bench: Bench) -> None:
    """Case 8, E-D1"""
    for seed in range(50):
        dice = Dice(f"emptied/{seed}")
        await bench.put(*jobs(f"{seed}-a", f"{seed}-b"))
        answers: list[bool] = []

        async def end(lease: Lease, answers: list[bool]) -> None:
            await bench.settle(succeed(lease))
            answers.append((await bench.engine.emptied(QUEUE)).emptied)

        await overlapping(dice, *(end(lease, answers) for lease in await bench.take(2)))

        assert sorted(answers) == [False, True], f"seed {seed}"


# R2
@guarantee(Guarantee.ORDER)
async def test_a_hundred_thousand_jobs_of_an_unknown_task_do_not_slow_claims(bench: Bench) -> None:
    """Case 9"""
    for batch in range(100):
        await bench.put(*jobs(*(f"{batch}-{number}" for number in range(1_000)), task="unknown", priority=9))
    ids = [f"wanted-{number:03}" for number in range(200)]
    await bench.put(*jobs(*ids))
    loop = asyncio.get_running_loop()
    began = loop.time()

    claimed_ids = [(await bench.take_one(tasks=("other", "example.task"))).id for _ in ids]

    assert claimed_ids == ids
    assert loop.time() - began < 10, "a claim that scans jobs of other tasks takes longer with each of them"
    stats = await bench.stats()
    assert (stats.counts, stats.due) == ({JobState.QUEUED: 100_000, JobState.RUNNING: 200}, 100_000)


# D4
@guarantee(Guarantee.FENCING)
async def test_a_job_that_replaces_a_failed_one_continues_its_fence(bench: Bench) -> None:
    """Case 13"""
    fences = []
    for generation in range(4):
        accepted = await bench.put_one(new_job())
        assert (accepted.status, accepted.generation) == (EnqueueStatus.CREATED, generation)
        lease = await bench.take_one()
        fences.append(lease.fence)
        bench.clock.set_back(minutes=10)
        await bench.settle(fail(lease))

    assert fences == sorted(set(fences))
    assert (await bench.get()).fence == fences[-1]


# TX3
@guarantee(Guarantee.HISTORY)
async def test_an_unprintable_message_does_not_fail_its_batch(bench: Bench) -> None:
    """Case 14"""
    await bench.put(*jobs(*(f"job-{number:02}" for number in range(100))))
    leases = await bench.take(100)
    unprintable = describe(ValueError("nul \0 and half a pair \ud83d here"))
    batch = [fail(lease, error=unprintable) if lease.id == "job-42" else succeed(lease) for lease in leases]

    answer = await bench.engine.settle(*batch)

    assert answer.settled == (SettleStatus.APPLIED,) * 100
    assert (await bench.stats()).counts == {JobState.SUCCEEDED: 99, JobState.FAILED: 1}
    error = (await bench.get("job-42")).last_error
    assert error is not None
    assert (error.type, error.message) == ("builtins.ValueError", "nul \ufffd and half a pair \ufffd here")


@guarantee(Guarantee.DAMAGE)
async def test_one_damaged_change_of_a_hundred_loses_one_job(bench: Bench, damage_one_change: DamageOneChange) -> None:
    """Case 15"""
    ids = [f"job-{number:02}" for number in range(100)]
    await bench.put(*jobs(*ids))

    await damage_one_change(bench.engine)

    claimed_ids = await bench.take_ids(200)
    assert len(claimed_ids) == 99
    assert set(claimed_ids) < set(ids)


@guarantee(Guarantee.RECOVERY)
async def test_each_job_ends_once_while_workers_and_reapers_compete(bench: Bench) -> None:
    """E-Q19, E-F6"""
    ids = [f"job-{number:02}" for number in range(30)]
    await bench.put(*jobs(*ids))
    dice = Dice("reapers and workers")
    applied: list[str] = []

    async def work(worker: str) -> None:
        while leases := await bench.take(2, worker=worker):
            for lease in leases:
                await pass_turns(dice.below(5))
                if dice.below(3) == 0:
                    bench.clock.advance(61)
                if await bench.settle(succeed(lease)) is SettleStatus.APPLIED:
                    applied.append(lease.id)

    async def sweep(reaper: str) -> None:
        for _ in range(200):
            listed = (await bench.engine.expired(reaper, limit=5)).leases
            await pass_turns(dice.below(3))
            await bench.engine.settle(*(reap(lost) for lost in listed))
            await pass_turns(1)

    await asyncio.gather(*(work(f"w{number}") for number in range(4)), *(sweep(f"r{number}") for number in range(2)))
    while leases := await bench.take(10):
        for lease in leases:
            assert await bench.settle(succeed(lease)) is SettleStatus.APPLIED
            applied.append(lease.id)

    assert sorted(applied) == ids, "each job has exactly one accepted outcome"
    assert (await bench.stats()).counts == {JobState.SUCCEEDED: 30}
