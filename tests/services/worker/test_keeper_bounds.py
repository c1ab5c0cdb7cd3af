"""The keeper when calls are slow, fail, or carry many leases."""

from typing import Any

import pytest
from failing_engine import FailingEngine, fail_times
from minimal_app import MinimalApp, MinimalTask

from holdfast.engine import RenewalConnection
from holdfast.errors import EngineUnavailable
from holdfast.model.command import Command
from holdfast.model.instants import SECOND
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Claim, Heartbeat, QueueClaim, Renew, TaskClaim
from holdfast.testing import FrozenRuntime
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.keeper import HEARTBEAT_US, Keeper
from holdfast.worker.slots import Slots


async def nothing() -> None: ...


class CountingEngine(FailingEngine):
    """Counts the renewal connections that were opened."""

    opened = 0

    def renewal_connection(self) -> RenewalConnection:
        self.opened += 1
        return super().renewal_connection()


class Bench:
    """A keeper without its thread, and leases for it to keep."""

    def __init__(self) -> None:
        self.runtime = FrozenRuntime()
        self.engine = CountingEngine(self.runtime)
        self.app = MinimalApp(MinimalTask(nothing), runtime=self.runtime, engine=self.engine)
        self.slots = Slots(100)
        self.keeper = Keeper(
            self.runtime,
            self.engine,
            self.slots,
            record=lambda: WorkerRecord(worker="w", interval=HEARTBEAT_US),
            on_status=lambda attempt, status: None,
            on_stop_requested=lambda: None,
        )

    async def hold(self, id: str) -> LeasedAttempt:
        await self.app.enqueue("nothing", id=id)
        threads = HandlerThreads(self.runtime)
        task = self.app.registry["nothing"]
        plan = ExecutionPlan(task, worker="w", state=None, middleware=(), handler_threads=threads)
        queues = (QueueClaim("default", (TaskClaim(task="nothing", lease_len=30 * SECOND),)),)
        claim = Claim(claim_id=self.runtime.new_claim_id(), worker="w", queues=queues, limit=1)
        (lease,) = (await self.engine.claim(claim)).leases
        attempt = LeasedAttempt(lease, plan, self.runtime.boot())
        self.slots.admit(attempt)
        return attempt

    def sent(self, kind: type[Any]) -> list[Any]:
        return [command for command in self.engine.commands if isinstance(command, kind)]


async def test_a_renewed_lease_lasts_from_when_the_renewal_was_sent() -> None:
    bench = Bench()
    attempt = await bench.hold("a")
    bench.runtime.advance(10)
    sent_at = bench.runtime.boot()

    def slow(command: Command[Any]) -> None:
        bench.runtime.advance(5)

    bench.engine.after = slow
    bench.keeper.run_once()
    assert attempt.renewed_at == sent_at


async def test_a_renewal_carries_a_limited_number_of_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.keeper.MAX_RENEWALS_PER_CALL", 2)
    bench = Bench()
    for number in range(5):
        await bench.hold(str(number))
    bench.runtime.advance(10)
    bench.keeper.run_once()
    assert [len(renew.jobs) for renew in bench.sent(Renew)] == [2, 2, 1]


async def test_a_request_to_renew_everything_survives_an_error() -> None:
    bench = Bench()
    await bench.hold("a")
    bench.engine.before = fail_times(1, Renew, lambda: EngineUnavailable(engine="memory"))
    bench.keeper.renew_now()
    bench.keeper.run_once()
    assert bench.sent(Heartbeat) == []
    bench.keeper.run_once()
    assert len(bench.sent(Renew)) == 2
    assert len(bench.sent(Heartbeat)) == 1


async def test_a_connection_that_failed_twice_is_replaced() -> None:
    bench = Bench()
    await bench.hold("a")
    bench.runtime.advance(10)
    bench.engine.before = fail_times(2, Renew, lambda: EngineUnavailable(engine="memory"))
    for _ in range(3):
        bench.keeper.run_once()
    assert bench.engine.opened == 2
