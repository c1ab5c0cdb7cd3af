"""A task with aliases runs jobs that were stored under its earlier names, as if they were stored under its own."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manual_worker import take
from minimal_app import MinimalTask

from holdfast import App, Context, DuplicateTask, GiveUp, InvalidOption, JobFailed, events, fixed
from holdfast.testing import FrozenRuntime
from holdfast.views import Job
from holdfast.worker.claims import Claims
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.slots import Slots

PATIENCE_S = 60


@pytest.fixture(params=["memory", "sqlite", "file", "postgres", "redis"])
def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App[Any]]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db", "file": f"file://{tmp_path}/jobs"}
    if request.param in urls:
        app: App[Any] = App(urls[request.param])
    else:
        url, namespace = request.getfixturevalue(f"{request.param}_store")()
        app = App(url, namespace=namespace)
    with app:
        yield app


async def test_jobs_of_an_earlier_name_are_run_retried_reaped_and_fail_like_others(jobs: App[Any]) -> None:
    old = jobs.client.task("send_mail")  # as a producer of the last release has it
    for id in ("plain", "flaky", "hopeless"):
        await old.using(id=id, unique_key=f"key-{id}", priority=-ord(id[0])).aenqueue(id)
    await jobs.client.task("nobody").aenqueue()

    dead: list[tuple[str, str]] = []
    runs: Counter[str] = Counter()
    seen: list[events.JobEvent] = []
    jobs.on(events.JobEvent)(seen.append)

    @jobs.task(aliases=["mail", "send_mail"], max_attempts=2, backoff=fixed(0), max_losses=2)
    async def deliver(ctx: Context, kind: str) -> tuple[str, str]:
        runs[kind] += 1
        if kind == "hopeless":
            raise GiveUp("never")
        if kind == "flaky" and runs[kind] < 3:
            raise ConnectionError("not yet")
        return kind, ctx.job.task

    @deliver.on_dead_letter
    def note(job: Job, error: object) -> None:
        dead.append((job.id, job.task))

    await deliver.using(id="new", priority=-200).aenqueue("new")
    await old.using(id="lost", priority=1).aenqueue("lost")
    lease = await take(jobs, old)
    assert (lease.id, lease.task) == ("lost", "send_mail")
    await jobs.engine.disown("test")

    worker = jobs.worker(until_empty=True, name="w")
    async with asyncio.timeout(PATIENCE_S):
        await worker.arun()

    assert worker.left.total == worker.left.unknown == 1, "the job of a task that this worker does not know"
    by_old_name, by_new_name = jobs.client.task("send_mail"), jobs.client.task("deliver")
    assert by_old_name is by_new_name is deliver
    assert await by_old_name.handle("plain").aresult(timeout=0) == ("plain", "send_mail")
    assert await deliver.handle("new").aresult(timeout=0) == ("new", "deliver")
    reaped = await jobs.control.aget("lost")
    assert (reaped.task, reaped.state, reaped.attempt) == ("send_mail", "succeeded", 2)
    for id, reason in (("flaky", "exhausted"), ("hopeless", "gave_up")):
        with pytest.raises(JobFailed) as failed:
            await deliver.handle(id).aresult(timeout=0)
        assert (failed.value.task, failed.value.reason) == ("send_mail", reason), "with the policy of the task"
    assert runs["flaky"] == 2
    assert sorted(dead) == [("flaky", "send_mail"), ("hopeless", "send_mail")]
    assert {(one.job_id, one.task) for one in seen} == {
        ("new", "deliver"),
        *((id, "send_mail") for id in ("plain", "flaky", "hopeless", "lost")),
    }


async def test_the_worker_is_known_to_have_all_names(jobs: App[Any]) -> None:
    started: list[events.WorkerStarted] = []
    jobs.on(events.WorkerStarted)(started.append)

    @jobs.task(aliases=("former",), remote=False)
    async def present() -> None: ...

    @jobs.task(aliases=["elsewhere_before"], remote=True)
    async def elsewhere() -> None: ...

    async with asyncio.timeout(PATIENCE_S), jobs.worker(name="w"):
        (record,) = await jobs.control.aworkers()
        assert record.tasks == ("former", "present")
    assert started[0].tasks == ("former", "present")
    assert jobs.registry.aliases == {"former", "elsewhere_before"}


async def test_a_new_job_is_stored_under_the_new_name_and_keys_stay_with_the_old_one(jobs: App[Any]) -> None:
    first = await jobs.client.task("before").using(unique_key="k").aenqueue()

    @jobs.task(aliases=["before"])
    async def after() -> None: ...

    second = await jobs.client.task("before").using(unique_key="k").aenqueue()
    third = await after.using(unique_key="k").aenqueue()
    assert (first.created, second.created, third.created) == (True, True, False)
    assert {(await handle.arefresh()).task for handle in (second, third)} == {"after"}
    assert (await first.arefresh()).task == "before"


# Declaring


def test_a_name_belongs_to_one_task() -> None:
    jobs: App[Any] = App("memory://")

    @jobs.task(aliases=["old", "older"])
    def new() -> None: ...

    with pytest.raises(DuplicateTask, match="'old' is a name of task 'old' and of task 'new'") as error:
        jobs.task(name="old")(lambda: None)
    assert error.value.task == "old"
    with pytest.raises(DuplicateTask, match="'older' is a name of task 'third' and of task 'new'"):
        jobs.task(name="third", aliases=["older"])(lambda: None)
    with pytest.raises(DuplicateTask, match="'new' is a name of task 'third' and of task 'new'"):
        jobs.task(name="third", aliases=["new"])(lambda: None)
    with pytest.raises(DuplicateTask, match="'old'"):
        jobs.pool("old", int, lanes=2).handler(lambda payload: None)
    assert list(jobs.registry) == ["new"]
    assert jobs.registry.find("old") is jobs.registry.find("older") is jobs.registry["new"]
    assert jobs.registry.find("third") is None


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ("old", "must list names"),
        ([7], "aliases"),
        (["a\0b"], "aliases"),
        ([""], "aliases"),
        (["old", "old"], "names a task twice"),
        (["work"], "its own name"),
    ],
)
def test_wrong_aliases_are_refused_at_the_decorator(aliases: Any, message: str) -> None:
    jobs: App[Any] = App("memory://")
    with pytest.raises(InvalidOption, match=message) as error:
        jobs.task(name="work", aliases=aliases)(lambda: None)
    assert error.value.option == "aliases"
    assert not jobs.registry


def test_a_task_that_is_loaded_again_has_the_aliases_of_the_last_time() -> None:
    jobs: App[Any] = App("memory://")
    earlier = jobs.task(name="work", aliases=["a", "b"])(lambda: None)
    again = App[Any]("memory://").task(name="work", aliases=["b", "c"])(lambda: None)
    jobs.registry.replace(again)
    assert earlier is not again
    assert [jobs.registry.find(name) for name in ("a", "b", "c", "work")] == [None, again, again, again]


# Claiming


def claimed(*, concurrency: int | None, held: int = 0) -> list[tuple[str, int | None]]:
    runtime = FrozenRuntime()

    async def work() -> None: ...

    task = MinimalTask(work, aliases=("old", "older"), concurrency=concurrency)
    plan = ExecutionPlan(task, worker="w", state=None, middleware=(), handler_threads=HandlerThreads(runtime))
    plan.held_count = held
    slots = Slots(10)
    slots.busy = held
    claim = Claims(runtime, worker="w", queues=("default",), plans=[plan], slots=slots).make()
    return [] if claim is None else [(one.task, one.limit) for queue in claim.queues for one in queue.tasks]


def test_a_claim_names_each_alias_and_shares_the_limit_of_the_task() -> None:
    assert claimed(concurrency=None) == [("work", None), ("old", None), ("older", None)]
    assert claimed(concurrency=7) == [("work", 3), ("old", 3), ("older", 3)]
    assert claimed(concurrency=7, held=6) == [("work", 1), ("old", 1), ("older", 1)]
    assert claimed(concurrency=7, held=7) == []


async def test_no_more_attempts_than_its_limit_run_under_all_names() -> None:
    jobs: App[Any] = App("memory://")
    async with jobs:
        for _ in range(10):
            await jobs.client.task("before").aenqueue()
        running, most = 0, 0

        @jobs.task(aliases=["before"], concurrency=2)
        async def after() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

        for _ in range(10):
            await after.aenqueue()
        async with asyncio.timeout(PATIENCE_S):
            await jobs.worker(until_empty=True).arun()
        assert (await jobs.control.astats()).counts == {"succeeded": 20}
        assert most == 2
