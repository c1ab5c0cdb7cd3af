"""Pulling when answers are slow, notifications are lost, or the upkeep fails; and how often the upkeep runs."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from eventually import eventually
from failing_engine import FailingEngine, fail_times
from scan_queue import Scan

from holdfast import App, EngineUnavailable, JobState
from holdfast.model.command import Command
from holdfast.model.instants import SECOND
from holdfast.model.produce import Group, NewJob
from holdfast.model.work import Exchange, Expired, ForgetWorker, Renew
from holdfast.pull.worker import _Upkeep
from holdfast.queue import Queue
from holdfast.runtime import SystemRuntime
from holdfast.service import Service


class Bench:
    """An App over an engine that can be slow or fail."""

    def __init__(self) -> None:
        self.runtime = SystemRuntime()
        self.engine = FailingEngine(self.runtime)
        self.jobs: App[Any] = App("memory://")
        self.scans: Queue[Scan] = self.jobs.queue("scans", Scan)

    def sent(self, kind: type[Any]) -> int:
        return sum(isinstance(command, kind) for command in self.engine.commands)

    def answer_late(self, kind: type[Any]) -> list[int]:
        """The next answer to such a command comes five seconds late. Answers when it was carried out."""
        carried_out: list[int] = []

        def late(command: Command[Any]) -> None:
            if isinstance(command, kind) and not carried_out:
                carried_out.append(self.runtime.boot())
                self.runtime.clock_offset += 5 * SECOND

        self.engine.after = late
        return carried_out


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    with bench.jobs.swapped(bench.engine, bench.runtime):
        yield bench


def without_notifications(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.engine._topics, "notify", lambda topics: None)


# Slow answers


def test_a_claimed_lease_lasts_from_when_its_claim_was_sent(bench: Bench) -> None:
    bench.scans.enqueue(Scan("x"), id="a")
    carried_out = bench.answer_late(Exchange)
    (lease,) = bench.scans.claim()
    assert lease._attempt.renewed_at <= carried_out[0]
    lease.release()


def test_a_renewed_lease_lasts_from_when_its_renewal_was_sent(bench: Bench) -> None:
    bench.scans.enqueue(Scan("x"), id="a")
    (lease,) = bench.scans.claim()
    carried_out = bench.answer_late(Renew)
    lease.renew()
    assert lease._attempt.renewed_at <= carried_out[0]
    lease.release()


# Waiting


async def test_a_claim_that_waits_polls_in_case_a_notification_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.pull.leases.POLL_WITH_PUSH_S", 0.01)
    without_notifications(bench, monkeypatch)
    async with asyncio.timeout(20):
        waiting = asyncio.ensure_future(bench.scans.aclaim(wait=60))
        await eventually(lambda: bench.engine._topics.has_waiter)
        await bench.scans.aenqueue(Scan("x"), id="a")
        (lease,) = await waiting
        await lease.arelease()


async def test_a_claim_that_waits_wakes_when_the_next_job_falls_due(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.pull.leases.POLL_WITH_PUSH_S", 600.0)
    without_notifications(bench, monkeypatch)
    await bench.scans.aenqueue(Scan("x"), id="a", delay=0.3)
    async with asyncio.timeout(20):
        (lease,) = await bench.scans.aclaim(wait=60)
        await lease.arelease()


# The upkeep


def test_the_upkeep_runs_at_intervals_and_not_with_every_claim(bench: Bench) -> None:
    for _ in range(5):
        assert bench.scans.claim() == []
    assert bench.sent(Expired) == 1


def test_an_upkeep_that_fails_does_not_fail_the_claim(bench: Bench) -> None:
    bench.engine.before = fail_times(1, Expired, EngineUnavailable)
    bench.scans.enqueue(Scan("x"), id="a")
    (lease,) = bench.scans.claim()
    assert bench.sent(Expired) == 1
    lease.release()


class Counted(Service):
    """A service that waits in its tick until the test lets it go on."""

    woken = False

    def __init__(self, name: str, delay_s: float) -> None:
        super().__init__(SystemRuntime())
        self.name = name
        self.ticks = 0
        self.delay_s = delay_s
        self.gate = asyncio.Event()
        self.gate.set()
        self.wakes: Counted | None = None

    async def tick(self) -> float | None:
        self.ticks += 1
        await self.gate.wait()
        if self.wakes is not None:
            self.wakes.woken = True
        return self.delay_s


async def test_two_claims_at_once_run_the_upkeep_once() -> None:
    dead_workers, reaper, pruner = services = [Counted(name, 60) for name in ("dead workers", "reaper", "pruner")]
    fake_reaper: Any = reaper
    upkeep = _Upkeep(SystemRuntime(), dead_workers, fake_reaper, pruner)
    for service in services:
        service.gate.clear()
    first = asyncio.ensure_future(upkeep.run_due())
    await eventually(lambda: dead_workers.ticks == 1)
    second = asyncio.ensure_future(upkeep.run_due())
    await eventually(lambda: reaper.ticks == 1)  # the second claim goes on with the next service
    for service in services:
        service.gate.set()
    await asyncio.gather(first, second)
    assert [service.ticks for service in services] == [1, 1, 1]


async def test_the_upkeep_runs_only_what_is_due() -> None:
    dead_workers, reaper, pruner = Counted("dead workers", 0), Counted("reaper", 3600), Counted("pruner", 3600)
    fake_reaper: Any = reaper
    upkeep = _Upkeep(SystemRuntime(), dead_workers, fake_reaper, pruner)
    for _ in range(3):
        await upkeep.run_due()
    assert [dead_workers.ticks, reaper.ticks, pruner.ticks] == [3, 1, 1]


async def test_a_dead_puller_s_leases_are_reaped_by_the_same_upkeep_that_finds_it() -> None:
    dead_workers, reaper, pruner = Counted("dead workers", 0), Counted("reaper", 3600), Counted("pruner", 3600)
    fake_reaper: Any = reaper
    upkeep = _Upkeep(SystemRuntime(), dead_workers, fake_reaper, pruner)
    await upkeep.run_due()
    assert reaper.ticks == 1
    dead_workers.wakes = reaper
    await upkeep.run_due()
    assert reaper.ticks == 2
    assert not reaper.woken


def test_a_puller_whose_app_is_closed_removes_its_record(bench: Bench) -> None:
    assert bench.scans.claim() == []
    bench.jobs.close()
    assert bench.sent(ForgetWorker) == 1


async def test_a_payload_of_unreadable_bytes_fails_and_the_next_one_is_claimed(bench: Bench) -> None:
    await bench.jobs.aopen()
    await bench.engine.enqueue(Group((NewJob(queue="scans", id="broken", payload=b"\xff\xfe"),)))
    await bench.scans.aenqueue(Scan("x"), id="a")
    leases = await bench.scans.aclaim(2)
    assert [lease.job.id for lease in leases] == ["a"]
    assert (await bench.jobs.control.aget("broken", queue="scans")).state is JobState.FAILED
    await leases[0].arelease()
