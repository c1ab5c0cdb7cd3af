"""What follows a settlement: events when someone listens, dead-letter hooks, and empty queues told once."""

import asyncio
import logging
import sys
import traceback
from collections import Counter
from typing import Any

import pytest
from eventually import idle
from failing_engine import FailingEngine
from minimal_app import QUEUE, QUICK, MinimalApp, MinimalTask, names

from holdfast import events
from holdfast.errors import Cancel, GiveUp, Snooze
from holdfast.model.instants import SECOND
from holdfast.model.operate import Emptied
from holdfast.model.retry import RetryPolicy
from holdfast.model.states import Reason
from holdfast.runtime import SystemRuntime
from holdfast.telemetry.logs import TextFormatter
from holdfast.testing import FrozenRuntime, Probe

ONCE = RetryPolicy(max_attempts=1)


async def works() -> str:
    return "done"


async def fails() -> None:
    raise ValueError("no such card")


async def gives_up() -> None:
    raise GiveUp("card expired")


async def cancels() -> None:
    raise Cancel("withdrawn")


async def snoozes() -> None:
    raise Snooze(delay=60)


# Events


async def test_a_life_in_events() -> None:
    app = MinimalApp(MinimalTask(fails, retry=QUICK))
    seen = app.record_events(events.JobEvent)
    id = await app.enqueue("fails")
    await app.drain(name="ada")
    assert names(seen.seen) == ["Started", "Retrying", "Started", "Retrying", "Started", "Failed"]
    last = seen.seen[-1]
    assert isinstance(last, events.Failed)
    assert (last.queue, last.job_id, last.task, last.attempt) == (QUEUE, id, "fails", 3)
    assert last.worker.startswith("ada-")
    assert last.reason is Reason.EXHAUSTED
    assert last.error is not None
    assert last.error.message == "no such card"
    retry = seen.seen[1]
    assert isinstance(retry, events.Retrying)
    assert (retry.max_attempts, retry.delay, retry.reason) == (3, 0, Reason.ERROR)


@pytest.mark.parametrize(
    ("function", "kind", "reason"),
    [
        (gives_up, events.Failed, Reason.GAVE_UP),
        (cancels, events.Cancelled, Reason.ASKED),
        (snoozes, events.Retrying, Reason.SNOOZED),
    ],
)
async def test_each_end_has_its_event(function: Any, kind: type[events.JobEvent], reason: Reason) -> None:
    app = MinimalApp(MinimalTask(function))
    seen = app.record_events(kind)
    await app.enqueue(function.__name__)
    await app.drain()
    (event,) = seen.seen
    assert getattr(event, "reason", None) is reason


async def test_events_say_how_long_a_job_waited_and_ran() -> None:
    running, gate = Probe[None]("the handler"), asyncio.Event()

    async def waits() -> None:
        running(None)
        await gate.wait()

    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(waits), runtime=runtime)
    started, ended = app.record_events(events.Started), app.record_events(events.Succeeded)
    await app.enqueue("waits")
    runtime.advance(3)
    async with app.worker():
        await running.calls(1)
        runtime.advance(2)
        gate.set()
        await ended.calls(1)
    (start,), (end,) = started.seen, ended.seen
    assert isinstance(start, events.Started)
    assert isinstance(end, events.Succeeded)
    assert (start.waited, end.ran) == (3 * SECOND, 2 * SECOND)


async def test_a_broken_listener_does_not_harm_the_job() -> None:
    app = MinimalApp(MinimalTask(works))

    def broken(event: events.Event) -> None:
        raise RuntimeError("broken listener")

    app.bus.on(events.Event, broken)
    id = await app.enqueue("works")
    await app.drain()
    assert await app.result(id) == "done"


async def test_failures_are_logged_with_their_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "holdfast.worker"):
        app = MinimalApp(MinimalTask(fails, retry=QUICK))
        await app.enqueue("fails", id="j1")
        await app.drain()
    assert caplog.text.count("Job j1 (fails) runs again in") == 2
    line = "fails: builtins.ValueError: job j1 failed at attempt 3 (exhausted): no such card"
    assert caplog.text.count(line) == 1


def failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno == logging.ERROR]


async def test_failures_of_one_task_and_error_have_one_message_template(caplog: pytest.LogCaptureFixture) -> None:
    """By which error trackers group. A `%` in a name is a `%` in the message."""
    app = MinimalApp(MinimalTask(fails, retry=ONCE), MinimalTask(gives_up, name="100%s"))
    for name in ("fails", "fails", "100%s"):
        await app.enqueue(name)
    await app.drain()
    assert Counter(record.msg.partition("job")[0] for record in failures(caplog)) == {
        "fails: builtins.ValueError: ": 2,
        "100%%s: holdfast.errors.GiveUp: ": 1,
    }
    assert any(record.getMessage().startswith("100%s: ") for record in failures(caplog))


async def test_the_record_of_a_failure_has_its_exception(caplog: pytest.LogCaptureFixture) -> None:
    app = MinimalApp(MinimalTask(fails, retry=ONCE))
    await app.enqueue("fails")
    await app.drain()
    (record,) = failures(caplog)
    assert record.exc_info is not None
    kind, error, frames = record.exc_info
    assert (kind, str(error)) == (ValueError, "no such card")
    assert "in fails" in "".join(traceback.format_tb(frames))
    assert logging.Formatter().format(record).count("ValueError: no such card") == 1


async def test_the_exception_of_a_failure_is_not_formatted_again_by_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    formatted: list[str] = []

    class Slow(Exception):
        def __str__(self) -> str:
            formatted.append("slow")
            return "slow"

    async def fails_slowly() -> None:
        raise Slow

    app = MinimalApp(MinimalTask(fails_slowly, retry=ONCE))
    await app.enqueue("fails_slowly")
    await app.drain()
    (record,) = failures(caplog)
    assert record.exc_info is not None
    before = len(formatted)
    assert "slow" in logging.Formatter().format(record)
    assert len(formatted) == before > 0


async def test_a_failure_by_give_up_has_no_exception_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = MinimalApp(MinimalTask(gives_up))
    await app.enqueue("gives_up")
    await app.drain()
    (record,) = failures(caplog)
    assert (record.exc_info, record.exc_text) == (None, None)


async def test_a_failure_that_is_not_retried_has_its_exception_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = MinimalApp(MinimalTask(fails, retry=RetryPolicy(max_attempts=3, give_up_on=(ValueError,))))
    await app.enqueue("fails")
    await app.drain()
    (record,) = failures(caplog)
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError


async def test_a_timeout_is_a_timeout_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    app = MinimalApp(MinimalTask(waits, retry=ONCE, timeout=1))
    await app.enqueue("waits")
    await app.drain()
    (record,) = failures(caplog)
    assert record.exc_info is not None
    assert record.exc_info[0] is TimeoutError
    assert "in waits" in "".join(traceback.format_tb(record.exc_info[2]))


async def test_a_listener_is_called_while_the_exception_of_the_failure_is_active() -> None:
    seen: list[BaseException | None] = []
    app = MinimalApp(MinimalTask(fails, retry=ONCE), MinimalTask(works))
    app.bus.on(events.JobEvent, lambda event: seen.append(sys.exception()))
    await app.enqueue("fails")
    await app.enqueue("works")
    await app.drain()
    (error,) = [error for error in seen if error is not None]
    assert (type(error), str(error)) == (ValueError, "no such card")


# Dead letters


async def test_a_dead_letter_hook_sees_the_failed_job_and_its_error() -> None:
    seen = Probe[tuple[str, str, str]]("the hook")
    loop = asyncio.get_running_loop()

    def sync_hook(job: Any, error: Any) -> None:
        loop.call_soon_threadsafe(seen, ("sync", job.state, error.message))

    async def async_hook(job: Any, error: Any) -> None:
        seen(("async", job.state, error.message))

    task = MinimalTask(gives_up)
    task.dead_letter_hooks += [sync_hook, async_hook]
    app = MinimalApp(task)
    await app.enqueue("gives_up")
    await app.drain()
    assert sorted(await seen.calls(2)) == [("async", "failed", "card expired"), ("sync", "failed", "card expired")]


async def test_a_hook_that_fails_is_logged_and_blocks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    seen = Probe[str]("the hook")

    async def broken(job: Any, error: Any) -> None:
        raise RuntimeError("pager is off")

    def exits(job: Any, error: Any) -> None:
        raise SystemExit

    async def second(job: Any, error: Any) -> None:
        seen(job.id)

    task = MinimalTask(gives_up)
    task.dead_letter_hooks += [broken, exits, second]
    app = MinimalApp(task, MinimalTask(works))
    await app.enqueue("gives_up", id="dead")
    fine = await app.enqueue("works")
    await app.drain()
    assert await seen.calls(1) == ["dead"]
    assert await app.result(fine) == "done"
    assert "pager is off" in caplog.text


async def test_hooks_run_only_for_dead_letters() -> None:
    seen: list[Any] = []
    tasks = [MinimalTask(works), MinimalTask(cancels), MinimalTask(snoozes)]
    for task in tasks:
        task.dead_letter_hooks.append(lambda job, error: seen.append(job))
    app = MinimalApp(*tasks)
    for task in tasks:
        await app.enqueue(task.policy.name)
    await app.drain()
    assert seen == []


# Empty


async def test_a_queue_that_runs_empty_is_published_once_per_drain() -> None:
    app = MinimalApp(MinimalTask(works))
    seen = app.record_events(events.QueueEmpty)
    for drains in (1, 2):
        await app.put(*(app.job("works") for _ in range(30)))
        await app.drain(concurrency=7)
        assert len(seen.seen) == drains


async def test_a_lane_that_runs_empty_is_published() -> None:
    app = MinimalApp(MinimalTask(works))
    seen = app.record_events(events.LaneEmpty)
    await app.put(*(app.job("works", lane=lane) for lane in ("a", "b") for _ in range(3)))
    await app.drain()
    told = Counter(event.lane for event in seen.seen if isinstance(event, events.LaneEmpty))
    assert told == {"a": 1, "b": 1}


async def test_a_queue_with_work_left_is_not_empty() -> None:
    app = MinimalApp(MinimalTask(works))
    seen = app.record_events(events.QueueEmpty)
    await app.enqueue("works")
    await app.enqueue("works", delay=60 * SECOND)
    await app.drain()
    assert seen.seen == []


async def test_the_store_is_not_queried_without_a_listener() -> None:
    runtime = SystemRuntime()
    engine = FailingEngine(runtime)
    app = MinimalApp(MinimalTask(works), runtime=runtime, engine=engine)
    await app.enqueue("works")
    await app.drain()
    assert not any(isinstance(command, Emptied) for command in engine.commands)


async def test_one_queue_may_run_empty_while_another_keeps_the_worker_busy() -> None:
    running, gate = Probe[None]("the handler"), asyncio.Event()

    async def waits() -> None:
        running(None)
        await gate.wait()

    app = MinimalApp(MinimalTask(works), MinimalTask(waits))
    seen = app.record_events(events.QueueEmpty)
    await app.enqueue("waits", queue="long")
    await app.enqueue("works", queue="short")
    async with app.worker(queues=["long", "short"]):
        await running.calls(1)
        await seen.calls(1)
        assert [event.queue for event in seen.seen if isinstance(event, events.QueueEmpty)] == ["short"]
        gate.set()
    await idle()


# Listeners that take their time


def test_an_async_listener_finishes_before_the_worker_is_done() -> None:
    app, told = MinimalApp(), list[str]()

    async def listen(event: events.WorkerStopped) -> None:
        await asyncio.sleep(0.05)
        told.append(event.worker)

    app.bus.on(events.WorkerStopped, listen)
    worker = app.worker(until_empty=True)
    worker.run()
    assert told == [worker.name]


def test_an_async_listener_that_does_not_end_does_not_keep_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.telemetry.bus.LISTENER_TIMEOUT_S", 0.01)
    app, ends = MinimalApp(), list[str]()

    async def listen(event: events.WorkerStopped) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ends.append("cut off")

    app.bus.on(events.WorkerStopped, listen)
    app.worker(until_empty=True).run()
    assert ends == ["cut off"]


HOSTILE_ID = "a\n2026-01-01 00:00:00 ERROR forged\x1b[2J"


async def test_an_id_with_control_characters_forges_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise GiveUp("no use")

    caplog.set_level(logging.DEBUG)
    app = MinimalApp(MinimalTask(fails))
    await app.enqueue("fails", id=HOSTILE_ID)
    await app.drain()
    (line,) = [record.getMessage() for record in caplog.records if "failed at attempt 1" in record.getMessage()]
    assert r"a\n2026-01-01 00:00:00 ERROR forged\x1b[2J" in line
    assert not [record for record in caplog.records if "\x1b" in record.getMessage()]


def test_the_text_formatter_escapes_the_job_of_a_line() -> None:
    record = logging.LogRecord("shop", logging.INFO, "", 0, "message", None, None)
    record.job_id, record.task, record.attempt = HOSTILE_ID, "t\r", 1
    assert len(TextFormatter().format(record).splitlines()) == 1
