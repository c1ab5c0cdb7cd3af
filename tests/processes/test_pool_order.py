"""A pool under fire: worker processes are killed at random, and still no key's events run out of order.

This file is also the program of the workers. Each run of the handler leaves lines in a file of its process's own, which
nobody but it appends to; the clock is one for all processes of the host.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from holdfast import App, Context, JobState

LANES = 8
KEYS = 50
BATCH = 50
"""Events that go in with one call."""


@dataclass(frozen=True)
class Event:
    key: str
    number: int


class Line(NamedTuple):
    """What a run left behind. `number` grows with arrival."""

    at: int
    what: str
    key: str
    number: int
    lane: int
    attempt: int
    fence: int


# --- The workers ---


def work_until_killed(url: str, folder: str, *held: str) -> None:
    """The first run of an event in `held` does not end before this process is killed."""
    jobs = App(url)
    pool = jobs.pool("events", Event, lanes=LANES)
    log = os.open(Path(folder) / f"{os.getpid()}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, ctx: Context, event: Event) -> None:
        line = Line(time.monotonic_ns(), what, event.key, event.number, ctx.lane_index or 0, ctx.attempt, ctx.fence)
        os.write(log, (" ".join(map(str, line)) + "\n").encode())  # one write, one line, also when we are killed

    @pool.handler(max_attempts=50, max_losses=50, backoff=0.01)
    async def handle(ctx: Context, event: Event) -> None:
        note("start", ctx, event)
        if str(event.number) in held and ctx.attempt == 1:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0.002)
        if event.number % 10 == 3 and not ctx.is_retry:
            raise ConnectionError("one in ten fails once")
        note("done", ctx, event)

    jobs.worker(concurrency=LANES // 2, signals=True).run()


class WorkerProcesses:
    """Two worker processes; a killed one is replaced."""

    def __init__(self, url: str, folder: Path, held: set[int]) -> None:
        self._program = [sys.executable, __file__, url, str(folder), *map(str, held)]
        self._folder = folder
        self._held = held
        self.workers = [subprocess.Popen(self._program) for _ in range(2)]

    def kill_holders(self) -> None:
        """Kill each worker that runs an event which it never ends."""
        for index, worker in enumerate(self.workers):
            if any(line.number in self._held and line.attempt == 1 for line in self._lines_of(worker.pid)):
                worker.kill()
                worker.wait(timeout=30)
                self.workers[index] = subprocess.Popen(self._program)

    def stop(self) -> None:
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            try:
                worker.wait(timeout=20)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    def lines(self) -> list[Line]:
        """Everything that was noted, in the order of time."""
        return sorted(line for log in self._folder.glob("*.log") for line in self._lines_of(int(log.stem)))

    def _lines_of(self, pid: int) -> list[Line]:
        from growing_log import whole_lines  # the program of the workers does not find it

        found = []
        for line in whole_lines(self._folder / f"{pid}.log"):
            at, what, key, *numbers = line.split()
            number, lane, attempt, fence = map(int, numbers)
            found.append(Line(int(at), what, key, number, lane, attempt, fence))
        return found


# --- The story ---


@pytest.fixture(params=["sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else f"file://{tmp_path}/jobs"


async def storm(url: str, tmp_path: Path, *, events: int, held: int, seed: int) -> list[Line]:
    """Send events through the pool while workers are killed; answers what ran.

    `held`: so many events, chosen at random, run for ever at first. Their workers are killed, so each kill meets one.
    """
    random = Random(seed)
    folder = tmp_path / "runs"
    folder.mkdir()
    jobs = App(url)
    pool = jobs.pool("events", Event, lanes=LANES)
    held_numbers = set(random.sample(range(events), held))
    workers = WorkerProcesses(url, folder, held_numbers)
    try:
        async with jobs:
            with jobs.engine.subscribe("room:events") as ended:
                sent = [Event(f"key-{random.randrange(KEYS)}", number) for number in range(events)]
                drafts = [pool.draft(event, key=event.key, id=f"{event.number}") for event in sent]
                enqueued = 0
                while (await pool.astatus()).processed < events:
                    if enqueued < events:
                        await jobs.client.aenqueue_many(drafts[enqueued : enqueued + BATCH])
                        enqueued += BATCH
                    else:
                        await ended.wait(0.1)  # short: nothing ends while every slot runs an event that is held
                    workers.kill_holders()
            records = [await jobs.control.aget(f"{number}", queue="events") for number in range(events)]
            losses = Counter(record.id for record in records for run in record.attempts if run.outcome == "worker_lost")
            assert all(losses[str(number)] for number in held_numbers)
            assert Counter(record.state for record in records) == {JobState.SUCCEEDED: events}
            assert ((await pool.astatus()).processed, (await pool.astatus()).failed) == (events, 0)
            assert await jobs.engine.audit() == ()
    finally:
        workers.stop()
    lines = workers.lines()
    print(f"{len(lines)} lines, {losses.total()} runs lost")
    return lines


def check_order(lines: list[Line], events: int) -> None:
    starts = [line for line in lines if line.what == "start"]
    done: dict[int, Line] = {}
    for line in lines:
        if line.what == "done":
            done.setdefault(line.number, line)  # a worker may be killed after the work and before it could say so
    assert set(done) == set(range(events)), "an event was lost"

    by_key: dict[str, list[Line]] = {}
    for line in sorted(done.values()):
        by_key.setdefault(line.key, []).append(line)
    for key, first_times in by_key.items():
        numbers = [line.number for line in first_times]
        assert numbers == sorted(numbers), f"{key} was done out of order"

    every_start: dict[str, list[Line]] = {}
    for line in starts:
        every_start.setdefault(line.key, []).append(line)
    for key, mine in every_start.items():
        assert len({line.lane for line in mine}) == 1, f"{key} was in two lanes"
        by_time = [line.number for line in mine]
        by_fence = [line.number for line in sorted(mine, key=lambda line: line.fence)]
        assert by_time == sorted(by_time), f"an event of {key} began before the one ahead of it had ended"
        assert by_fence == by_time, f"the fences of {key} tell another order"

    for lane in range(LANES):
        fences = [line.fence for line in starts if line.lane == lane]
        assert fences == sorted(set(fences)), f"a fence of lane {lane} did not grow"


async def test_no_key_runs_out_of_order_while_workers_are_killed(url: str, tmp_path: Path) -> None:
    lines = await storm(url, tmp_path, events=1_000, held=4, seed=4)
    check_order(lines, 1_000)
    failed_once = sum(line.what == "start" for line in lines) - 1_000
    assert failed_once >= 80


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
async def test_no_key_runs_out_of_order_in_a_longer_storm(url: str, tmp_path: Path, seed: int) -> None:
    check_order(await storm(url, tmp_path, events=5_000, held=20, seed=seed), 5_000)


if __name__ == "__main__":
    work_until_killed(*sys.argv[1:])
