"""The lease and the limits of a claimed job: set at enqueue, else by the claim for its task."""

from holdfast.model.instants import HOUR, MINUTE
from holdfast.model.job import Given
from holdfast.model.work import QueueClaim
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import LEASE, QUEUE, new_job, release, retry, task_claim
from holdfast.testing.contract.guarantees import Guarantee, guarantee


@guarantee(Guarantee.ATTEMPTS)
async def test_options_set_at_enqueue_override_those_of_the_claim(bench: Bench) -> None:
    given = Given(max_attempts=7, max_losses=2, lease_len=HOUR)
    await bench.put(new_job("given", given=given), new_job("not"))

    answer = await bench.engine.claim(bench.claim(limit=2, max_attempts=3, max_losses=4))

    first, second = answer.leases
    assert (first.max_attempts, first.max_losses, first.lease_len) == (7, 2, HOUR)
    assert first.lease_expires == answer.at.lease + HOUR
    assert (second.max_attempts, second.max_losses, second.lease_len) == (3, 4, LEASE)
    stored = await bench.get("given")
    assert (stored.max_attempts, stored.max_losses, stored.lease_len) == (7, 2, HOUR)


@guarantee(Guarantee.ATTEMPTS)
async def test_unlimited_attempts_set_at_enqueue_override_the_claim(bench: Bench) -> None:
    await bench.put(new_job(given=Given(max_attempts=0)))

    assert (await bench.take_one(max_attempts=3)).max_attempts == 0


@guarantee(Guarantee.ATTEMPTS)
async def test_each_claim_uses_its_own_lease_and_limits(bench: Bench) -> None:
    await bench.put(new_job())
    first = await bench.take_one(max_attempts=3, max_losses=2, lease_len=HOUR)
    await bench.settle(release(first))

    second = await bench.take_one(max_attempts=5, max_losses=6, lease_len=MINUTE)

    assert (second.max_attempts, second.max_losses, second.lease_len) == (5, 6, MINUTE)
    assert (await bench.get()).lease_len == MINUTE


@guarantee(Guarantee.ATTEMPTS)
async def test_each_task_of_a_claim_has_its_own_lease_and_limits(bench: Bench) -> None:
    await bench.put(new_job("1", task="x"), new_job("2", task="y"), new_job("3", task="x"))
    x = task_claim("x", max_attempts=3, max_losses=2, lease_len=HOUR)
    y = task_claim("y", max_attempts=5, max_losses=6, lease_len=MINUTE)

    leases = await bench.take(3, queues=(QueueClaim(QUEUE, (x, y)),))

    assert [(lease.id, lease.max_attempts, lease.max_losses, lease.lease_len) for lease in leases] == [
        ("1", 3, 2, HOUR),
        ("2", 5, 6, MINUTE),
        ("3", 3, 2, HOUR),
    ]


@guarantee(Guarantee.ATTEMPTS)
async def test_a_job_without_attempts_left_is_still_claimed(bench: Bench) -> None:
    """E-S3: the engine counts attempts, the worker decides; no job stays unclaimed between them."""
    await bench.put(new_job(given=Given(max_attempts=1)))
    await bench.settle(retry(await bench.take_one()))

    lease = await bench.take_one()

    assert (lease.attempt, lease.max_attempts) == (2, 1)
