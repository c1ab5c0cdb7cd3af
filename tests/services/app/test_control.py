"""Operating: find, cancel, requeue, trigger, delete, pause, clear, and what is told of queues, lanes and workers."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from manual_worker import fail_now, report_in_now, succeed_now, take_now

from holdfast import (
    AmbiguousId,
    App,
    InvalidOption,
    JobNotFound,
    JobState,
    KeyTaken,
    QueueFull,
    Report,
    ResultExpired,
    Task,
    WrongState,
)
from holdfast.testing.clock import FakeClock
from holdfast.views import LaneStatus, QueueStatus

# One job by its id


def test_a_bare_id_is_looked_for_in_every_queue(jobs: App[object], resize: Task[[str], str]) -> None:
    resize.using(queue="first", id="a").enqueue("1")
    resize.using(queue="second", id="b").enqueue("2")
    resize.using(queue="first", id="both").enqueue("3")
    resize.using(queue="second", id="both").enqueue("4")
    control = jobs.control
    assert (control.get("a").queue, control.get("b").queue) == ("first", "second")
    with pytest.raises(AmbiguousId) as refused:
        control.get("both")
    assert refused.value.queues == ("first", "second")
    assert control.get("both", queue="second").arguments == (["4"], {})


def test_an_unknown_id_is_not_found(jobs: App[object], resize: Task[[str], str]) -> None:
    control = jobs.control
    asks: list[Callable[[], object]] = [
        lambda: control.get("x"),
        lambda: control.report("x"),
        lambda: control.requeue("x"),
        lambda: control.trigger("x", queue="default"),
        lambda: control.delete("x"),
        lambda: control.set_result_ttl("x", 3),
    ]
    for _ in range(2):
        for ask in asks:
            with pytest.raises(JobNotFound):
                ask()
        assert control.cancel("x").answer == "not_found"
        assert control.cancel("x", queue="default").answer == "not_found"
        resize.enqueue("now there is a queue")


@pytest.mark.parametrize("job_id", ["", "a" * 201, 7])
def test_an_id_that_no_job_can_have_is_refused(jobs: App[object], job_id: Any) -> None:
    with pytest.raises(InvalidOption):
        jobs.control.get(job_id)
    with pytest.raises(InvalidOption):
        jobs.control.cancel(job_id, queue="default")


# Requeue, trigger, delete


def test_requeue_brings_a_dead_job_back_with_its_history(jobs: App[object], resize: Task[[str], str]) -> None:
    handle = resize.enqueue("a")
    fail_now(jobs, resize)
    assert jobs.control.requeue(handle.id) == 1
    job = handle.refresh()
    assert (job.state, job.attempt, job.finished_at) == (JobState.QUEUED, 0, None)
    assert [attempt.outcome for attempt in job.attempts] == ["failed"]
    succeed_now(jobs, resize, "b")
    assert handle.result() == "b"


def test_a_report_shows_the_end_before_a_requeue_as_an_end(jobs: App[object], resize: Task[[str], str]) -> None:
    handle = resize.enqueue("a")
    fail_now(jobs, resize)
    jobs.control.requeue(handle.id)
    assert kinds_of(jobs.control.report(handle.id)) == ["Queued", "Started", "Failed"]
    fail_now(jobs, resize)
    kinds = kinds_of(jobs.control.report(handle.id))
    assert kinds == ["Queued", "Started", "Failed", "Started", "Failed"]


def kinds_of(report: Report) -> list[str]:
    return [type(event).__name__ for event in report.events]


def test_requeue_of_all_failed_jobs_takes_the_oldest_first(jobs: App[object], resize: Task[[str], str]) -> None:
    @jobs.task
    def other() -> None: ...

    ids = [resize.using(id=f"job {n}").enqueue("a").id for n in range(5)]
    other.using(queue="second").enqueue()
    for _ in ids:
        fail_now(jobs, resize)
    fail_now(jobs, other.using(queue="second"))
    assert jobs.control.requeue(all_failed=True, task="resize") == 5
    assert [take_now(jobs, resize).id for _ in ids] == ids
    assert jobs.control.requeue(all_failed=True, queue="default") == 0
    assert jobs.control.requeue(all_failed=True) == 1
    assert jobs.control.requeue(all_failed=True) == 0


def test_requeue_goes_through_more_jobs_than_a_page_holds(
    jobs: App[object], resize: Task[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.control.CHUNK", 2)
    ids = [resize.enqueue("a").id for _ in range(5)]
    for _ in ids:
        fail_now(jobs, resize)
    assert jobs.control.requeue(all_failed=True) == 5
    assert [take_now(jobs, resize).id for _ in ids] == ids


def test_requeue_says_which_job_it_could_not_bring_back(jobs: App[object], resize: Task[[str], str]) -> None:
    dead = resize.enqueue("a")
    fail_now(jobs, resize)
    live = resize.enqueue("b")
    with pytest.raises(WrongState) as refused:
        jobs.control.requeue(live.id, dead.id)
    assert (refused.value.job_id, refused.value.state, refused.value.verb) == (live.id, "queued", "requeue")
    assert dead.refresh().state is JobState.QUEUED


def test_requeue_respects_keys_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_QUEUES_DEFAULT_MAX_DEPTH", "1")
    jobs = App("memory://")

    @jobs.task
    def resize(image: str) -> None: ...

    dead = resize.using(unique_key="k").enqueue("a")
    fail_now(jobs, resize)
    holder = resize.using(unique_key="k").enqueue("b")
    with pytest.raises(KeyTaken) as taken:
        jobs.control.requeue(dead.id)
    assert (taken.value.job_id, taken.value.key) == (dead.id, "k")
    fail_now(jobs, resize)
    resize.enqueue("c")
    with pytest.raises(QueueFull) as full:
        jobs.control.requeue(holder.id)
    assert full.value.limit == 1


def test_requeue_needs_to_know_what(jobs: App[object]) -> None:
    wrong: list[dict[str, Any]] = [{}, {"task": "resize"}]
    for options in wrong:
        with pytest.raises(InvalidOption):
            jobs.control.requeue(**options)
    with pytest.raises(InvalidOption):
        jobs.control.requeue("a", all_failed=True)
    with pytest.raises(InvalidOption):
        jobs.control.requeue("a", task="resize")


def test_trigger_makes_a_waiting_job_due(jobs: App[object], resize: Task[[str], str]) -> None:
    handle = resize.using(delay=3600).enqueue("a")
    jobs.control.trigger(handle.id)
    assert handle.refresh().state is JobState.QUEUED
    take_now(jobs, resize)
    with pytest.raises(WrongState) as refused:
        jobs.control.trigger(handle.id)
    assert (refused.value.state, refused.value.verb) == ("running", "trigger")


def test_delete_removes_a_finished_job_and_no_other(jobs: App[object], resize: Task[[str], str]) -> None:
    handle = resize.enqueue("a")
    with pytest.raises(WrongState):
        jobs.control.delete(handle.id)
    succeed_now(jobs, resize, "b")
    jobs.control.delete(handle.id)
    with pytest.raises(JobNotFound):
        handle.refresh()


def test_the_life_of_a_result_can_be_changed_afterwards(jobs: App[object], resize: Task[[str], str]) -> None:
    handle = resize.enqueue("a")
    jobs.control.set_result_ttl(handle.id, timedelta(days=1))
    succeed_now(jobs, resize, "b")
    clock = FakeClock(jobs.engine)
    clock.advance(hours=2)
    assert handle.result() == "b"
    jobs.control.set_result_ttl(handle.id, 60)
    with pytest.raises(ResultExpired):
        handle.result()
    with pytest.raises(InvalidOption):
        jobs.control.set_result_ttl(handle.id, math.nan)


def test_cancel_through_the_control_gives_its_reason(jobs: App[object], resize: Task[[str], str]) -> None:
    handle = resize.enqueue("a")
    assert jobs.control.cancel(handle.id, reason="withdrawn").answer == "cancelled"
    assert handle.refresh().note == "withdrawn"


# Finding


def test_find_goes_through_queues_and_states(jobs: App[object], resize: Task[[str], str]) -> None:
    @jobs.task
    def other() -> None: ...

    resize.using(id="a", metadata={"by": "me"}).enqueue("1")
    resize.using(id="b", lane="l").enqueue("2")
    other.using(id="c", queue="second", delay=60).enqueue()
    find = jobs.control.find

    def ids(**wanted: Any) -> list[str]:
        return sorted(job.id for job in find(**wanted))

    assert ids() == ["a", "b", "c"]
    assert ids(state="queued") == ids(task="resize") == ids(queue="default") == ["a", "b"]
    assert ids(state=JobState.SCHEDULED) == ids(task="other", queue="second") == ["c"]
    assert ids(lane="l") == ["b"]
    assert ids(metadata={"by": "me"}) == ["a"]
    assert ids(since=datetime(2020, 1, 1, tzinfo=UTC)) == ["a", "b", "c"]
    assert ids(since=datetime(2120, 1, 1, tzinfo=UTC)) == ids(queue="nobody's") == []
    assert find(state="queued")[0].id == "b"
    assert len(find(limit=2)) == 2


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_follow_each_other_without_gap_or_repetition(
    jobs: App[object], resize: Task[[str], str], limit: int
) -> None:
    for n in range(5):
        resize.using(queue=f"queue {n % 2}").enqueue("a")
        resize.using(queue=f"queue {n % 2}", delay=60).enqueue("b")
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = jobs.control.find(limit=limit, cursor=cursor)
        assert len(page) <= limit
        seen += [job.id for job in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 10


@pytest.mark.parametrize(
    "wanted",
    [
        {"state": "pending"},
        {"limit": 0},
        {"limit": 10**18},
        {"limit": 1.5},
        {"cursor": "nonsense"},
        {"cursor": '["a","queued","x"]'},
        {"since": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is the mistake
        {"queue": ""},
        {"metadata": {"a": 1}},
    ],
)
def test_what_cannot_be_looked_for_is_refused(jobs: App[object], wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        jobs.control.find(**wanted)


def test_a_cursor_survives_the_end_of_its_queue(jobs: App[object], resize: Task[[str], str]) -> None:
    resize.using(queue="b", id="x").enqueue("a")
    page = jobs.control.find(cursor='["a","queued",7]')
    assert [job.id for job in page] == ["x"]


# Queues and lanes


def test_a_paused_queue_takes_jobs_and_gives_none(jobs: App[object], resize: Task[[str], str]) -> None:
    control = jobs.control
    assert control.pause("default") is True
    assert control.pause("default") is False
    resize.enqueue("a")
    status = control.status("default")
    assert isinstance(status, QueueStatus)
    assert (status.paused, status.depth, status.due) == (True, 1, 1)
    with pytest.raises(ValueError, match="not enough"):
        take_now(jobs, resize)
    assert control.resume("default") is True
    assert control.resume("default") is False
    take_now(jobs, resize)


def test_clear_cancels_what_is_pending_and_keeps_the_counters(jobs: App[object], resize: Task[[str], str]) -> None:
    resize.enqueue("done")
    succeed_now(jobs, resize, "done")
    handles = [resize.enqueue(name) for name in "abc"]
    assert jobs.control.clear("default") == 3
    assert jobs.control.clear("default") == 0
    assert {handle.refresh().reason for handle in handles} == {"cleared"}
    status = jobs.control.status("default")
    assert (status.succeeded, status.cancelled, status.depth) == (1, 3, 0)


def test_a_lane_can_be_paused_looked_at_and_cleared(jobs: App[object], resize: Task[[str], str]) -> None:
    control = jobs.control
    first = resize.using(lane="alice", id="first").enqueue("a")
    resize.using(lane="alice").enqueue("b")
    resize.using(lane="bob").enqueue("c")
    assert [lane.lane for lane in control.lanes("default")] == ["alice", "bob"]
    control.pause("default", lane="alice")
    status = control.status("default", lane="alice")
    assert isinstance(status, LaneStatus)
    assert (status.paused, status.depth, status.head, status.failed) == (True, 2, "first", 0)
    assert first.receipt is not None
    assert status.arrival == first.receipt.arrival
    assert control.clear("default", lane="alice") == 2
    status = control.status("default", lane="alice")
    assert (status.depth, status.paused, status.cancelled) == (0, True, 2)
    assert control.status("default", lane="nobody").depth == 0


@pytest.mark.parametrize("name", ["", "nul\0", 3])
def test_a_name_that_no_queue_can_have_is_refused(jobs: App[object], name: Any) -> None:
    control = jobs.control
    for verb in (control.pause, control.resume, control.clear, control.status, control.lanes):
        with pytest.raises(InvalidOption):
            verb(name)


def test_queues_and_stats_show_what_is_stored(jobs: App[object], resize: Task[[str], str]) -> None:
    assert jobs.control.queues() == []
    assert (jobs.control.stats().depth, jobs.control.stats().paused) == (0, False)
    assert jobs.control.status("nobody's").depth == 0
    resize.enqueue("a")
    resize.using(queue="second", delay=60).enqueue("b")
    succeed_now(jobs, resize, "done")
    queues = {queue.queue: queue for queue in jobs.control.queues()}
    assert (queues["default"].succeeded, queues["default"].depth) == (1, 0)
    assert (queues["second"].depth, queues["second"].due) == (1, 0)
    assert queues["second"].next_due_at is not None
    total = jobs.control.stats()
    assert (total.queue, total.depth, total.succeeded) == ("", 1, 1)
    assert total.counts == {JobState.SUCCEEDED: 1, JobState.SCHEDULED: 1}
    assert total.next_due_at == queues["second"].next_due_at


def test_workers_are_alive_while_they_send_heartbeats(jobs: App[object]) -> None:
    report_in_now(jobs, "w1", "resize", queues=("default",))
    (worker,) = jobs.control.workers()
    assert (worker.name, worker.tasks, worker.queues, worker.alive) == ("w1", ("resize",), ("default",), True)
    FakeClock(jobs.engine).advance(31)
    assert [worker.alive for worker in jobs.control.workers()] == [False]
