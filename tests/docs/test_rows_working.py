"""The life of a job, row by row as in `docs/contributing/seeds.md`: through the public API, on every engine."""

import asyncio
import io
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import AbortReason, App, Cancel, Context, GiveUp, JobFailed, Next, Retry, Snooze, events, exponential
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Lease, QueueClaim, Settlement, SettleStatus, TaskClaim
from holdfast.task import Task
from holdfast.telemetry.logs import JobFilter
from holdfast.testing import FakeClock, Probe

SECONDS = 20.0


def names(found: list[events.JobEvent] | tuple[events.JobEvent, ...]) -> list[str]:
    return [type(event).__name__ for event in found]


async def vanish(jobs: App[Any], task: Task[..., Any]) -> Lease:
    """Take the next job of a task as a worker that then dies."""
    policy = task.policy
    terms = TaskClaim(task=task.name, lease_len=policy.lease, max_losses=policy.retry.max_losses)
    queues = (QueueClaim(task.queue, (terms,)),)
    claim = Claim(claim_id=jobs.runtime.new_claim_id(), worker="gone", queues=queues, limit=1)
    (lease,) = (await jobs.engine.claim(claim)).leases
    return lease


# --- The life of a job ---


async def test_a_late_answer_of_a_lost_worker_is_refused(jobs: App[Any]) -> None:
    @jobs.task
    def work() -> str:
        return "in time"

    async with jobs:
        handle = await work.aenqueue()
        lease = await vanish(jobs, work)
        FakeClock(jobs.engine).advance(seconds=31)
        async with jobs.worker():
            assert await handle.aresult(timeout=SECONDS) == "in time"
        late = Settlement(queue=lease.queue, id=lease.id, token=lease.token, target=JobState.SUCCEEDED)
        assert (await jobs.engine.settle(late)).settled == (SettleStatus.LOST,)
        job = await handle.arefresh()
        assert [attempt.outcome for attempt in job.attempts] == ["worker_lost", "succeeded"]
        assert job.fence > lease.fence


async def test_a_job_that_costs_too_many_workers_has_failed(jobs: App[Any]) -> None:
    @jobs.task(max_losses=2, backoff=0)
    def work() -> None: ...

    reaped = Probe[events.Reaped]("the listener")
    jobs.on(events.Reaped)(reaped)
    async with jobs:
        handle = await work.aenqueue()
        for lost in (1, 2):
            await vanish(jobs, work)
            FakeClock(jobs.engine).advance(minutes=1)
            async with jobs.worker(queues=["elsewhere"]):  # reaps, and takes nothing
                await reaped.calls(lost)
        with pytest.raises(JobFailed) as failed:
            await handle.aresult()
        assert (failed.value.reason, failed.value.attempts) == ("worker_lost", 2)


def test_a_report_contains_two_failures_and_a_success(jobs: App[Any]) -> None:
    @jobs.task(backoff=0)
    def work(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ValueError(f"attempt {ctx.attempt}")
        return ctx.attempt

    with jobs.worker():
        report = work.enqueue().report(timeout=SECONDS)
    assert (report.outcome, report.job.attempt, report.job.last_error) == ("succeeded", 3, None)
    assert [a.error.message for a in report.job.attempts if a.error] == ["attempt 1", "attempt 2"]
    assert names(report.events) == ["Queued", "Started", "Retrying", "Started", "Retrying", "Started", "Succeeded"]
    assert report.waited is not None
    assert report.ran >= 0
    assert report.job.started_at is not None
    assert report.job.finished_at is not None
    assert report.job.enqueued_at <= report.job.started_at <= report.job.finished_at


def test_attempts_end_and_an_operator_begins_them_anew(jobs: App[Any]) -> None:
    broken = [True]

    @jobs.task(max_attempts=2, backoff=0)
    def work() -> str:
        if broken:
            raise ValueError("broken")
        return "fixed"

    with jobs.worker():
        handle = work.using(id="one").enqueue()
        assert handle.report(timeout=SECONDS).reason == "exhausted"
        broken.clear()
        assert jobs.control.requeue("one") == 1
        assert handle.result(timeout=SECONDS) == "fixed"
    job = handle.refresh()
    assert job.attempt == 1
    assert [(a.generation, a.outcome) for a in job.attempts] == [(0, "failed"), (0, "failed"), (1, "succeeded")]


def test_one_slot_runs_jobs_in_the_order_they_came(jobs: App[Any]) -> None:
    ran: list[int] = []

    @jobs.task
    def work(number: int) -> None:
        ran.append(number)

    handles = jobs.client.enqueue_many([work.draft(number) for number in range(50)])
    with jobs.worker(concurrency=1):
        handles[-1].result(timeout=SECONDS)
    assert ran == list(range(50))


# --- The worker ---


async def test_a_saturated_worker_reaps_and_leaves_its_own_alone(
    jobs: App[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_WORKER_REAP_INTERVAL", "0.05")
    gate = asyncio.Event()
    runs = Probe[str]("the handler")

    @jobs.task
    async def hold(ctx: Context) -> None:
        runs(ctx.job.id)
        await gate.wait()

    @jobs.task
    def work() -> None: ...

    reaped = Probe[events.Reaped]("the listener")
    jobs.on(events.Reaped)(reaped)
    async with jobs:
        lost = await work.aenqueue()
        await vanish(jobs, work)
        held = await hold.aenqueue()
        async with jobs.worker(concurrency=1):
            await runs.calls(1)
            FakeClock(jobs.engine).advance(seconds=31)  # its own lease has run out too, by the clock
            (event,) = await reaped.calls(1)
            assert (event.job_id, event.owner) == (lost.id, "gone")
            gate.set()
            await held.aresult(timeout=SECONDS)
            await lost.aresult(timeout=SECONDS)
    assert runs.seen == [held.id]


def test_no_more_run_at_once_than_there_are_slots_and_only_known_tasks(jobs: App[Any]) -> None:
    running, most = [0], [0]

    @jobs.task
    async def work() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0)
        running[0] -= 1

    unknown = jobs.client.task("of another app").enqueue()
    handles = jobs.client.enqueue_many([work.draft() for _ in range(30)])
    with jobs.worker(concurrency=3):
        for handle in handles:
            handle.result(timeout=SECONDS)
    assert 1 <= most[0] <= 3
    assert unknown.refresh().state == "queued"


def test_two_workers_share_the_jobs_without_overlap(jobs: App[Any]) -> None:
    ran: list[tuple[int, str]] = []

    @jobs.task
    def work(ctx: Context, number: int) -> None:
        ran.append((number, ctx.worker))

    handles = jobs.client.enqueue_many([work.draft(number) for number in range(200)])
    with jobs.worker(concurrency=4, name="a"), jobs.worker(concurrency=4, name="b"):
        for handle in handles:
            handle.result(timeout=SECONDS)
    assert sorted(number for number, _ in ran) == list(range(200))


def test_async_handlers_share_the_loop_and_plain_ones_have_threads(jobs: App[Any]) -> None:
    @jobs.task
    async def on_loop() -> str:
        return threading.current_thread().name

    @jobs.task
    def in_thread() -> str:
        return threading.current_thread().name

    with jobs.worker():
        loop = {on_loop.request() for _ in range(3)}
        assert len(loop) == 1
        assert in_thread.request() not in loop


def test_a_lease_is_renewed_while_a_handler_blocks_the_loop(jobs: App[Any]) -> None:
    entered, leave = threading.Event(), threading.Event()

    @jobs.task(lease=2)
    async def work() -> int:
        entered.set()
        leave.wait(SECONDS)  # nothing else runs on this loop
        return 7

    async def expiry(job_id: str) -> int:
        (record,) = (await jobs.engine.get(JobKey("default", job_id))).jobs
        assert record is not None
        assert record.lease_expires is not None
        assert record.lease_len == 2 * SECOND
        return record.lease_expires

    with jobs:
        handle = work.enqueue()
        with jobs.worker():
            assert entered.wait(SECONDS)
            first = asyncio.run(expiry(handle.id))
            while asyncio.run(expiry(handle.id)) == first:
                threading.Event().wait(0.05)
            leave.set()
            assert handle.result(timeout=SECONDS) == 7
        assert handle.refresh().attempt == 1


async def test_each_reason_aborts_and_says_which_it_was(jobs: App[Any]) -> None:
    @jobs.task(max_attempts=1, timeout=0.05)
    async def slow(ctx: Context) -> None:
        await hold(ctx)

    @jobs.task(max_attempts=1, lease=2)  # the loss is noticed at the renewal, after a third of the lease
    async def endless(ctx: Context) -> None:
        await hold(ctx)

    async def hold(ctx: Context) -> None:
        began(ctx.job.id)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended(ctx.abort_reason)

    began, ended = Probe[str]("the handler"), Probe[AbortReason | None]("the end of the handler")

    async with jobs:
        async with jobs.worker(grace=0):
            timed_out = await slow.aenqueue()
            assert (await timed_out.areport(timeout=SECONDS)).reason == "timeout"
            asked = await endless.aenqueue()
            await began.calls(2)
            assert (await asked.acancel("enough")).answer == "requested"
            assert (await asked.areport(timeout=SECONDS)).outcome == "cancelled"
            cleared = await endless.aenqueue()
            await began.calls(3)
            assert await jobs.control.aclear("default") == 1
            assert (await cleared.areport(timeout=SECONDS)).reason == "cleared"
            await ended.calls(3)
            stopped = await endless.aenqueue()
            await began.calls(4)
        job = await stopped.arefresh()
        assert (job.state, job.attempt) == ("queued", 0)  # given back for nothing
    assert [str(reason) for reason in ended.seen] == ["timeout", "cancel", "ownership_lost", "shutdown"]


def test_a_thread_gets_a_cancel_request_when_it_checks(jobs: App[Any]) -> None:
    entered = threading.Event()

    @jobs.task
    def work(ctx: Context) -> None:
        entered.set()
        while True:
            ctx.check()
            threading.Event().wait(0.005)

    with jobs.worker():
        handle = work.enqueue()
        assert entered.wait(SECONDS)
        assert handle.cancel().answer == "requested"
        assert handle.report(timeout=SECONDS).outcome == "cancelled"


def test_a_cancel_is_answered_by_the_state_of_the_job(jobs: App[Any]) -> None:
    @jobs.task(backoff=3600)
    def work(fails: bool) -> None:
        if fails:
            raise ValueError("no")

    with jobs.worker():
        done, retrying = work.enqueue(False), work.enqueue(True)
        done.result(timeout=SECONDS)
        while retrying.refresh().state != "retrying":
            threading.Event().wait(0.01)
    waiting = [work.enqueue(False), work.using(delay=60).enqueue(False), retrying]
    work.using(lane="one").enqueue(False)
    waiting.append(work.using(lane="one").enqueue(False))
    assert [handle.refresh().state for handle in waiting] == ["queued", "scheduled", "retrying", "blocked"]
    assert [handle.cancel().answer for handle in waiting] == ["cancelled"] * 4
    assert (done.cancel().answer, done.cancel().state) == ("finished", "succeeded")
    assert jobs.control.cancel("no-such-job").answer == "not_found"


# --- Outcomes ---


def test_what_a_handler_raises_decides(jobs: App[Any]) -> None:
    @jobs.task(max_attempts=2, backoff=exponential(initial=0.01), give_up_on=(KeyError,))
    def work(ctx: Context, how: str) -> str:
        match how, ctx.attempt:
            case "error", 1:
                raise ValueError("again")
            case "retry", 1:
                raise Retry("later", delay=0.01)
            case "snooze", 1 if not jobs.control.get(ctx.job.id).note:
                raise Snooze(at=datetime.now(UTC) + timedelta(milliseconds=10), reason="not yet")
            case "key", _:
                raise KeyError("hopeless")
            case "give up", _:
                raise GiveUp("no use")
            case "cancel", _:
                raise Cancel("withdrawn")
        return f"attempt {ctx.attempt}"

    with jobs.worker():
        handles = {how: work.enqueue(how) for how in ("error", "retry", "snooze", "key", "give up", "cancel")}
        reports = {how: handle.report(timeout=SECONDS) for how, handle in handles.items()}
    found = {how: (str(report.outcome), report.job.attempt) for how, report in reports.items()}
    assert found == {
        "error": ("succeeded", 2),
        "retry": ("succeeded", 2),
        "snooze": ("succeeded", 1),
        "key": ("failed", 1),
        "give up": ("failed", 1),
        "cancel": ("cancelled", 1),
    }


def test_dead_letters_are_reported_listed_requeued_and_deleted(
    jobs: App[Any], caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[str] = []

    @jobs.task(max_attempts=1)
    def work(number: int) -> None:
        raise ValueError("no")

    @work.on_dead_letter
    def hook(job: Any, error: Any) -> None:
        reported.append(error.message)
        raise RuntimeError("the hook is broken too")

    @jobs.on(events.Failed)
    def hear(event: events.Failed) -> None:
        reported.append(str(event.reason))

    with jobs.worker():
        for number in range(3):
            work.using(id=f"job-{number}").enqueue(number).report(timeout=SECONDS)
    assert sorted(reported) == ["exhausted"] * 3 + ["no"] * 3
    assert "the hook is broken too" in caplog.text
    assert {job.id for job in jobs.control.find(state="failed")} == {"job-0", "job-1", "job-2"}
    jobs.control.delete("job-2")
    assert jobs.control.requeue("job-0") == 1
    assert jobs.control.requeue(all_failed=True, task="work") == 1
    assert jobs.control.find(state="failed").jobs == ()


def test_middleware_surrounds_each_attempt_and_log_lines_name_the_job(jobs: App[Any]) -> None:
    seen: list[str] = []

    @jobs.middleware
    async def outer(ctx: Context, proceed: Next) -> object:
        seen.append(f"before {ctx.attempt}")
        try:
            return await proceed()
        finally:
            seen.append("after")

    def inner(ctx: Context) -> Iterator[None]:
        seen.append(threading.current_thread().name)
        yield
        seen.append("done")

    shown = io.StringIO()
    handler = logging.StreamHandler(shown)
    handler.addFilter(JobFilter())
    handler.setFormatter(logging.Formatter("%(job_id)s %(task)s %(attempt)s %(worker)s"))
    logger = logging.getLogger("some_library")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    @jobs.task(middleware=[inner], backoff=0)
    def work(ctx: Context) -> None:
        seen.append(threading.current_thread().name)
        logger.info("deep inside")
        if ctx.attempt == 1:
            raise ValueError("again")

    with jobs.worker(name="ada") as worker:
        work.using(id="one").request()
    logger.removeHandler(handler)
    threads = {name for name in seen if name not in ("before 1", "before 2", "after", "done")}
    assert [word if word not in threads else "thread" for word in seen] == [
        *("before 1", "thread", "thread", "after"),  # an error is thrown in at the yield
        *("before 2", "thread", "thread", "done", "after"),
    ]
    assert shown.getvalue().splitlines() == [f"one work {attempt} {worker.name}" for attempt in (1, 2)]


async def test_a_stopping_worker_lets_handlers_finish_and_gives_the_rest_back(jobs: App[Any]) -> None:
    gate = asyncio.Event()
    listener = Probe[events.WorkerEvent]("the listener")

    @jobs.task
    async def work(name: str) -> str:
        await gate.wait()
        return name

    started = Probe[events.Started]("the listener")
    jobs.on(events.Started)(started)
    jobs.on(events.WorkerEvent)(listener)
    async with jobs:
        running = [await work.aenqueue("one"), await work.aenqueue("two")]
        waiting = await work.aenqueue("three")
        worker = jobs.worker(concurrency=2, grace=SECONDS)
        async with worker:
            await started.calls(2)
            worker.stop()
            await listener.calls(2)  # it is stopping
            gate.set()
        assert [await handle.aresult(timeout=SECONDS) for handle in running] == ["one", "two"]
        assert ((await waiting.arefresh()).state, (await waiting.arefresh()).attempt) == ("queued", 0)
    assert [type(event).__name__ for event in listener.seen] == ["WorkerStarted", "WorkerStopping", "WorkerStopped"]


def test_a_task_overrides_the_defaults(jobs: App[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TASK_MAX_ATTEMPTS", "9")
    monkeypatch.setenv("HOLDFAST_TASK_LEASE", "40")
    running, most = [0], [0]

    @jobs.task(max_attempts=3, lease=50, concurrency=1)
    async def own() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0)
        running[0] -= 1

    @jobs.task
    async def plain() -> None: ...

    with jobs.worker(concurrency=5):
        handles = [own.enqueue() for _ in range(5)]
        usual = plain.enqueue()
        for handle in [*handles, usual]:
            handle.result(timeout=SECONDS)
    assert most == [1]
    assert (handles[0].refresh().max_attempts, usual.refresh().max_attempts) == (3, 9)
    assert (own.policy.lease, plain.policy.lease) == (50 * SECOND, 40 * SECOND)


def test_a_worker_is_on_record_while_it_lives(jobs: App[Any]) -> None:
    @jobs.task
    def work() -> None: ...

    with jobs:
        with jobs.worker(name="ada", concurrency=3) as one, jobs.worker(name="ada") as other:
            found = {worker.name: worker for worker in jobs.control.workers()}
            assert one.name != other.name
            assert {one.name, other.name} == set(found)
            status = found[one.name]
            assert (status.alive, status.slots, status.tasks, status.queues) == (True, 3, ("work",), ("default",))
        assert jobs.control.workers() == []


async def test_a_queue_that_becomes_empty_emits_one_event(jobs: App[Any]) -> None:
    @jobs.task
    def work() -> None: ...

    empty = Probe[events.QueueEmpty]("the listener")
    jobs.on(events.QueueEmpty)(empty)
    async with jobs, jobs.worker(concurrency=4):
        for drained in (1, 2):
            await jobs.control.apause("default")
            handles = await jobs.client.aenqueue_many([work.draft() for _ in range(20)])
            await jobs.control.aresume("default")
            for handle in handles:
                await handle.aresult(timeout=SECONDS)
            await empty.calls(drained)
    assert [event.queue for event in empty.seen] == ["default", "default"]


# --- Events ---


def test_every_change_has_its_event_and_a_broken_listener_does_no_harm(jobs: App[Any]) -> None:
    seen: list[events.Event] = []

    @jobs.on(events.Event)
    def hear(event: events.Event) -> None:
        seen.append(event)

    @jobs.on(events.Event)
    def break_(event: events.Event) -> None:
        raise RuntimeError("the listener is broken")

    @jobs.task(max_attempts=2, backoff=0)
    def work(how: str) -> None:
        if how == "fails":
            raise ValueError("no")
        if how == "cancels":
            raise Cancel("no")

    with jobs.worker():
        for how in ("succeeds", "fails", "cancels"):
            work.enqueue(how).report(timeout=SECONDS)
        jobs.control.pause("other")
        jobs.control.resume("other")
        jobs.control.clear("other")
    kinds = {type(event).__name__ for event in seen}
    assert kinds >= {"Queued", "Started", "Retrying", "Succeeded", "Failed", "Cancelled"}
    assert kinds >= {"WorkerStarted", "WorkerStopping", "WorkerStopped", "QueuePaused", "QueueResumed", "QueueCleared"}
    assert [event.at for event in seen if isinstance(event, events.JobEvent)] != []
