"""A claim sent again because its answer was lost: it returns the leases of that claim and takes no new jobs."""

from holdfast.model.states import JobState
from holdfast.model.work import QueueClaim, SettleStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import LEASE, jobs, new_job, release, retry, start, succeed, task_claim
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# T1
@guarantee(Guarantee.ONE_LEASE)
async def test_the_tokens_of_a_claim_are_its_id_and_the_rank(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", queue="red"), *jobs("c", "d", queue="blue"))
    queues = (QueueClaim("red", (task_claim(),)), QueueClaim("blue", (task_claim(),)))
    claim = bench.claim(limit=2, prefetch=2, queues=queues)

    leases = (await bench.engine.claim(claim)).leases

    assert [lease.id for lease in leases] == ["a", "b", "c", "d"]
    assert [lease.token for lease in leases] == [f"{claim.claim_id}.{rank}" for rank in range(4)]


# T2
@guarantee(Guarantee.ONE_LEASE)
async def test_a_claim_sent_again_returns_the_same_leases_and_takes_nothing_new(bench: Bench) -> None:
    """E-X3; case 4 of the contract"""
    await bench.put(*jobs("a", "b", "c", "d"))
    claim = bench.claim(limit=2)
    first = await bench.engine.claim(claim)

    bench.clock.advance(5)
    again = await bench.engine.claim(claim)

    assert again.leases == first.leases
    assert [lease.id for lease in again.leases] == ["a", "b"]
    assert await bench.states("a", "b", "c", "d") == [JobState.RUNNING] * 2 + [JobState.QUEUED] * 2
    assert [(await bench.get(id)).attempt for id in "ab"] == [1, 1]


@guarantee(Guarantee.ONE_LEASE)
async def test_more_than_ten_leases_come_back_in_the_order_they_were_taken(bench: Bench) -> None:
    await bench.put(*jobs(*(f"job-{number:02}" for number in range(25))))
    claim = bench.claim(limit=25)
    first = await bench.engine.claim(claim)

    assert (await bench.engine.claim(claim)).leases == first.leases


@guarantee(Guarantee.ONE_LEASE)
async def test_a_repeated_claim_returns_only_what_it_still_holds(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c", "d", "e"))
    claim = bench.claim(limit=3)
    one, two, three = (await bench.engine.claim(claim)).leases
    await bench.engine.settle(succeed(two), release(one))

    again = await bench.engine.claim(claim)

    assert again.leases == (three,)
    assert await bench.state("a") is JobState.QUEUED


# T2
@guarantee(Guarantee.ONE_LEASE)
async def test_a_repeated_claim_whose_leases_have_all_ended_is_a_new_claim(bench: Bench) -> None:
    await bench.put(*jobs("a", "b"))
    claim = bench.claim()
    (first,) = (await bench.engine.claim(claim)).leases
    await bench.settle(succeed(first))

    (second,) = (await bench.engine.claim(claim)).leases

    assert (second.id, second.attempt) == ("b", 1)


@guarantee(Guarantee.PREFETCH)
async def test_a_repeated_claim_shows_which_leases_are_running_and_which_assigned(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))
    claim = bench.claim(limit=1, prefetch=2)
    _, second, _ = (await bench.engine.claim(claim)).leases
    await bench.engine.exchange(starts=[start(second)])

    again = await bench.engine.claim(claim)

    assert [(lease.id, lease.state) for lease in again.leases] == [
        ("a", JobState.RUNNING),
        ("b", JobState.RUNNING),
        ("c", JobState.ASSIGNED),
    ]


@guarantee(Guarantee.ONE_LEASE)
async def test_an_exchange_sent_again_settles_once_and_claims_once(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))
    lease = await bench.take_one()
    claim = bench.claim()

    first = await bench.engine.exchange([succeed(lease)], claim=claim)
    again = await bench.engine.exchange([succeed(lease)], claim=claim)

    assert first.settled == again.settled == (SettleStatus.APPLIED,)
    assert first.leases == again.leases
    assert [lease.id for lease in first.leases] == ["b"]
    assert (await bench.stats()).totals.succeeded == 1


@guarantee(Guarantee.FENCING)
async def test_two_claims_never_share_a_token(bench: Bench) -> None:
    await bench.put(new_job())
    first = await bench.take_one()
    await bench.settle(retry(first))
    second = await bench.take_one()

    assert second.token != first.token
    assert second.fence > first.fence
    assert second.lease_len == LEASE
