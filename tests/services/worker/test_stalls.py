"""A handler in C code that holds the GIL: no thread runs meanwhile. The worker notices it and names the jobs."""

import logging
import threading
import time
from typing import Any

import pytest
from eventually import eventually
from minimal_app import MinimalApp, MinimalTask

from holdfast.model.instants import SECOND
from holdfast.runtime import SystemRuntime
from holdfast.testing import FrozenRuntime
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.loop_watcher import PERIOD_S
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
        await app.enqueue("holds_the_gil", id="culprit")
        await eventually(lambda: "could run" in caplog.text, "the worker to notice the stall", limit_s=60)
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR and "GIL" in one.getMessage()]
    assert "culprit (holds_the_gil)" in record.getMessage()
    assert 'isolate="process"' in record.getMessage()


def test_a_stall_names_all_jobs_that_ran(caplog: pytest.LogCaptureFixture) -> None:
    attempts: list[Any] = []
    for number, task in enumerate((MinimalTask(holds_the_gil), MinimalTask(other))):
        threads = HandlerThreads(FrozenRuntime())
        plan = ExecutionPlan(task, worker="w", state=None, middleware=(), handler_threads=threads)
        attempt = LeasedAttempt(_lease(f"job-{number}"), plan, 0)
        attempt.began_at = 0
        attempts.append(attempt)
    note_stall(attempts, 20 * SECOND, 30 * SECOND)
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
