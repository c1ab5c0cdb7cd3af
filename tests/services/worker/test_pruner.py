"""The pruner: what is past its time goes, in every worker, piece by piece."""

from eventually import eventually, idle
from failing_engine import FailingEngine
from minimal_app import MinimalApp, MinimalTask

from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Prune
from holdfast.model.states import JobState
from holdfast.testing import FrozenRuntime


async def works() -> None: ...


async def _has_succeeded(app: MinimalApp, id: str) -> bool:
    return (await app.look(id)).state is JobState.SUCCEEDED


async def _all_succeeded(engine: FailingEngine, count: int) -> bool:
    return (await engine.stats("default")).queues[0].counts == {JobState.SUCCEEDED: count}


async def test_a_finished_job_goes_when_its_clocks_have_run_out() -> None:
    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(works, result_ttl=10 * SECOND, retention=20 * SECOND), runtime=runtime)
    id = await app.enqueue("works")
    async with app.worker():
        await eventually(lambda: _has_succeeded(app, id))  # the first claim waits for the keeper's thread
        for _ in range(4):
            runtime.advance(66)
            await idle()
        assert (await app.engine.get(JobKey("default", id))).jobs == (None,)


async def test_much_to_delete_goes_in_pieces_without_waiting_for_the_next_minute() -> None:
    runtime = FrozenRuntime()
    engine = FailingEngine(runtime)
    app = MinimalApp(MinimalTask(works, result_ttl=SECOND, retention=SECOND), runtime=runtime, engine=engine)
    await app.put(*(app.job("works", expires=None) for _ in range(1000)))
    async with app.worker(concurrency=500):
        await eventually(lambda: _all_succeeded(engine, 1000))
        runtime.advance(2)
        for _ in range(62):
            runtime.advance(1)
            await idle()
        assert (await engine.stats("default")).queues[0].counts == {}
    prunes = [command for command in engine.commands if isinstance(command, Prune)]
    assert len(prunes) >= 2
    assert max(prune.limit for prune in prunes) == 500
