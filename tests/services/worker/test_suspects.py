"""Suspects: a job that has lost a worker starts apart from all others, so that its next loss is only its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from eventually import idle
from minimal_app import QUEUE, GatedHandler, MinimalApp
from msgspec.structs import replace

from holdfast.model.instants import SECOND
from holdfast.model.outcome import decide_loss
from holdfast.model.retry import RetryPolicy, fixed
from holdfast.model.states import JobState
from holdfast.model.work import Claim, QueueClaim, TaskClaim
from holdfast.testing import FrozenRuntime
from holdfast.worker import Worker
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.slots import Slots
from holdfast.worker.suspects import Suspects

AT_ONCE = RetryPolicy(backoff=fixed(0))
LEASE_S = 600
LATER_S = 100


class Bench:
    """An App with time that stands still, and jobs that run until their gate opens."""

    def __init__(self) -> None:
        self.runtime = FrozenRuntime()
        self.suspect, self.other = GatedHandler(), GatedHandler()
        self.app = MinimalApp(
            self.suspect.task("suspect", retry=AT_ONCE, lease=LEASE_S * SECOND),
            self.other.task("other", lease=LEASE_S * SECOND),
            runtime=self.runtime,
        )

    async def lose(self, count: int, *, times: int = 1) -> list[str]:
        """Enqueue jobs whose worker dies this often. They are due again after `LATER_S`."""
        ids = await self.app.put(*(self.app.job("suspect") for _ in range(count)))
        task = TaskClaim(task="suspect", lease_len=LEASE_S * SECOND, max_attempts=20, max_losses=5)
        for _ in range(times):
            self.runtime.advance(LATER_S)
            claim = Claim(
                claim_id=self.runtime.new_claim_id(), worker="dead", queues=(QueueClaim(QUEUE, (task,)),), limit=count
            )
            assert len((await self.app.engine.claim(claim)).leases) == count
            self.runtime.advance(LEASE_S)
            lost = (await self.app.engine.expired("reaper")).leases
            settlements = [replace(decide_loss(one, None, draw=0.5), delay=LATER_S * SECOND) for one in lost]
            await self.app.engine.settle(*settlements)
        return ids

    @asynccontextmanager
    async def worker(self, **options: Any) -> AsyncIterator[Worker]:
        """A worker. At the end of the block, whatever it was, the handlers may end."""
        async with self.app.worker(**options) as worker:
            try:
                yield worker
            finally:
                self.suspect.gate.set()
                self.other.gate.set()

    async def start_other(self) -> None:
        await self.app.enqueue("other")
        await self.other.started.calls(1)

    async def advance(self, seconds: int) -> None:
        self.runtime.advance(seconds)
        await idle()


async def test_of_several_jobs_that_have_lost_a_worker_one_starts_and_the_others_are_given_back() -> None:
    bench = Bench()
    ids = await bench.lose(3)
    await bench.app.enqueue("other")
    await bench.advance(LATER_S)
    async with bench.worker(concurrency=10):
        await bench.suspect.started.calls(1)
        await idle()
        assert await bench.app.counts() == {JobState.RUNNING: 1, JobState.QUEUED: 3}
        assert sorted([(await bench.app.look(id)).attempt for id in ids]) == [1, 1, 2]
        bench.suspect.gate.set()
        bench.other.gate.set()
        await bench.suspect.started.calls(3)
        await bench.other.started.calls(1)
        await idle()
        assert await bench.app.counts() == {JobState.SUCCEEDED: 4}
    assert bench.suspect.most[""] == 1


async def test_a_job_that_has_lost_a_worker_starts_when_the_others_have_ended() -> None:
    bench = Bench()
    await bench.lose(1)
    async with bench.worker(concurrency=10):
        await bench.start_other()
        await bench.advance(LATER_S)
        assert await bench.app.counts() == {JobState.RUNNING: 2}
        assert not bench.suspect.started.seen
        bench.other.gate.set()
        await bench.suspect.started.calls(1)
        bench.suspect.gate.set()


@pytest.mark.parametrize(("losses", "apart_s"), [(1, 2), (2, 8), (3, 32), (4, 32)])
async def test_it_waits_for_jobs_that_take_long_only_for_some_seconds(losses: int, apart_s: int) -> None:
    bench = Bench()
    await bench.lose(1, times=losses)
    async with bench.worker(concurrency=10):
        await bench.start_other()
        await bench.advance(LATER_S)
        await bench.advance(apart_s - 1)
        assert not bench.suspect.started.seen
        await bench.advance(1)
        await bench.suspect.started.calls(1)


@pytest.mark.parametrize(("losses", "apart_s"), [(1, 2), (2, 8), (3, 32), (4, 32)])
async def test_others_start_beside_it_when_it_has_run_for_some_seconds(losses: int, apart_s: int) -> None:
    bench = Bench()
    await bench.lose(1, times=losses)
    await bench.advance(LATER_S)
    async with bench.worker(concurrency=10):
        await bench.suspect.started.calls(1)
        await bench.app.enqueue("other")
        await bench.advance(apart_s - 1)
        assert not bench.other.started.seen
        await bench.advance(1)
        await bench.other.started.calls(1)


async def test_prefetched_jobs_are_given_back_for_a_job_that_has_lost_a_worker() -> None:
    bench = Bench()
    await bench.lose(1)
    async with bench.worker(concurrency=1, prefetch=2):
        await bench.app.put(*(bench.app.job("other") for _ in range(2)))
        await bench.other.started.calls(1)
        await bench.advance(LATER_S)
        assert await bench.app.counts() == {JobState.RUNNING: 1, JobState.ASSIGNED: 1, JobState.QUEUED: 1}
        bench.other.gate.set()
        await bench.suspect.started.calls(1)
        await idle()
        assert await bench.app.counts() == {JobState.SUCCEEDED: 1, JobState.RUNNING: 1, JobState.QUEUED: 1}
        bench.suspect.gate.set()
        await bench.other.started.calls(2)


async def test_a_stopping_worker_gives_back_a_job_that_waits_to_start_apart() -> None:
    bench = Bench()
    (id,) = await bench.lose(1)
    async with bench.worker(concurrency=10) as worker:
        await bench.start_other()
        await bench.advance(LATER_S)
        assert (await bench.app.look(id)).state is JobState.RUNNING
        worker.stop()
        await idle()
        job = await bench.app.look(id)
        assert (job.state, job.attempt) == (JobState.QUEUED, 1)


async def test_the_attempts_of_an_isolated_handler_may_start_together() -> None:
    bench = Bench()
    await bench.lose(2)
    bench.runtime.advance(LATER_S)
    task = TaskClaim(task="suspect", lease_len=LEASE_S * SECOND, max_attempts=20, max_losses=5)
    claim = Claim(claim_id="claim", worker="w", queues=(QueueClaim(QUEUE, (task,)),), limit=2)
    leases = (await bench.app.engine.claim(claim)).leases
    plan = ExecutionPlan.__new__(ExecutionPlan)
    suspects = Suspects(bench.runtime, Slots(10))
    plan.is_isolated = True
    assert suspects.choose(leases, {"suspect": plan}) is None
    plan.is_isolated = False
    assert suspects.choose(leases, {"suspect": plan}) == leases[0]
