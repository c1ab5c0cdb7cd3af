"""Clocks under a SQLite file or a file store: a wall clock that steps, a host that restarts, small differences."""

from pathlib import Path
from random import Random

import pytest
from opened_engine import opened_engine
from sqlite_store import a_claim, job, success

from holdfast.engines import open_engine
from holdfast.model.instants import DAY, MINUTE, SECOND
from holdfast.model.states import JobState
from holdfast.model.work import Settlement
from holdfast.runtime import SystemRuntime


@pytest.fixture(params=["sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    return f"sqlite:///{tmp_path}/x.db" if request.param == "sqlite" else f"file://{tmp_path}/x"


class Host(SystemRuntime):
    """Clocks that a test sets, each by itself."""

    def __init__(self, boot_id: str = "this boot") -> None:
        super().__init__()
        self.wall_us = 1_800_000_000 * SECOND
        self.boot_us = 100_000 * SECOND
        self._boot_id = boot_id

    def wall(self) -> int:
        return self.wall_us

    def boot(self) -> int:
        return self.boot_us

    def advance(self, duration_us: int) -> None:
        self.wall_us += duration_us
        self.boot_us += duration_us


# TM3
@pytest.mark.parametrize("same_process", [True, False])
async def test_one_write_under_a_clock_a_day_ahead_does_not_stop_due_times(
    url: str, caplog: pytest.LogCaptureFixture, same_process: bool
) -> None:
    wrong, right = Host(), Host()
    wrong.wall_us += DAY
    async with (
        opened_engine(open_engine(url, runtime=wrong)) as first,
        opened_engine(open_engine(url, runtime=right)) as second,
    ):
        await first.enqueue(job("written a day ahead"))
        wrong.wall_us = right.wall_us
        engine = first if same_process else second
        await engine.enqueue(job("due in a minute", delay=MINUTE))
        for host in (wrong, right):
            host.advance(2 * MINUTE)
        leases = (await engine.claim(a_claim("w"))).leases
        assert "due in a minute" in [lease.id for lease in leases]
        assert (await engine.now()).wall == right.wall_us
    assert "86400 s ahead" in caplog.text


# TM3
async def test_a_small_step_back_of_the_wall_clock_does_not_take_engine_time_back(url: str) -> None:
    host = Host()
    async with opened_engine(open_engine(url, runtime=host)) as engine:
        await engine.enqueue(job("a"))
        before = await engine.now()
        host.wall_us -= 3 * SECOND
        assert (await engine.now()).wall == before.wall
        await engine.enqueue(job("b"))
        assert (await engine.now()).wall == before.wall


# TM3
async def test_engine_time_is_not_behind_the_last_commit_of_another_process(url: str) -> None:
    ahead, behind = Host(), Host()
    ahead.wall_us += 3 * SECOND
    async with (
        opened_engine(open_engine(url, runtime=ahead)) as first,
        opened_engine(open_engine(url, runtime=behind)) as second,
    ):
        await first.enqueue(job("a"))
        written = (await first.now()).wall
        assert (await second.now()).wall >= written  # the reader
        (lease,) = (await second.claim(a_claim("w"))).leases
        assert (
            await second.settle(Settlement(queue="q", id="a", token=lease.token, target=JobState.SUCCEEDED))
        ).at.wall >= written
        assert (await second.prune()).at.wall >= written  # the writer


# PF4
@pytest.mark.parametrize("step_us", [DAY, -DAY, 3 * SECOND, -3 * SECOND])
async def test_a_step_of_the_wall_clock_neither_ends_nor_prolongs_a_lease(url: str, step_us: int) -> None:
    host = Host()
    async with opened_engine(open_engine(url, runtime=host)) as engine:
        await engine.enqueue(job("before"), job("after"))
        await engine.claim(a_claim("w", limit=1, lease_us=10 * SECOND))
        host.wall_us += step_us
        await engine.claim(a_claim("w", 1, limit=1, lease_us=10 * SECOND))
        host.advance(9 * SECOND)
        assert (await engine.expired("me")).leases == ()
        host.advance(2 * SECOND)
        assert len((await engine.expired("me")).leases) == 2


# TM2, PF4
async def test_after_a_restart_of_the_host_new_leases_expire_by_the_new_clock(url: str) -> None:
    old = Host("old boot")
    async with opened_engine(open_engine(url, runtime=old)) as engine:
        await engine.enqueue(job("a"), job("b"))
        await engine.claim(a_claim("before", limit=1))
    new = Host("new boot")
    new.boot_us = 5 * SECOND
    async with opened_engine(open_engine(url, runtime=new)) as engine:
        assert len((await engine.expired("me")).leases) == 1
        await engine.claim(a_claim("after", limit=1, lease_us=10 * SECOND))
        new.advance(9 * SECOND)
        assert len((await engine.expired("me")).leases) == 1
        new.advance(2 * SECOND)
        assert len((await engine.expired("me")).leases) == 2
        assert (await engine.now()).lease == new.boot_us
        assert await engine.audit() == ()


async def test_a_wall_clock_that_is_set_forward_is_reported_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    async with opened_engine(open_engine(url, runtime=host)) as engine:
        await engine.enqueue(job("a"))
        host.advance(DAY)  # time that passes is no step
        await engine.enqueue(job("b"))
        assert "set forward" not in caplog.text
        host.wall_us += 10 * MINUTE
        await engine.now()
        await engine.enqueue(job("c"))
        await engine.enqueue(job("d"))
        assert caplog.text.count("set forward by 600 s") == 1


async def play_clock_steps(url: str, seed: int, rounds: int) -> None:
    """A wall clock that is set at random: every job runs once, and no lease ends early."""
    choose, host = Random(seed), Host()
    done: list[str] = []
    async with (
        opened_engine(open_engine(url, runtime=host)) as first,
        opened_engine(open_engine(url, runtime=host)) as second,
    ):
        for number in range(rounds):
            engine = choose.choice((first, second))
            host.wall_us += choose.choice((0, 0, DAY, -DAY, 3 * SECOND, -3 * SECOND, 10 * MINUTE))
            host.advance(choose.randrange(SECOND))
            await engine.enqueue(job(f"job-{number}", delay=choose.choice((0, SECOND))))
            leases = (await engine.claim(a_claim("w", number, limit=2, lease_us=30 * SECOND))).leases
            host.wall_us += choose.choice((0, DAY, -DAY))
            assert (await engine.expired("me")).leases == ()
            await engine.settle(*map(success, leases))
            done += [lease.id for lease in leases]
        host.wall_us += rounds * DAY  # later than every due time that was written under a wrong clock
        while leases := (await first.claim(a_claim("end", len(done), limit=50))).leases:
            await first.settle(*map(success, leases))
            done += [lease.id for lease in leases]
        assert sorted(done) == sorted(f"job-{number}" for number in range(rounds))
        assert await first.audit() == ()


async def test_every_job_runs_once_under_a_clock_that_is_set_again_and_again(url: str) -> None:
    await play_clock_steps(url, 1, 40)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(2, 30))
async def test_every_job_runs_once_under_many_clocks(url: str, seed: int) -> None:
    await play_clock_steps(url, seed, 200)
