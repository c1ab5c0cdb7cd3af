"""The service that disowns dead workers: how much silence counts, and what breaks the count."""

import pytest
from failing_engine import FailingEngine

from holdfast.errors import EngineUnavailable
from holdfast.model.instants import SECOND
from holdfast.model.produce import Group
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Disown
from holdfast.service import Service
from holdfast.testing import FrozenRuntime
from holdfast.testing.contract.builders import claim, new_job
from holdfast.worker.dead_workers import MANAGER_LEAD_US, DeadWorkers


class WithSessions(FailingEngine):
    """An engine that knows sessions. It notes for how long the callers say they have watched."""

    def __init__(self, runtime: FrozenRuntime) -> None:
        super().__init__(runtime)
        self.watched_s: list[float] = []
        self.broken = False
        self.silent: dict[str, int] = {}

    async def disown_silent(self, watched_us: int) -> dict[str, int]:
        if self.broken:
            raise EngineUnavailable()
        self.watched_s.append(watched_us / SECOND)
        return self.silent


class Woken(Service):
    name = "reaper"
    wakes = 0

    async def tick(self) -> None: ...

    def wake(self) -> None:
        self.wakes += 1


class Bench:
    def __init__(self) -> None:
        self.runtime = FrozenRuntime()
        self.engine = WithSessions(self.runtime)
        self.reaper = Woken(self.runtime)
        self.service = DeadWorkers(self.runtime, self.engine, self.reaper)

    async def checks(self, *pauses_s: float) -> list[float]:
        """Tick after each of these pauses; returns how long each check says that it has watched."""
        self.engine.watched_s.clear()
        for pause_s in pauses_s:
            self.runtime.advance(pause_s)
            await self.service.tick()
        return self.engine.watched_s


# WK3
async def test_silence_counts_from_the_first_check() -> None:
    assert await Bench().checks(0, 2, 2, 3) == [0, 2, 4, 7]


async def test_checks_come_no_more_often_than_needed() -> None:
    assert await Bench().checks(0, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25) == [0, 1.5]


async def test_silence_does_not_count_across_a_gap_that_may_hide_an_outage() -> None:
    assert await Bench().checks(0, 2, 3.5, 2) == [0, 2, 0, 2]


async def test_silence_does_not_count_across_a_check_that_failed() -> None:
    bench = Bench()
    await bench.checks(0, 2)
    bench.engine.broken = True
    with pytest.raises(EngineUnavailable):
        await bench.checks(2)
    bench.engine.broken = False
    assert await bench.checks(0.1, 2) == [0, 2]


async def test_a_disowned_worker_wakes_the_reaper() -> None:
    bench = Bench()
    await bench.checks(0)
    assert bench.reaper.wakes == 0
    bench.engine.silent = {"w": 3}
    await bench.checks(2)
    assert bench.reaper.wakes == 1


async def test_an_engine_that_knows_neither_processes_nor_sessions_is_not_asked_again() -> None:
    runtime = FrozenRuntime()
    service = DeadWorkers(runtime, FailingEngine(runtime), Woken(runtime))
    assert await service.tick() is None


async def test_the_log_counts_the_jobs_of_all_ended_processes_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = FrozenRuntime()
    engine = FailingEngine(runtime)
    await engine.enqueue(Group((new_job("a"),)))
    await engine.claim(claim("c", worker="one"))

    async def ended_workers() -> tuple[str, ...]:
        return ("one", "two")

    monkeypatch.setattr(FailingEngine, "process_name", "own", raising=False)
    monkeypatch.setattr(engine, "ended_workers", ended_workers)
    await DeadWorkers(runtime, engine, Woken(runtime)).tick()
    assert caplog.messages == ["Processes of workers have ended: one, two. Jobs that run again: 1."]


class WithProcesses(FailingEngine):
    """An engine that knows which workers have ended."""

    process_name = "own"

    def __init__(self, runtime: FrozenRuntime, *ended: str) -> None:
        super().__init__(runtime)
        self.ended = ended

    async def ended_workers(self) -> tuple[str, ...]:
        return tuple(record.worker for record in (await self.workers()).workers if record.worker in self.ended)

    @property
    def disowned(self) -> list[tuple[str, ...]]:
        return [command.workers for command in self.commands if isinstance(command, Disown)]


async def test_a_dead_worker_is_left_to_its_manager_for_a_short_time() -> None:
    """The manager knows how it has ended."""
    runtime = FrozenRuntime()
    engine = WithProcesses(runtime, "child", "alone")
    for name in ("child", "alone", "other"):
        await engine.heartbeat(WorkerRecord(worker=name))
    await engine.heartbeat(WorkerRecord(worker="manager", children=("child", "other"), max_children=2))
    service = DeadWorkers(runtime, engine, Woken(runtime))

    await service.tick()
    runtime.advance((MANAGER_LEAD_US - 1) / SECOND)
    await service.tick()
    assert engine.disowned == [("alone",)]
    runtime.advance(1 / SECOND)
    await service.tick()

    assert engine.disowned == [("alone",), ("child",)]


async def test_a_dead_worker_whose_manager_has_ended_too_is_disowned_at_once() -> None:
    runtime = FrozenRuntime()
    engine = WithProcesses(runtime, "child", "manager")
    await engine.heartbeat(WorkerRecord(worker="child"))
    await engine.heartbeat(WorkerRecord(worker="manager", children=("child",), max_children=1))

    await DeadWorkers(runtime, engine, Woken(runtime)).tick()

    assert engine.disowned == [("child", "manager")]
