"""`control.why` lists every obstacle of a job, who holds it and when it ends: the same on every engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manual_worker import report_in, settle, take

from holdfast import App, Task
from holdfast.core.obstacles import Obstacle, ObstacleKind
from holdfast.core.wait_reason import Why
from holdfast.model.instants import SECOND
from holdfast.model.states import JobState
from holdfast.model.text import ErrorInfo

ENGINES = ("memory", "sqlite", "file", "postgres", "redis")


@pytest.fixture(params=ENGINES)
def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App[Any]]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db", "file": f"file://{tmp_path}/jobs"}
    options: dict[str, Any] = {}
    if request.param in urls:
        url = urls[request.param]
    else:
        url, options["namespace"] = request.getfixturevalue(f"{request.param}_store")()
        if request.param == "redis":
            options["durability"] = "none"
    app: App[Any] = App(url, **options)
    with app:
        yield app


@pytest.fixture
def double(jobs: App[Any]) -> Task[[int], int]:
    @jobs.task
    def double(n: int) -> int:
        return 2 * n

    return double


def kinds(why: Why) -> list[str]:
    return [obstacle.kind.value for obstacle in why.obstacles]


def obstacle_of(why: Why, kind: ObstacleKind) -> Obstacle:
    (obstacle,) = (obstacle for obstacle in why.obstacles if obstacle.kind is kind)
    return obstacle


async def test_every_obstacle_is_listed_at_once(jobs: App[Any], double: Task[[int], int]) -> None:
    """One job behind many: each step ends one obstacle, and the others stay in the list."""
    lane = double.using(lane="alice")
    await lane.using(id="first").aenqueue(1)
    await lane.using(id="second", delay=3600).aenqueue(2)
    await jobs.control.apause("default")
    await jobs.control.apause("default", lane="alice")
    await report_in(jobs, "w1", "other", queues=("default",))
    why = await jobs.control.awhy("second")
    assert kinds(why) == ["lane", "due", "queue_paused", "lane_paused", "unknown_task"]
    assert obstacle_of(why, ObstacleKind.DUE).ends_at == why.job.due_at
    (holder,) = obstacle_of(why, ObstacleKind.LANE).holders
    assert (holder.kind, holder.name, holder.state) == ("job", "first", JobState.BLOCKED)
    assert [obstacle.kind.value for obstacle in obstacle_of(why, ObstacleKind.LANE).behind] == [
        "queue_paused",
        "lane_paused",
        "unknown_task",
    ]
    assert obstacle_of(why, ObstacleKind.LANE_PAUSED).ends.endswith("holdfast queues resume default --lane alice")
    await jobs.control.aresume("default")
    assert "queue_paused" not in kinds(await jobs.control.awhy("second"))
    await jobs.control.aresume("default", lane="alice")
    await report_in(jobs, "w1", "double", queues=("default",))
    assert kinds(await jobs.control.awhy("second")) == ["lane", "due"]


async def test_the_head_of_a_lane_is_named_with_its_worker_and_its_lease(
    jobs: App[Any], double: Task[[int], int]
) -> None:
    lane = double.using(lane="alice")
    await lane.using(id="first").aenqueue(1)
    await lane.using(id="second").aenqueue(2)
    await report_in(jobs, "test", "double", queues=("default",))
    lease = await take(jobs, double)
    (obstacle,) = (await jobs.control.awhy("second")).obstacles
    (holder,) = obstacle.holders
    assert (holder.name, holder.state, holder.worker) == ("first", JobState.RUNNING, "test")
    first = await jobs.control.awhy("first")
    assert first.obstacles == ()
    started_at = first.job.last_started_at
    assert started_at is not None
    for until in (first.lease_until, holder.lease_until):
        assert until is not None
        assert 20 < (until - started_at).total_seconds() < 40  # 30 s, on two clocks
    error = ErrorInfo("builtins.OSError", "busy", "")
    await settle(jobs, lease, JobState.RETRYING, error=error, delay=60_000_000)
    retry = obstacle_of(await jobs.control.awhy("first"), ObstacleKind.RETRY)
    assert "Attempt 1 failed with builtins.OSError: busy." in retry.text
    assert retry.ends_at is not None
    (obstacle,) = (await jobs.control.awhy("second")).obstacles
    assert obstacle.holders[0].state is JobState.RETRYING
    assert [inner.kind.value for inner in obstacle.behind] == ["retry"]


async def test_the_workers_that_could_take_it_are_named(
    jobs: App[Any], double: Task[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.obstacles.TAKEN_WITHIN_US", 60 * SECOND)  # this test may take longer than 2 s
    job = (await double.aenqueue(1)).id
    assert kinds(await jobs.control.awhy(job)) == ["no_worker"]
    await report_in(jobs, "w1", "double", queues=("other",))
    assert kinds(await jobs.control.awhy(job)) == ["unserved_queue"]
    await report_in(jobs, "w1", "double", queues=("default",), busy=1)
    why = await jobs.control.awhy(job)
    assert kinds(why) == ["workers_busy"]
    assert [holder.name for holder in why.obstacles[0].holders] == ["w1"]
    await report_in(jobs, "w1", "double", queues=("default",))
    assert (await jobs.control.awhy(job)).obstacles == ()
    await jobs.control.astop_worker("w1")
    assert kinds(await jobs.control.awhy(job)) == ["workers_stopping"]


async def test_a_resize_and_the_pause_of_a_pool_are_two_obstacles(jobs: App[Any]) -> None:
    pool = jobs.pool("ledger", int, lanes=1)
    await pool.aenqueue(1, key="alice", id="old")
    await pool.aresize(2)
    await pool.aenqueue(2, key="alice", id="new")
    await pool.apause()
    why = await jobs.control.awhy("new")
    assert {"resize", "queue_paused", "no_worker"} <= set(kinds(why))
    assert obstacle_of(why, ObstacleKind.RESIZE).ends.endswith("placed before epoch 2")
    assert "(1 left)" in obstacle_of(why, ObstacleKind.RESIZE).text


async def test_a_job_that_has_expired_never_opens(jobs: App[Any], double: Task[[int], int]) -> None:
    await double.using(id="late", expires=0.001).aenqueue(1)
    await report_in(jobs, "w1", "double", queues=("default",))
    await jobs.runtime.sleep(0.01)
    why = await jobs.control.awhy("late")
    assert kinds(why) == ["expired"]
    assert why.obstacles[0].ends.startswith("never")
