"""A test acts as the worker: it claims a job through the App's engine, and settles it."""

import asyncio
from typing import Any

from holdfast import App
from holdfast.model.instants import SECOND
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import Claim, Lease, QueueClaim, Settlement, TaskClaim
from holdfast.task import Task


async def take(app: App[Any], task: Task[..., Any], *, queue: str | None = None) -> Lease:
    """Claim the next job of a task."""
    wanted = TaskClaim(task=task.name, lease_len=30 * SECOND)
    claim = Claim(
        claim_id=app.runtime.new_claim_id(),
        worker="test",
        queues=(QueueClaim(queue or task.queue, (wanted,)),),
        limit=1,
    )
    await app.aopen()
    (lease,) = (await app.engine.claim(claim)).leases
    return lease


async def settle(app: App[Any], lease: Lease, target: JobState, **facts: Any) -> None:
    settlement = Settlement(queue=lease.queue, id=lease.id, token=lease.token, target=target, **facts)
    (status,) = (await app.engine.settle(settlement)).settled
    assert status == "applied"


async def succeed(app: App[Any], task: Task[..., Any], result: object = None, **facts: Any) -> Lease:
    """Claim the next job of a task, and settle it as succeeded with `result`."""
    lease = await take(app, task)
    await settle(app, lease, JobState.SUCCEEDED, result=task.encode_result(result, lease.codec), **facts)
    return lease


async def fail(app: App[Any], task: Task[..., Any], reason: Reason = Reason.EXHAUSTED, note: str = "") -> Lease:
    """Claim the next job of a task, and settle it as failed."""
    lease = await take(app, task)
    error = ErrorInfo("builtins.ValueError", "no funds", "Traceback ...")
    await settle(app, lease, JobState.FAILED, reason=reason, note=note, error=error)
    return lease


async def report_in(app: App[Any], name: str, *tasks: str, queues: tuple[str, ...] = (), busy: int = 0) -> None:
    """A heartbeat of a worker that knows these tasks."""
    await app.aopen()
    record = WorkerRecord(worker=name, tasks=tasks, queues=queues, slots=1, busy=busy, interval=10 * SECOND)
    await app.engine.heartbeat(record)


# The same for a test without an event loop.


def take_now(app: App[Any], task: Task[..., Any], *, queue: str | None = None) -> Lease:
    return asyncio.run(take(app, task, queue=queue))


def settle_now(app: App[Any], lease: Lease, target: JobState, **facts: Any) -> None:
    asyncio.run(settle(app, lease, target, **facts))


def succeed_now(app: App[Any], task: Task[..., Any], result: object = None, **facts: Any) -> Lease:
    return asyncio.run(succeed(app, task, result, **facts))


def fail_now(app: App[Any], task: Task[..., Any], reason: Reason = Reason.EXHAUSTED, note: str = "") -> Lease:
    return asyncio.run(fail(app, task, reason, note))


def report_in_now(app: App[Any], name: str, *tasks: str, queues: tuple[str, ...] = (), busy: int = 0) -> None:
    asyncio.run(report_in(app, name, *tasks, queues=queues, busy=busy))
