"""Attempts on the loop: handlers that never wait share a task, the others have their own, and none notices."""

import asyncio
import gc
from contextvars import ContextVar

from failing_engine import FailingEngine
from minimal_app import MinimalApp, MinimalTask

from holdfast.context import Context
from holdfast.model.states import JobState
from holdfast.runtime import SystemRuntime
from holdfast.testing import Probe

tasks_seen: "ContextVar[str]" = ContextVar("tasks_seen", default="untouched")


async def test_handlers_that_never_wait_follow_each_other_in_one_task() -> None:
    seen: list[object] = []

    async def quick() -> None:
        seen.append(asyncio.current_task())

    app = MinimalApp(MinimalTask(quick))
    await app.put(*(app.job("quick") for _ in range(50)))
    await app.drain(concurrency=50)
    assert len(seen) == 50
    assert len(set(map(id, seen))) == 1


async def test_handlers_that_wait_run_side_by_side_each_in_its_own_task() -> None:
    gate, running, tasks = asyncio.Event(), Probe[str]("the handler"), set[object]()

    async def waits(name: str) -> None:
        tasks.add(asyncio.current_task())
        running(name)
        await gate.wait()

    app = MinimalApp(MinimalTask(waits))
    await app.put(*(app.job("waits", str(n)) for n in range(20)))
    async with app.worker(concurrency=20):
        assert await running.calls(20) == [str(n) for n in range(20)]
        assert len(tasks) == 20
        gate.set()


async def test_a_task_that_was_suspended_in_a_handler_runs_no_further_one() -> None:
    waited: set[object] = set()
    quick: set[object] = set()

    async def waits() -> None:
        waited.add(asyncio.current_task())
        await asyncio.sleep(0)

    async def runs() -> None:
        quick.add(asyncio.current_task())

    app = MinimalApp(MinimalTask(waits), MinimalTask(runs))
    await app.put(*(app.job(task) for _ in range(20) for task in ("waits", "runs")))
    await app.drain(concurrency=10)
    assert len(waited) == 20


async def test_handlers_known_to_wait_start_together_and_are_settled_together() -> None:
    async def waits() -> None:
        await asyncio.sleep(0)

    runtime = SystemRuntime()
    engine = FailingEngine(runtime)
    app = MinimalApp(MinimalTask(waits), runtime=runtime, engine=engine)
    await app.put(*(app.job("waits") for _ in range(1000)))
    await app.drain(concurrency=100)
    assert sum(len(exchange.settlements) for exchange in engine.exchanges) == 1000
    assert len(engine.exchanges) < 120


async def test_context_variables_do_not_leak_from_one_job_to_the_next() -> None:
    found: list[str] = []

    async def leaves_a_mark(name: str) -> None:
        found.append(tasks_seen.get())
        tasks_seen.set(name)

    app = MinimalApp(MinimalTask(leaves_a_mark))
    await app.put(*(app.job("leaves_a_mark", str(n)) for n in range(10)))
    await app.drain()
    assert found == ["untouched"] * 10


async def test_each_job_sees_its_own_context() -> None:
    seen: list[tuple[str, str]] = []

    async def says(name: str) -> None:
        seen.append((name, Context.current().job.id))
        await asyncio.sleep(0)
        seen.append((name, Context.current().job.id))

    app = MinimalApp(MinimalTask(says))
    await app.put(*(app.job("says", str(n), id=str(n)) for n in range(10)))
    await app.drain()
    assert len(seen) == 20
    assert all(name == job_id for name, job_id in seen)


async def test_a_long_row_of_quick_handlers_lets_others_have_their_turn() -> None:
    turns: list[int] = []
    ran = 0

    async def busy() -> None:
        nonlocal ran
        ran += 1
        end = loop.time() + 0.002
        while loop.time() < end:
            pass

    def turn() -> None:
        turns.append(ran)
        if ran < 30:
            loop.call_soon(turn)

    app = MinimalApp(MinimalTask(busy))
    loop = asyncio.get_running_loop()
    await app.put(*(app.job("busy") for _ in range(30)))
    loop.call_soon(turn)
    await app.drain(concurrency=30)
    assert len({count for count in turns if 0 < count < 30}) >= 2


async def test_no_attempt_is_lost_to_the_garbage_collector() -> None:
    """The loop holds its tasks weakly; someone must hold them strongly."""

    gc.collect()
    gc.freeze()  # what other tests left behind is not worth a thousand looks
    app = MinimalApp(MinimalTask(_naps))
    ids = await app.put(*(app.job("_naps") for _ in range(60)))
    stop = False

    def collect() -> None:
        gc.collect()
        if not stop:
            asyncio.get_running_loop().call_soon(collect)

    collect()
    await app.drain(concurrency=7)
    stop = True
    states = {(await app.look(id)).state for id in ids}
    assert states == {JobState.SUCCEEDED}


async def _naps() -> None:
    # Nobody but the timer refers to this future.
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.001, future.set_result, None)
    await future
