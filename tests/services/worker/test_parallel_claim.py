"""Claims ahead: while handlers are short, the next claim is sent before the jobs of the last one run."""

import asyncio
from typing import Any

import pytest
from eventually import eventually
from failing_engine import FailingEngine
from minimal_app import GatedHandler, MinimalApp, MinimalTask
from msgspec.structs import replace

from holdfast.engines.memory import MemoryEngine
from holdfast.model.command import A, Command
from holdfast.model.instants import HOUR
from holdfast.model.states import JobState
from holdfast.model.work import Exchange, ExchangeAnswer
from holdfast.runtime import SystemRuntime
from holdfast.worker import parallel_claim, runner

SLOTS = 40


class RemoteEngine(FailingEngine):
    """A store of other hosts: an exchange takes a while, and several may be under way."""

    capabilities = replace(MemoryEngine.capabilities, shared_between_hosts=True)

    def __init__(self, runtime: SystemRuntime) -> None:
        super().__init__(runtime)
        self.ran = 0
        """Handlers that have run."""
        self.leased = self.settled = self.most_held = self.most_unrun = 0
        self.settlement_s = 0.0
        self.may_settle = asyncio.Event()
        self.may_settle.set()

    async def perform(self, command: Command[A]) -> A:
        if not isinstance(command, Exchange):
            return self.perform_now(command)
        if command.claim is not None:
            self.most_unrun = max(self.most_unrun, self.leased - self.ran)
        await asyncio.sleep(self.settlement_s if command.settlements else 0)
        if command.settlements:
            await self.may_settle.wait()
        answer = self.perform_now(command)
        if isinstance(answer, ExchangeAnswer):
            self.leased += len(answer.leases)
            self.settled += len(command.settlements)
            self.most_held = max(self.most_held, self.leased - self.settled)
        return answer  # type: ignore[return-value]  # mypy narrows the other way


@pytest.fixture(autouse=True)
def any_handler_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that the jobs of a claim took does not count: the machine may be busy. All run before the answer."""
    monkeypatch.setattr(parallel_claim, "AHEAD_WITHIN_US", 1_000_000 * HOUR)
    monkeypatch.setattr(runner, "MAX_TURN_US", HOUR)


def remote(*more: MinimalTask) -> tuple[MinimalApp, RemoteEngine]:
    runtime = SystemRuntime()
    engine = RemoteEngine(runtime)

    async def short() -> None:
        engine.ran += 1

    return MinimalApp(MinimalTask(short), *more, runtime=runtime, engine=engine), engine


def slots_of(worker: Any) -> Any:
    return worker._services.slots


async def test_short_jobs_are_claimed_before_those_of_the_last_claim_have_run() -> None:
    app, engine = remote()
    await app.put(*(app.job("short") for _ in range(10 * SLOTS)))
    await app.drain(concurrency=SLOTS)
    assert engine.most_unrun == SLOTS
    assert await app.counts() == {JobState.SUCCEEDED: 10 * SLOTS}


async def test_jobs_that_take_longer_are_not_claimed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_claim, "AHEAD_WITHIN_US", -1)
    app, engine = remote()
    await app.put(*(app.job("short") for _ in range(10 * SLOTS)))
    await app.drain(concurrency=SLOTS)
    assert engine.most_unrun == 0
    assert await app.counts() == {JobState.SUCCEEDED: 10 * SLOTS}


async def test_slow_settlements_bound_what_is_claimed_ahead() -> None:
    app, engine = remote()
    engine.settlement_s = 0.02
    await app.put(*(app.job("short") for _ in range(20 * SLOTS)))
    await app.drain(concurrency=SLOTS)
    assert engine.most_held <= (parallel_claim.AHEAD_UP_TO + 1) * SLOTS
    assert await app.counts() == {JobState.SUCCEEDED: 20 * SLOTS}


async def test_jobs_claimed_ahead_wait_for_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_claim, "AHEAD_UP_TO", 100)
    monkeypatch.setattr(parallel_claim, "RELEASE_AFTER_S", 3_600.0)
    gated = GatedHandler()
    app, engine = remote(gated.task())
    await app.put(*(app.job("short") for _ in range(4 * SLOTS)))
    ids = await app.put(*(app.job("gated") for _ in range(3 * SLOTS)))
    async with app.worker(concurrency=SLOTS) as worker:
        await eventually(lambda: len(slots_of(worker).assigned) == SLOTS)
        assert slots_of(worker).busy == SLOTS
        assert engine.leased == 6 * SLOTS, "no further claim while they wait"
        gated.gate.set()
        await eventually(lambda: engine.settled == 7 * SLOTS)
    assert [(await app.look(id)).attempt for id in ids] == [1] * len(ids)


async def test_jobs_claimed_ahead_that_find_no_slot_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_claim, "AHEAD_UP_TO", 100)
    gated = GatedHandler()
    app, engine = remote(gated.task())
    await app.put(*(app.job("short") for _ in range(4 * SLOTS)))
    ids = await app.put(*(app.job("gated") for _ in range(2 * SLOTS)))
    async with app.worker(concurrency=SLOTS) as worker:
        await eventually(lambda: engine.settled == 5 * SLOTS and not slots_of(worker).assigned)
        records = [await app.look(id) for id in ids]
        assert [(record.state, record.attempt) for record in records] == [
            *[(JobState.RUNNING, 1)] * SLOTS,
            *[(JobState.QUEUED, 0)] * SLOTS,
        ]
        gated.gate.set()
        await eventually(lambda: engine.settled == 7 * SLOTS)
    assert await app.counts() == {JobState.SUCCEEDED: 6 * SLOTS}


async def test_jobs_claimed_ahead_start_in_free_slots_while_a_settlement_is_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parallel_claim, "AHEAD_UP_TO", 100)
    one, others, last = GatedHandler(), GatedHandler(), GatedHandler()
    app, engine = remote(one.task("one"), others.task("others"), last.task("last"))
    await app.put(*(app.job("short") for _ in range(4 * SLOTS)), app.job("one"))
    await app.put(*(app.job("others") for _ in range(SLOTS - 1)), *(app.job("last") for _ in range(SLOTS)))
    async with app.worker(concurrency=SLOTS) as worker:
        await eventually(lambda: len(slots_of(worker).assigned) == SLOTS and engine.settled == 4 * SLOTS)
        engine.may_settle.clear()
        one.gate.set()
        await last.started.calls(1)
        others.gate.set()
        last.gate.set()
        try:
            await last.started.calls(SLOTS)
        finally:
            engine.may_settle.set()
        await eventually(lambda: engine.settled == 6 * SLOTS)
