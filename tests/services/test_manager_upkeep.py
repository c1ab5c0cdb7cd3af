"""What a manager does with the store."""

import asyncio
from types import SimpleNamespace
from typing import Any

from eventually import idle

from holdfast.engines.memory import MemoryEngine
from holdfast.manager.scaling import SizeLimits
from holdfast.manager.upkeep import ManagerHeartbeat
from holdfast.model.records import WorkerRecord
from holdfast.model.work import HeartbeatAnswer
from holdfast.runtime import SystemRuntime
from holdfast.service import StoreOutage, Supervisor


class SlowEngine(MemoryEngine):
    """A heartbeat takes as long as the test wants. Then it is written, also if nobody waits for the answer."""

    def __init__(self) -> None:
        self.runtime = SystemRuntime()
        super().__init__("memory://", self.runtime)
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def heartbeat(self, worker: WorkerRecord) -> HeartbeatAnswer:
        self.begun.set()
        await self.may_end.wait()
        return await super().heartbeat(worker)


async def test_a_heartbeat_in_flight_does_not_write_the_record_after_its_removal() -> None:
    engine = SlowEngine()
    runtime = engine.runtime
    none: Any = SimpleNamespace(worker_names=tuple)
    heartbeat = ManagerHeartbeat(
        runtime,
        engine,
        manager="m",
        limits=SizeLimits(min=1, max=1, slots=1, idle_before_down_us=0),
        children=none,
        lost=none,
        on_stop_requested=lambda: None,
    )
    supervisor = Supervisor(runtime, (heartbeat,), outage=StoreOutage(runtime), on_ended=lambda service: None)
    supervisor.start()
    await engine.begun.wait()

    close = asyncio.create_task(heartbeat.close())
    asyncio.get_running_loop().call_soon(engine.may_end.set)
    await close
    assert [worker.worker for worker in (await engine.workers()).workers] == ["m"]
    heartbeat.wake()
    await supervisor.stop()
    await engine.forget_worker("m")

    await idle()
    assert (await engine.workers()).workers == ()
