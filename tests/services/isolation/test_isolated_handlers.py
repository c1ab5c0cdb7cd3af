"""A worker in this process, whose handlers run in processes of their own."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import child_app
import pytest
from child_app import jobs
from eventually import eventually

from holdfast import Context, Handle, InvalidOption, JobFailed, Report, processes
from holdfast.isolation import children, process
from holdfast.isolation.process import HandlerProcess
from holdfast.process_death import death_of
from holdfast.testing import harness
from holdfast.worker import isolated

LIMIT_S = 60
"""Seconds. A test that passes never waits that long."""


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_app, "address", f"sqlite:///{tmp_path}/jobs.db")
    monkeypatch.setattr(child_app, "FOLDER", str(tmp_path))
    monkeypatch.setenv("CHILD_APP_FOLDER", str(tmp_path))
    child_app.seen.clear()


@asynccontextmanager
async def worker(concurrency: int = 1) -> AsyncIterator[None]:
    async with jobs, jobs.worker(concurrency=concurrency, name="tested"):
        yield


async def report_of(handle: Handle[Any]) -> Report:
    return await handle.areport(timeout=LIMIT_S)


async def test_a_handler_has_its_context_middleware_and_lifespan_in_its_process() -> None:
    async with worker():
        handle = await child_app.facts.using(metadata={"a": "b"}).aenqueue()
        facts = await handle.aresult(timeout=LIMIT_S)
        assert facts["pid"] == facts["state"] != os.getpid()
        assert (facts["id"], facts["attempt"], facts["metadata"]) == (handle.id, 1, {"a": "b"})
        assert re.match(r"tested-\w+", facts["worker"])
        assert (facts["current"], facts["aborted"]) == (True, False)
        assert facts["fence"] > 0
        assert facts["surrounded"] == ["facts"]
        assert child_app.surrounded == [], "generator middleware runs around the handler"
        assert child_app.seen == [facts], "async middleware runs in the worker, and gets the result"
        progress = (await handle.arefresh()).progress
        assert progress is not None
        assert progress.note == "a quarter"
        pid, state = await child_app.async_pid.using(wait=LIMIT_S).arequest()
        assert pid == state == facts["pid"], "the process is used again"


async def test_the_retry_policy_sees_the_exception_itself() -> None:
    async with worker(concurrency=2):
        by_kind = await report_of(await child_app.gives_up_on_a_key.aenqueue())
        assert (by_kind.reason, by_kind.job.attempt) == ("gave_up", 1)
        assert by_kind.job.last_error is not None
        assert 'in gives_up_on_a_key\n    dict[str, int]()["x"]' in by_kind.job.last_error.traceback
        assert "holdfast/isolation" not in by_kind.job.last_error.traceback
        retried = await report_of(await child_app.retries_a_subclass_of_os_error.aenqueue())
        assert (retried.reason, retried.job.attempt) == ("exhausted", 2)
        stopped = await report_of(await child_app.has_a_function_as_backoff.aenqueue("key"))
        assert (stopped.reason, stopped.job.attempt) == ("gave_up", 1)
        repeated = await report_of(await child_app.has_a_function_as_backoff.aenqueue("value"))
        assert (repeated.reason, repeated.job.attempt) == ("exhausted", 3)
        given_up = await report_of(await child_app.raises_retry.aenqueue())
        assert (given_up.reason, given_up.job.attempt) == ("gave_up", 2)
        assert child_app.seen[0] == ("builtins.KeyError", True, False)
        assert child_app.seen[1] == ("builtins.FileNotFoundError", False, True)


async def test_a_process_is_replaced_after_an_exit_and_after_a_memory_error() -> None:
    async with worker():
        assert await child_app.exits.using(wait=LIMIT_S).arequest() == 0, "nothing of the first attempt is left"
        first = await child_app.takes_memory.using(wait=LIMIT_S).arequest(1)
        handle = await child_app.takes_memory.aenqueue(512)
        second = await handle.aresult(timeout=LIMIT_S)
        assert first != second
        job = await handle.arefresh()
        assert [attempt.error and attempt.error.type for attempt in job.attempts] == ["builtins.MemoryError", None]


async def test_a_handler_that_notices_its_abort_keeps_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "KILL_AFTER_S", LIMIT_S)  # a busy machine may need longer than a second
    async with worker():
        (pid, _) = await child_app.async_pid.using(wait=LIMIT_S).arequest()
        timed_out = await report_of(await child_app.stops_when_aborted.using(timeout=1, max_attempts=1).aenqueue())
        assert timed_out.reason == "timeout"
        assert timed_out.job.last_error is not None
        assert "in stops_when_aborted" in timed_out.job.last_error.traceback
        handle = await child_app.stops_when_aborted.aenqueue()
        started = Path(child_app.FOLDER, handle.id)
        await eventually(started.exists, "the handler to run", limit_s=LIMIT_S)
        await handle.acancel()
        assert (await report_of(handle)).job.state == "cancelled"
        assert (await child_app.async_pid.using(wait=LIMIT_S).arequest())[0] == pid


async def test_the_store_is_not_opened_in_the_process() -> None:
    async with worker():
        texts = await child_app.uses_the_store.using(wait=LIMIT_S).arequest()
        assert len(texts) == 3
        assert all("has no access to the store" in text for text in texts)


async def test_a_process_that_cannot_start_fails_its_job_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "middlewares", [*jobs.middlewares, _only_here])
    async with worker(concurrency=2):
        failed = await report_of(await child_app.facts.using(max_attempts=1).aenqueue())
        assert failed.reason == "exhausted"
        assert failed.job.last_error is not None
        assert "could not start: The generator middleware of the App" in failed.job.last_error.message
        assert await child_app.plain.using(wait=LIMIT_S).arequest() == os.getpid()


async def test_an_exception_that_cannot_be_read_is_one_of_the_handler() -> None:
    async with worker(concurrency=2):
        for task in (child_app.raises_what_cannot_be_read, child_app.raises_what_cannot_be_read_async):
            failed = await report_of(await task.aenqueue())
            assert (failed.reason, failed.job.losses) == ("exhausted", 0)
            assert failed.job.last_error is not None
            assert "cannot be read: <class 'child_app.NoClassError'>" in failed.job.last_error.message


async def test_a_start_that_failed_delays_no_other_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "FIRST_PAUSE_S", 2 * LIMIT_S)
    monkeypatch.setattr(children, "MAX_PAUSE_S", 2 * LIMIT_S)
    async with worker(concurrency=2):
        failed = await report_of(await child_app.cannot_start.using(max_attempts=1).aenqueue())
        assert failed.job.last_error is not None
        assert "could not start: No module named 'no_such_module'" in failed.job.last_error.message
        assert await child_app.meets.using(wait=LIMIT_S).arequest("alone", 1) != os.getpid()


async def test_only_a_few_processes_start_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    starting, most = 0, 0
    connect = HandlerProcess.connect

    async def counted(process: HandlerProcess) -> None:
        nonlocal starting, most
        starting, most = starting + 1, max(most, starting + 1)
        await connect(process)
        starting -= 1

    monkeypatch.setattr(HandlerProcess, "connect", counted)
    monkeypatch.setattr(children, "MAX_STARTING", 1, raising=False)
    async with worker(concurrency=3):
        handles = [await child_app.meets.aenqueue("all", 3) for _ in range(3)]
        pids = {await handle.aresult(timeout=LIMIT_S) for handle in handles}
        assert (len(pids), most) == (3, 1)


async def test_a_start_that_takes_long_does_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "MAX_STARTING", 1)
    monkeypatch.setattr(children, "TURN_S", 0)
    connect = HandlerProcess.connect
    ready = asyncio.Event()

    async def never_first(process: HandlerProcess) -> None:
        is_first = not ready.is_set()
        ready.set()
        if is_first:
            await asyncio.Event().wait()
        await connect(process)

    monkeypatch.setattr(HandlerProcess, "connect", never_first)
    async with worker(concurrency=2):
        stuck = await child_app.meets.aenqueue("stuck", 1)
        await ready.wait()
        assert await child_app.meets.using(wait=LIMIT_S).arequest("free", 1) != os.getpid()
        await stuck.acancel()
        assert (await report_of(stuck)).job.state == "cancelled"


async def test_another_memory_limit_ends_one_idle_process_and_not_all() -> None:
    async with worker(concurrency=3):
        first = {await one.aresult(timeout=LIMIT_S) for one in [await child_app.meets.aenqueue("a", 3) for _ in "abc"]}
        await child_app.takes_memory.using(wait=LIMIT_S).arequest(1)
        later = {await one.aresult(timeout=LIMIT_S) for one in [await child_app.meets.aenqueue("b", 2) for _ in "ab"]}
        assert later < first


async def test_the_peak_memory_of_a_process_is_known_after_its_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "own_peak_bytes", lambda: 1 << 50)  # so that the kernel's figure says nothing
    measure = processes.peak_bytes_of

    def noted(pid: int) -> int:
        peak_bytes = measure(pid)
        if peak_bytes > 200 << 20:
            Path(child_app.FOLDER, "measured").touch()
        return peak_bytes

    monkeypatch.setattr(process, "peak_bytes_of", noted)
    async with worker():
        lost = await report_of(await child_app.takes_memory_and_dies.aenqueue(200))
    death = death_of(lost.job.last_error)
    assert death is not None
    assert (lost.reason, death.cause) == ("worker_lost", "SIGKILL")
    assert 200 <= (death.peak_mib or 0) <= 300


def _only_here(ctx: Context) -> object:
    yield


async def test_log_lines_of_the_handler_name_the_job(capfd: pytest.CaptureFixture[str]) -> None:
    async with worker():
        handle = await child_app.reads_a_log.aenqueue()
        await handle.aresult(timeout=LIMIT_S)
    written = capfd.readouterr().err
    assert f"WARNING shop: a line of the handler [reads_a_log {handle.id} attempt 1]" in written


async def test_a_worker_that_stops_leaves_no_process(caplog: pytest.LogCaptureFixture) -> None:
    async with worker():
        (pid, _) = await child_app.async_pid.using(wait=LIMIT_S).arequest()
    assert Path(child_app.FOLDER, f"left-{pid}").exists(), "its lifespan was left"
    assert "cannot be stopped" not in caplog.text, "it can be killed when its timeout has passed"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_test_kit_runs_isolated_tasks_in_its_own_process() -> None:
    with harness(jobs) as holdfast:
        (pid, state) = holdfast.attempt(child_app.async_pid)
        assert pid == state == os.getpid()


def test_a_direct_call_runs_in_this_process() -> None:
    async def with_state() -> int:
        return await child_app.plain.acall()

    assert child_app.takes_memory.call(1) == os.getpid()
    assert asyncio.run(with_state()) == os.getpid()


def test_what_cannot_run_in_a_process_is_refused_at_once() -> None:
    with pytest.raises(InvalidOption, match="top of a module"):

        @jobs.task(isolate="process")
        def nested() -> None: ...

    with pytest.raises(InvalidOption, match="top of a module"):
        jobs.task(name="lambda", isolate="process")(lambda: None)
    with pytest.raises(InvalidOption, match="isolate` and `transaction"):
        jobs.task(name="other", isolate="process", transaction=True)(_plain)
    with pytest.raises(InvalidOption, match='needs isolate="process"'):
        jobs.task(name="other", memory_limit=1 << 30)(_plain)
    with pytest.raises(InvalidOption, match="at least 33554432"):
        jobs.task(isolate="process", memory_limit=1024)
    with pytest.raises(InvalidOption, match="'process' or None"):
        jobs.task(isolate="thread")  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="at the top of a module"):
        jobs.pool("nested", int, lanes=2).handler(isolate="process")(lambda payload: None)
    assert "other" not in jobs.registry
    assert "lambda" not in jobs.registry


def _plain() -> None: ...


def test_a_failure_is_shown_with_the_text_of_the_process() -> None:
    with jobs, jobs.worker(concurrency=1), pytest.raises(JobFailed, match=r"builtins\.KeyError: 'x'"):
        child_app.gives_up_on_a_key.using(wait=LIMIT_S).request()
