"""The steps of the demo, block by block. Every printed number was measured in this run."""

import sqlite3
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdfast.app import App
from holdfast.demo.screen import Screen, bar
from holdfast.demo.tasks import CARD, CUSTOMERS, make
from holdfast.engine import Engine
from holdfast.kinds import KINDS, will_fail
from holdfast.model.instants import SECOND
from holdfast.model.job import AttemptOutcome, JobKey, JobRecord
from holdfast.model.states import JobState
from holdfast.model.work import Settlement, SettleStatus
from holdfast.runtime import Runtime

QUEUE = "default"
ORDERS = 4_599
DELIVERIES = 400
BATCH = 1_000
JOBS_AT_KILL = 37
"""Jobs that the worker runs when it is killed."""


class DemoFailed(Exception):
    """A step did not have the expected result. The demo ends with exit code 1."""


class Demo:
    """One run."""

    def __init__(self, folder: Path, screen: Screen) -> None:
        self.folder = folder
        self.screen = screen
        self.url = f"sqlite:///{folder}/demo.db"
        self.jobs: App[Any] = make(self.url, folder)
        self.runtime: Runtime = self.jobs.runtime
        self.workers: dict[str, Any] = {}
        self.accepted: list[str] = []
        self.began = self.runtime.monotonic()

    @property
    def engine(self) -> Engine:
        return self.jobs.engine

    def since(self, start: int) -> float:
        return (self.runtime.monotonic() - start) / SECOND

    async def run(self) -> None:
        """All steps."""
        self.screen.line("Holdfast demo — one SQLite file, two workers; one of them is killed")
        self.screen.line()
        await self.jobs.aopen()
        try:
            self.prepare()
            await self.enqueue()
            await self.work()
            await self.break_it()
            await self.ask()
            await self.ask_twice()
            await self.bring_back()
            await self.compare()
        finally:
            for worker in self.workers.values():
                worker.terminate()
            for worker in self.workers.values():
                worker.wait()
            await self.jobs.aclose()

    def prepare(self) -> None:
        shown = Path(self.folder).resolve()
        if shown.is_relative_to(Path.cwd()):
            shown = shown.relative_to(Path.cwd())
        self.screen.good(
            f"store      {shown}/demo.db   SQLite {sqlite3.sqlite_version} · WAL · durable: every commit is synced"
        )
        for name in ("demo-1", "demo-2"):
            self.start_worker(name)
        pids = "   ".join(f"{name} (pid {worker.pid})" for name, worker in self.workers.items())
        self.screen.good(f"workers    {pids}   50 slots each · lease 30 s")

    def start_worker(self, name: str) -> None:
        program = [sys.executable, "-m", "holdfast.demo", "work", self.url, str(self.folder), name]
        with self.runtime.fs.open_append(self.folder / f"{name}.log") as log:
            self.workers[name] = self.runtime.process(program, stdout=log.fd, stderr=log.fd)

    # 1

    async def enqueue(self) -> None:
        total = ORDERS + DELIVERIES + 1
        self.screen.head(f"1  Enqueue {total:,} jobs, up to {BATCH:,} at a time")
        task = self.jobs.registry
        drafts = [task["order"].using(id=f"order-{n}").draft("flaky", f"order-{n}") for n in range(ORDERS)]
        for number in range(DELIVERIES // len(CUSTOMERS)):
            for customer in CUSTOMERS:
                drafts.append(task["deliver"].using(id=f"{customer}-{number}").draft(customer, number))
        drafts.append(task["invoice"].using(id="invoice-666").draft(666))
        began = self.runtime.monotonic()
        for start in range(0, len(drafts), BATCH):
            handles = await self.jobs.client.aenqueue_many(drafts[start : start + BATCH])
            self.accepted += [handle.id for handle in handles]
        took = self.since(began)
        self.screen.line(f"   accepted   {len(self.accepted):,} in {took:.2f} s   on disk before each call returned")

    # 2

    async def work(self) -> None:
        self.screen.head("2  Work")
        total = len(self.accepted)
        began = self.runtime.monotonic()
        with self.engine.subscribe(f"room:{QUEUE}") as ended:
            while True:
                stats = (await self.engine.stats(QUEUE)).queues[0]
                done = stats.totals.finished
                rate = stats.totals.succeeded / max(self.since(began), 0.001)
                lines = [
                    f"   succeeded  {bar(done, total)}   {stats.totals.succeeded:,} / {total:,}   {rate:,.0f} jobs/s",
                    f"   retrying   {stats.counts.get(JobState.RETRYING, 0)}",
                ]
                self.screen.redraw(lines)
                if done == total:
                    break
                await ended.wait(0.2)
        if not self.screen.live:
            self.screen.line(lines[0])
        records = await self.records()
        failed = [record for record in records.values() if record.state is JobState.FAILED]
        retried = sum(1 for record in records.values() if record.history and record.state is JobState.SUCCEEDED)
        self.screen.line(f"   retried    {retried}   NotYet ×{retried}, each succeeded on attempt 2")
        for record in failed:
            self.screen.line(f"   failed     {record.id}   GiveUp: {record.note}")
        self.screen.line(f"   lanes      {len(CUSTOMERS)}   {out_of_order(records)} out of order")
        waits = sorted((r.started or 0) - r.due for r in records.values() if r.started and not r.lane)
        middle, most = waits[len(waits) // 2] / 1000, waits[len(waits) * 99 // 100] / 1000
        self.screen.line(
            f"   start      p50 {middle:,.0f} ms   p99 {most:,.0f} ms   from due to started, all of it queued at once"
        )

    # 3

    async def break_it(self) -> None:
        victim = self.workers["demo-2"]
        self.screen.head(f"3  Break it: kill -9 demo-2 while it runs {JOBS_AT_KILL} jobs")
        survivor = self.workers.pop("demo-1")  # stopped first, so that demo-2 gets all the jobs
        survivor.terminate()
        survivor.wait()
        draft = self.jobs.registry["render"]
        handles = await self.jobs.client.aenqueue_many(
            [draft.using(id=f"render-{n}").draft(f"render-{n}") for n in range(JOBS_AT_KILL)]
        )
        names = [handle.id for handle in handles]
        self.accepted += names
        held = await self.until(names, JobState.RUNNING)
        token = held[names[0]].token
        assert token is not None
        self.start_worker("demo-1")
        await self.until_alive("demo-1")
        victim.kill()
        victim.wait()
        killed = self.runtime.monotonic()
        del self.workers["demo-2"]
        self.screen.bad("demo-2 was killed")
        await self.until(names, JobState.SUCCEEDED)
        took = self.since(killed)
        self.screen.line(
            "   · noticed at once: the kernel released the lock of its process (the lease would have taken 30 s)"
        )
        after = await self.records(names)
        losses = [r for r in after.values() if [a.outcome for a in r.history] == [AttemptOutcome.WORKER_LOST]]
        if len(losses) != JOBS_AT_KILL or any(record.attempt != 2 for record in after.values()):
            raise DemoFailed(f"{len(losses)} of {JOBS_AT_KILL} jobs were lost once and ran twice")
        self.screen.good(
            f"{JOBS_AT_KILL} jobs reaped, finished by demo-1 {took:.2f} s after the kill   "
            "attempt 2 of each; attempt 1: worker_lost"
        )
        late = Settlement(queue=QUEUE, id=names[0], token=token, target=JobState.SUCCEEDED, result=b'"too late"')
        (answer,) = (await self.engine.settle(late)).settled
        if answer is not SettleStatus.LOST:
            raise DemoFailed(f"a late answer in demo-2's name was {answer}")
        self.screen.good(f"a late answer in demo-2's name was refused   {answer}, job {names[0]}")

    async def until(self, names: list[str], state: JobState) -> dict[str, JobRecord]:
        """Wait until all these jobs are in this state."""
        with self.engine.subscribe(f"room:{QUEUE}") as ended:
            while True:
                found = await self.records(names)
                if all(record.state is state for record in found.values()):
                    return found
                await ended.wait(0.05)

    async def until_alive(self, name: str) -> None:
        with self.engine.subscribe() as nothing:
            while not any(w.worker.startswith(name + "-") for w in (await self.engine.workers()).workers):
                await nothing.wait(0.05)

    # 4, 5, 6

    async def ask(self) -> None:
        began = self.runtime.monotonic()
        price = await self.jobs.registry["price"].using(id="basket-7").arequest("basket-7")
        took = self.since(began) * 1000
        self.accepted.append("basket-7")
        self.screen.head(
            f'4  Ask:        price.request("basket-7")     → {price:.2f}   there and back in {took:.1f} ms'
        )

    async def ask_twice(self) -> None:
        charge = self.jobs.registry["charge"].using(id="order-42-charge")
        first = await charge.aenqueue(42)
        paid = await first.aresult(timeout=30)
        again = await charge.aenqueue(42)
        self.accepted.append(first.id)
        assert first.receipt is not None
        assert again.receipt is not None
        if (first.receipt.answer, again.receipt.answer, await again.aresult()) != ("created", "completed", paid):
            raise DemoFailed("one id was two jobs")
        self.screen.line(
            f'5  Ask twice:  charge.using(id="order-42-charge") → created, then completed ({paid}, no second run)'
        )

    async def bring_back(self) -> None:
        self.runtime.fs.write_atomic(self.folder / CARD, b"")
        await self.jobs.control.arequeue("invoice-666")
        await self.until(["invoice-666"], JobState.SUCCEEDED)
        record = (await self.records(["invoice-666"]))["invoice-666"]
        if (record.attempt, len(record.history)) != (1, 1):
            raise DemoFailed(f"invoice-666: attempt {record.attempt}, {len(record.history)} entries")
        self.screen.line(
            "6  Bring back: requeue invoice-666             → succeeded on attempt 1, old error kept in its history"
        )

    # The end

    async def compare(self) -> None:
        """Every accepted id against what is stored, and the totals against both."""
        records = await self.records()
        stats = (await self.engine.stats(QUEUE)).queues[0]
        lost = [name for name in self.accepted if name not in records]
        wrong = [name for name, record in records.items() if record.state is not JobState.SUCCEEDED]
        ends = len(self.accepted) + 1  # invoice-666 ended twice: the first time as a dead letter
        twice = stats.totals.finished - ends
        attempts = sum(
            record.attempt + sum(a.generation < record.generation for a in record.history)
            for record in records.values()
        )
        losses = sum(record.losses for record in records.values())
        planned = sum(will_fail(KINDS["flaky"], f"order-{n}") for n in range(ORDERS))
        retried = sum(1 for n in range(ORDERS) if records[f"order-{n}"].history)
        size = self.runtime.fs.size(self.folder / "demo.db") / 1_000_000
        self.screen.head("Summary")
        self.screen.line(
            f"   accepted {len(self.accepted):,}   finished {len(records) - len(wrong):,}   lost {len(lost)}   "
            f"completed twice {twice}   compared id by id"
        )
        self.screen.line(
            f"   attempts {attempts:,}   retried {retried}   worker lost {losses}   dead letters 1, then {len(wrong)}"
        )
        self.screen.line(f"   ran {self.since(self.began):.1f} s   SQLite file {size:.1f} MB")
        if lost or wrong or twice or losses != JOBS_AT_KILL or retried != planned or out_of_order(records):
            raise DemoFailed(
                f"lost {lost[:5]}, not succeeded {wrong[:5]}, twice {twice}, losses {losses}, "
                f"retried {retried} of {planned}"
            )
        if problems := await self.engine.audit():
            raise DemoFailed(f"the store is not in order: {problems[:3]}")
        self.screen.line()
        self.screen.line("The store is still there; look at it with:")
        self.screen.line(f"   HOLDFAST_URL={self.url} .venv/bin/holdfast status")
        self.screen.line("   README.md   your own first job in 25 lines")

    async def records(self, names: list[str] | None = None) -> dict[str, JobRecord]:
        names = self.accepted if names is None else names
        found: dict[str, JobRecord] = {}
        for start in range(0, len(names), BATCH):
            answer = await self.engine.get(*(JobKey(QUEUE, name) for name in names[start : start + BATCH]))
            found.update({record.id: record for record in answer.jobs if record is not None})
        return found


def out_of_order(records: dict[str, JobRecord]) -> int:
    """Jobs of a lane that started before the one ahead of them had ended."""
    count = 0
    for customer in CUSTOMERS:
        lane = sorted((r for r in records.values() if r.lane == customer), key=lambda record: record.arrival)
        for ahead, behind in pairwise(lane):
            if ahead.finished is None or behind.last_started is None or behind.last_started < ahead.finished:
                count += 1
    return count
