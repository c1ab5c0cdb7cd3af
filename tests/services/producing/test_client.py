"""Producing: one or many, all or nothing; duplicates, limits, room."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from failing_engine import FailingEngine
from manual_worker import fail_now, succeed, succeed_now

from holdfast import (
    AmbiguousId,
    App,
    IdConflict,
    InvalidArguments,
    InvalidOption,
    JobNotFound,
    JobState,
    QueueFull,
    Task,
    UsageError,
    content_id,
    events,
)
from holdfast.core.enqueue import enqueue
from holdfast.model.job import JobKey
from holdfast.model.produce import Enqueue, NewJob, Parent
from holdfast.runtime import SystemRuntime


def limited(monkeypatch: pytest.MonkeyPatch, depth: int) -> App[object]:
    monkeypatch.setenv("HOLDFAST_QUEUES_DEFAULT_MAX_DEPTH", str(depth))
    return App("memory://")


# One


def test_an_enqueued_job_has_a_handle_and_a_receipt(resize: Task[[str], str]) -> None:
    handle = resize.enqueue("cat.png")
    assert handle.created
    assert handle.receipt is not None
    assert repr(handle.receipt) == (
        "Receipt(answer='created', state='queued', arrival=1, position=None, depth=None, lane=None)"
    )
    assert handle.refresh().arguments == (["cat.png"], {})
    assert "cat.png" not in repr(handle)


def test_the_receipt_has_position_and_depth_of_a_lane(resize: Task[[str], str]) -> None:
    lane = resize.using(lane="alice")
    receipts = [lane.enqueue("a").receipt, lane.enqueue("b").receipt]
    assert [(r.position, r.depth, r.state) for r in receipts if r] == [
        (0, 1, JobState.QUEUED),
        (1, 2, JobState.BLOCKED),
    ]


def test_a_delayed_job_is_scheduled_and_a_past_time_is_now(jobs: App[object], resize: Task[[str], str]) -> None:
    later = resize.using(delay=60).enqueue("a").refresh()
    assert later.state is JobState.SCHEDULED
    assert (later.due_at - later.enqueued_at).total_seconds() == 60
    past = resize.using(at=datetime(1970, 1, 2, tzinfo=UTC)).enqueue("b").refresh()
    assert (past.state, past.due_at) == (JobState.QUEUED, past.enqueued_at)


# Duplicates


def test_one_id_is_one_job(resize: Task[[str], str]) -> None:
    first = resize.using(id="cat").enqueue("cat.png")
    again = resize.using(id="cat").enqueue(image="cat.png")  # type: ignore[call-arg]
    assert (first.created, again.created, again.id) == (True, False, "cat")
    assert again.receipt is not None
    assert (again.receipt.answer, again.receipt.state) == ("duplicate", JobState.QUEUED)


def test_the_same_id_for_another_call_is_a_conflict(jobs: App[object], resize: Task[[str], str]) -> None:
    @jobs.task
    def other(image: str) -> None: ...

    resize.using(id="cat").enqueue("cat.png")
    with pytest.raises(IdConflict) as refused:
        resize.using(id="cat").enqueue("dog.png")
    assert (refused.value.job_id, refused.value.queue) == ("cat", "default")
    with pytest.raises(IdConflict):
        other.using(id="cat").enqueue("cat.png")
    jobs.client.task("resize").using(id="cat").enqueue("cat.png")
    assert resize.using(id="cat", queue="second").enqueue("dog.png").created


def test_a_unique_key_dedupes_whatever_the_arguments(jobs: App[object], resize: Task[[str], str]) -> None:
    first = resize.using(unique_key="k").enqueue("a")
    second = resize.using(unique_key="k").enqueue("b")
    assert (second.id, second.created) == (first.id, False)
    succeed_now(jobs, resize, "done")
    assert resize.using(unique_key="k").enqueue("c").created


def test_the_id_of_a_failed_job_may_be_used_again(jobs: App[object], resize: Task[[str], str]) -> None:
    resize.using(id="cat").enqueue("cat.png")
    fail_now(jobs, resize)
    assert resize.using(id="cat").enqueue("dog.png").created


def test_a_finished_duplicate_answers_with_its_result(jobs: App[object], resize: Task[[str], str]) -> None:
    resize.using(id="cat").enqueue("cat.png")
    succeed_now(jobs, resize, "small")
    again = resize.using(id="cat").enqueue("cat.png")
    assert again.receipt is not None
    assert again.receipt.answer == "completed"
    assert again.result() == "small"


def test_equal_content_makes_one_job(resize: Task[[str], str]) -> None:
    ids = [resize.using(id=content_id(["cat.png"])).enqueue("cat.png").id for _ in range(2)]
    assert ids[0] == ids[1]


# Many


def test_many_are_one_round_trip_and_answered_in_order(jobs: App[object], resize: Task[[str], str]) -> None:
    engine = FailingEngine(SystemRuntime())
    with jobs.swapped(engine, jobs.runtime):
        drafts = [resize.draft(f"{n}.png") for n in range(100)]
        handles = jobs.client.enqueue_many([*drafts, drafts[0]])
    assert [handle.id for handle in handles[:100]] == [draft.id for draft in drafts]
    assert [handle.created for handle in handles] == [True] * 100 + [False]
    assert [type(command) for command in engine.commands] == [Enqueue]


def test_many_are_all_or_nothing(jobs: App[object], resize: Task[[str], str]) -> None:
    resize.using(id="taken").enqueue("a")
    with pytest.raises(IdConflict):
        jobs.client.enqueue_many([resize.draft("b"), resize.using(id="taken").draft("c")])
    assert [queue.depth for queue in jobs.control.queues()] == [1]


def test_none_at_all_is_fine_and_needs_no_store() -> None:
    assert App("sqlite:///nowhere/at/all.db").client.enqueue_many([]) == []


def test_only_drafts_of_this_app_are_taken(jobs: App[object], resize: Task[[str], str]) -> None:
    with pytest.raises(InvalidOption, match="draft"):
        jobs.client.enqueue_many([resize])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="another App"):
        App("memory://").client.enqueue_many([resize.draft("a")])


async def test_a_parent_that_does_not_exist_is_not_found(jobs: App[object]) -> None:
    orphan = NewJob(queue="default", id="child", parents=(Parent(JobKey("default", "nobody")),))
    with pytest.raises(JobNotFound) as refused:
        await enqueue(jobs._store, (orphan,))
    assert refused.value.job_id == "nobody"


# By name


def test_a_task_by_name_is_the_declared_one_or_one_from_elsewhere(jobs: App[object], resize: Task[[str], str]) -> None:
    assert jobs.client.task("resize") is resize
    elsewhere = jobs.client.task("billing.send_invoice")
    job = elsewhere.using(queue="billing").enqueue(42, kind="final").refresh()
    assert (job.task, job.queue, job.arguments) == ("billing.send_invoice", "billing", ([42], {"kind": "final"}))
    with pytest.raises(InvalidArguments):
        elsewhere.enqueue(object())
    with pytest.raises(InvalidOption):
        jobs.client.task("")
    assert "billing.send_invoice" not in jobs.registry


def test_a_remote_task_is_checked_though_its_code_is_elsewhere(jobs: App[object]) -> None:
    @jobs.task(remote=True)
    def invoice(number: int) -> str: ...  # type: ignore[empty-body]

    assert invoice.policy.remote
    with pytest.raises(InvalidArguments):
        invoice.enqueue("seven")  # type: ignore[arg-type]


# Limits


def test_a_full_queue_refuses_and_says_how_full_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = limited(monkeypatch, 2)

    @jobs.task
    def resize(image: str) -> None: ...

    receipts = [resize.enqueue(name).receipt for name in "ab"]
    assert [receipt.depth for receipt in receipts if receipt] == [1, 2]
    with pytest.raises(QueueFull) as refused:
        resize.enqueue("c")
    assert (refused.value.queue, refused.value.depth, refused.value.limit) == ("default", 2, 2)
    with pytest.raises(QueueFull):
        jobs.client.enqueue_many([resize.using(queue="free").draft("d"), resize.draft("e")])
    assert resize.using(queue="free").enqueue("f").created
    assert [queue.depth for queue in jobs.control.queues()] == [2, 1]


def test_limits_come_from_the_file_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "holdfast.toml").write_text("[queues.'e mails']\nmax_depth = 1", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    jobs = App("memory://")

    @jobs.task(queue="e mails")
    def send() -> None: ...

    send.enqueue()
    with pytest.raises(QueueFull):
        send.enqueue()


async def test_waiting_for_room_ends_when_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = limited(monkeypatch, 1)
    monkeypatch.setattr("holdfast.core.enqueue.RETRY_FULL_QUEUE_AFTER_S", 60.0)  # only the bell can tell in time

    @jobs.task
    def resize(image: str) -> str:
        return image

    await resize.aenqueue("a")
    second = asyncio.ensure_future(resize.using(wait_for_room=60).aenqueue("b"))
    await eventually(lambda: _listens(jobs, "room:default"))
    await succeed(jobs, resize, "done")
    assert (await second).created


def _listens(jobs: App[Any], bell: str) -> bool:
    """Whether somebody waits for this bell."""
    subscription = jobs.engine._topics._subscriptions  # type: ignore[attr-defined]
    return any(bell in each.topics and each._waiter is not None for each in subscription)


def test_waiting_for_room_ends_in_time_if_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = limited(monkeypatch, 1)

    @jobs.task
    def resize(image: str) -> str:
        return image

    resize.enqueue("a")
    with pytest.raises(QueueFull):
        resize.using(wait_for_room=0.01).enqueue("b")
    with pytest.raises(QueueFull):
        resize.using(wait_for_room=0).enqueue("c")


def test_a_queue_that_fills_up_is_published_once_on_the_way_up(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = limited(monkeypatch, 10)

    @jobs.task
    def resize(image: str) -> str:
        return image

    heard: list[events.SoftLimit] = []
    jobs.on(events.SoftLimit)(heard.append)
    for n in range(10):
        resize.enqueue(str(n))
    assert [(event.queue, event.depth, event.limit) for event in heard] == [("default", 8, 10)]
    for _ in range(4):
        succeed_now(jobs, resize, "done")
    jobs.client.enqueue_many([resize.draft(str(n)) for n in range(3)])
    assert [event.depth for event in heard] == [8, 9]


# States of many


def test_the_states_of_many_jobs_are_read_in_one_call(jobs: App[object], resize: Task[[str], str]) -> None:
    for number in range(300):
        resize.using(id=f"job-{number}", delay=number % 2).enqueue("cat.png")
    resize.using(id="elsewhere", queue="other").enqueue("cat.png")
    ids = [f"job-{number}" for number in range(300)]

    states = jobs.client.states([*ids, "elsewhere", "absent"])

    assert [states[one] for one in ids] == [JobState.QUEUED, JobState.SCHEDULED] * 150
    assert (states["elsewhere"], states["absent"]) == (JobState.QUEUED, None)
    assert jobs.client.states(["elsewhere"], queue="default") == {"elsewhere": None}
    assert jobs.client.states([]) == {}


def test_an_id_in_two_queues_has_no_state_without_the_queue(jobs: App[object], resize: Task[[str], str]) -> None:
    for queue in ("one", "two"):
        resize.using(id="twin", queue=queue).enqueue("cat.png")

    with pytest.raises(AmbiguousId, match="'one', 'two'"):
        jobs.client.states(["twin"])
    assert jobs.client.states(["twin"], queue="two") == {"twin": JobState.QUEUED}


def test_states_of_a_text_are_refused(jobs: App[object]) -> None:
    with pytest.raises(InvalidOption, match="list of ids"):
        jobs.client.states("job-1")
