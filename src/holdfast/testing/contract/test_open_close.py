"""Open, close and migrate; and the renewal connection: the blocking connection of the thread that renews leases."""

import asyncio
from collections.abc import Callable

from holdfast.engine import Engine
from holdfast.model.job import ProgressRecord
from holdfast.model.records import WorkerRecord
from holdfast.model.work import RenewStatus
from holdfast.runtime import SystemRuntime
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import LEASE, QUEUE, new_job, renewal, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee
from holdfast.testing.contract.interleave import pass_turns
from holdfast.testing.probes import TIMEOUT_S


@guarantee(Guarantee.OPEN_CLOSE)
async def test_opening_twice_does_nothing(bench: Bench) -> None:
    await bench.put(new_job())

    await bench.engine.open()

    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.OPEN_CLOSE)
async def test_migrating_an_up_to_date_store_takes_no_steps(bench: Bench) -> None:
    await bench.put(new_job())

    assert await bench.engine.migrate() == ()
    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.OPEN_CLOSE)
async def test_closing_ends_every_wait_and_may_be_called_twice(
    engine: Engine, make_engine: Callable[[], Engine]
) -> None:
    other = make_engine()
    await other.migrate()
    await other.open()
    waiting = asyncio.gather(*(other.subscribe("queue:silent").wait(TIMEOUT_S) for _ in range(3)))
    await pass_turns(3)

    await other.close()
    await other.close()

    assert await asyncio.wait_for(waiting, TIMEOUT_S) == [frozenset()] * 3
    assert (await engine.stats()).queues == ()


@guarantee(Guarantee.OPEN_CLOSE)
async def test_the_renewal_connection_renews_from_another_thread(bench: Bench) -> None:
    """E-Q26: renewals must not depend on the event loop that runs the handlers."""
    await bench.put(new_job())
    lease = await bench.take_one()
    bench.clock.advance(10)
    renewal_connection = bench.engine.renewal_connection()
    runtime = SystemRuntime()

    answer = await runtime.run_blocking(renewal_connection.renew, [renewal(lease, progress=ProgressRecord(0.5))])
    await bench.settle(succeed(lease))
    late_answer = await runtime.run_blocking(renewal_connection.renew, [renewal(lease)])
    await runtime.run_blocking(renewal_connection.close)

    assert (answer.jobs[0].status, answer.jobs[0].lease_expires) == (RenewStatus.HELD, answer.at.lease + LEASE)
    assert late_answer.jobs[0].status is RenewStatus.LOST
    assert (await bench.get()).progress == ProgressRecord(0.5)


@guarantee(Guarantee.OPEN_CLOSE)
async def test_the_renewal_connection_reports_cancel_and_stop_requests(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    renewal_connection = bench.engine.renewal_connection()
    runtime = SystemRuntime()
    first = await runtime.run_blocking(renewal_connection.heartbeat, WorkerRecord(worker="w", slots=3))
    await bench.engine.cancel(QUEUE, "a")
    await bench.engine.stop_worker("w")

    renewed = await runtime.run_blocking(renewal_connection.renew, [renewal(lease)])
    second = await runtime.run_blocking(renewal_connection.heartbeat, WorkerRecord(worker="w", slots=3))
    await runtime.run_blocking(renewal_connection.close)

    assert (first.stop, second.stop) == (False, True)
    assert renewed.jobs[0].status is RenewStatus.CANCEL
    (found,) = (await bench.engine.workers()).workers
    assert (found.slots, found.seen) == (3, second.at.wall)
