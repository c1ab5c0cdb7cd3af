"""Services of a worker, one by one: how often they act, and what they leave behind."""

import asyncio
import gc
import weakref
from typing import Any

from eventually import eventually, idle
from failing_engine import FailingEngine, fail_times
from minimal_app import MinimalApp, MinimalTask

from holdfast import events
from holdfast.errors import EngineUnavailable, GiveUp
from holdfast.model.instants import SECOND
from holdfast.model.observe import Prune
from holdfast.model.operate import Emptied
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Claim, Disown, QueueClaim, TaskClaim
from holdfast.runtime import SystemRuntime
from holdfast.service import Service
from holdfast.testing import FrozenRuntime, Probe
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.dead_workers import DeadWorkers
from holdfast.worker.deadlines import Deadlines
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.loop_watcher import LoopWatcher
from holdfast.worker.pruner import Pruner
from holdfast.worker.slots import Slots


async def noop() -> None: ...


# Deadlines


async def test_a_deadline_earlier_than_the_next_tick_wakes_the_service() -> None:
    runtime = FrozenRuntime()
    app = MinimalApp(
        MinimalTask(noop, name="long", timeout=60 * SECOND), MinimalTask(noop, name="short", timeout=SECOND)
    )
    slots, aborted = Slots(2), list[str]()
    deadlines = Deadlines(app.runtime, slots, lambda attempt, reason: aborted.append(attempt.lease.task))
    deadlines.runtime = runtime

    async def begin(task: str) -> None:
        await app.enqueue(task)
        queues = (QueueClaim("default", (TaskClaim(task=task, lease_len=30 * SECOND),)),)
        (lease,) = (await app.engine.claim(Claim(claim_id=task, worker="w", queues=queues, limit=1))).leases
        threads = HandlerThreads(app.runtime)
        plan = ExecutionPlan(app.registry[task], worker="w", state=None, middleware=(), handler_threads=threads)
        attempt = LeasedAttempt(lease, plan, app.runtime.boot())
        attempt.began_at = runtime.monotonic()
        slots.admit(attempt)
        deadlines.watch(attempt)

    await begin("long")
    assert await deadlines.tick() == 60
    deadlines.waker._woken = False
    await begin("short")
    assert deadlines.waker._woken
    runtime.advance(1)
    assert await deadlines.tick() == 59
    assert aborted == ["short"]


# Threads


async def test_a_thread_is_used_again() -> None:
    threads = HandlerThreads(SystemRuntime())
    for _ in range(5):
        await threads.run(int)
    assert threads._threads == 1
    threads.close()


class Argument:
    """Can be referred to weakly."""


async def test_an_idle_thread_keeps_no_argument_alive() -> None:
    threads = HandlerThreads(SystemRuntime())
    argument = Argument()
    reference = weakref.ref(argument)
    await threads.run(id, argument)
    del argument

    def is_gone() -> bool:
        gc.collect()
        return reference() is None

    await eventually(is_gone, "the argument to be freed")
    threads.close()


async def test_each_blockage_of_the_loop_is_reported() -> None:
    runtime, reported = FrozenRuntime(), list[int]()
    watcher = LoopWatcher(
        runtime, on_period=lambda: None, on_blocked=lambda blocked_us, stack: reported.append(blocked_us)
    )
    for _ in range(2):
        watcher.check()
        runtime.advance(2)
        watcher.check()
        watcher.check()
        await idle()
    assert reported == [2 * SECOND] * 2


# Dead workers and pruning


class HostEngine(FailingEngine):
    """Knows which workers of this host have died."""

    process_name = "me"
    dead = ("gone",)

    async def ended_workers(self) -> tuple[str, ...]:
        return tuple(record.worker for record in (await self.workers()).workers if record.worker in self.dead)


class Woken(Service):
    """A reaper that only counts how often it was woken."""

    name = "reaper"
    count = 0

    async def tick(self) -> float | None:
        return None

    def wake(self) -> None:
        self.count += 1


async def test_a_dead_worker_is_disowned_once_and_the_reaper_is_woken() -> None:
    runtime = SystemRuntime()
    engine, reaper = HostEngine(runtime), Woken(runtime)
    for name in ("gone", "alive"):
        await engine.heartbeat(WorkerRecord(worker=name, process=name))
    dead_workers = DeadWorkers(runtime, engine, reaper)
    for _ in range(3):
        await dead_workers.tick()
    assert [command.workers for command in engine.commands if isinstance(command, Disown)] == [("gone",)]
    assert [record.worker for record in (await engine.workers()).workers] == ["alive"]
    assert reaper.count == 1


async def test_a_starting_worker_does_not_prune_at_once() -> None:
    engine = FailingEngine(SystemRuntime())
    pruner = Pruner(SystemRuntime(), engine)
    assert await pruner.tick() is not None
    assert [command for command in engine.commands if isinstance(command, Prune)] == []
    await pruner.tick()
    assert len([command for command in engine.commands if isinstance(command, Prune)]) == 1


# Reporting and stopping


async def test_a_queue_whose_check_failed_is_checked_after_the_next_exchange() -> None:
    engine = FailingEngine(SystemRuntime())
    engine.before = fail_times(1, Emptied, lambda: EngineUnavailable(engine="memory"))
    app = MinimalApp(MinimalTask(noop), runtime=engine._runtime, engine=engine)
    seen = app.record_events(events.QueueEmpty)
    await app.enqueue("noop", queue="first")
    await app.drain(queues=["first", "second"])
    assert seen.seen == []
    await app.enqueue("noop", queue="first")
    engine.before = fail_times(1, Emptied, lambda: EngineUnavailable(engine="memory"))
    async with app.worker(queues=["first", "second"]):
        await eventually(lambda: any(isinstance(command, Emptied) for command in engine.commands[-3:]))
        await app.enqueue("noop", queue="second")
        await seen.calls(2)
    assert sorted(event.queue for event in seen.seen if isinstance(event, events.QueueEmpty)) == ["first", "second"]


async def test_a_stopping_worker_waits_for_the_hook_that_runs() -> None:
    began, go_on, ended = Probe[Any]("the hook"), asyncio.Event(), list[str]()

    async def fails() -> None:
        raise GiveUp("no use")

    async def hook(job: Any, error: Any) -> None:
        began(job.id)
        await go_on.wait()
        ended.append(job.id)

    task = MinimalTask(fails)
    task.dead_letter_hooks.append(hook)
    app = MinimalApp(task)
    id = await app.enqueue("fails")
    async with app.worker(grace=30) as worker:
        await began.calls(1)
        worker.stop()
        await idle()
        go_on.set()
    assert ended == [id]
