"""A handler in C code that holds the GIL: no thread runs meanwhile. The worker notices it and runs the task alone."""

import logging
import threading
import time
from typing import Any

import pytest
from eventually import eventually
from minimal_app import MinimalApp, MinimalTask

from holdfast.model.instants import SECOND
from holdfast.model.work import Claim
from holdfast.runtime import SystemRuntime
from holdfast.testing import FrozenRuntime
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.claims import ALONE_TURN_US, Claims
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.loop_watcher import PERIOD_S
from holdfast.worker.slots import Slots
from holdfast.worker.stalls import note_stall

SAMPLE = 2_000_000
STALL_US = 4 * SECOND


def holds_the_gil() -> int:
    """Add up so many numbers that it takes about `STALL_US` of CPU time, in one call that keeps the GIL.

    CPU time, because a busy machine could take the processor away while the sample is measured.
    """
    threading.Event().wait(2 * PERIOD_S)  # the watcher checks at least once before
    began_ns = time.thread_time_ns()
    sum(range(SAMPLE))
    total = sum(range(SAMPLE * STALL_US * 1_000 // (time.thread_time_ns() - began_ns)))
    threading.Event().wait(2 * PERIOD_S)  # and once while the job still runs: afterwards it would name no job
    return total


def other() -> None: ...


async def test_a_worker_notices_code_that_held_the_gil_and_names_the_job(caplog: pytest.LogCaptureFixture) -> None:
    app = MinimalApp(MinimalTask(holds_the_gil, lease=2 * SECOND), runtime=SystemRuntime())
    async with app.worker() as worker:
        services = worker._services
        assert services is not None
        plan = services._plans["holds_the_gil"]
        await app.enqueue("holds_the_gil", id="culprit")
        await eventually(lambda: plan.runs_alone, "the worker to notice the stall", limit_s=60)
        assert services.record().stalling_tasks == ("holds_the_gil",)
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR and "GIL" in one.getMessage()]
    assert "culprit (holds_the_gil)" in record.getMessage()
    assert "alone from now on" in record.getMessage()


class Bench:
    """Claims of a worker with two tasks, of which the first runs alone."""

    def __init__(self) -> None:
        self.runtime = FrozenRuntime()
        self.slots = Slots(10)
        self.plans = {
            task.policy.name: ExecutionPlan(
                task, worker="w", state=None, middleware=(), handler_threads=HandlerThreads(self.runtime)
            )
            for task in (MinimalTask(holds_the_gil), MinimalTask(other))
        }
        self.plans["holds_the_gil"].runs_alone = True
        self.claims = Claims(self.runtime, worker="w", queues=("default",), plans=self.plans.values(), slots=self.slots)

    def make(self) -> tuple[int, list[str]] | None:
        claim: Claim | None = self.claims.make()
        return None if claim is None else (claim.limit, [task.task for task in claim.queues[0].tasks])

    def run(self, task: str) -> None:
        self.slots.busy += 1
        self.plans[task].held_count += 1


def test_an_idle_worker_claims_one_job_of_any_task() -> None:
    assert Bench().make() == (1, ["holds_the_gil", "other"])


def test_nothing_is_claimed_beside_a_task_that_runs_alone() -> None:
    bench = Bench()
    bench.run("holds_the_gil")
    assert bench.make() is None


def test_a_task_that_runs_alone_is_not_claimed_beside_others() -> None:
    bench = Bench()
    bench.make()
    bench.run("other")
    assert bench.make() == (9, ["other"])


def test_a_task_that_runs_alone_gets_its_turn_on_a_busy_worker() -> None:
    bench = Bench()
    bench.make()
    bench.run("other")
    bench.runtime.advance(ALONE_TURN_US / SECOND + 1)
    assert bench.make() is None, "until the others have ended"
    bench.slots.busy = bench.plans["other"].held_count = 0
    assert bench.make() == (1, ["holds_the_gil", "other"])


def test_a_stall_with_several_suspects_marks_none(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.plans["holds_the_gil"].runs_alone = False
    attempts: list[Any] = []
    for number, plan in enumerate(bench.plans.values()):
        attempt = LeasedAttempt(_lease(f"job-{number}"), plan, 0)
        attempt.began_at = 0
        attempts.append(attempt)
    note_stall(attempts, 20 * SECOND, 30 * SECOND)
    assert not [plan for plan in bench.plans.values() if plan.runs_alone]
    assert "job-0 (holds_the_gil), job-1 (other)" in caplog.text


def test_a_stall_without_suspects_names_none_as_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    note_stall([], 20 * SECOND, 30 * SECOND)
    assert caplog.messages[0].endswith("Jobs: none.")


def _lease(id: str) -> Any:
    class FakeLease:
        pass

    lease = FakeLease()
    lease.id = id  # type: ignore[attr-defined]
    return lease
