"""How an attempt ends: whatever a handler returns, raises or is given, the job gets an outcome and the worker lives."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from minimal_app import QUICK, MinimalApp, MinimalTask

from holdfast import App, events
from holdfast.errors import Cancel, GiveUp, Retry, Snooze
from holdfast.model.instants import SECOND
from holdfast.model.job import AttemptOutcome, JobKey, JobRecord
from holdfast.model.produce import Group, NewJob
from holdfast.model.retry import RetryPolicy
from holdfast.model.states import JobState, Reason
from holdfast.testing import Probe


async def attempt(function: Callable[..., Any], *args: Any, **policy: Any) -> JobRecord:
    """Run one job of this function, and another after it that must succeed: the worker is unharmed."""

    async def witness() -> str:
        return "alive"

    app = MinimalApp(MinimalTask(function, name="task", **policy), MinimalTask(witness))
    id = await app.enqueue("task", *args)
    await app.drain()
    after = await app.enqueue("witness")
    await app.drain()
    assert await app.result(after) == "alive"
    return await app.look(id)


def both(function: Callable[[], Any]) -> pytest.MarkDecorator:
    """The same handler as an async and as a plain function."""

    async def on_the_loop() -> Any:
        return function()

    def in_a_thread() -> Any:
        return function()

    return pytest.mark.parametrize("handler", [on_the_loop, in_a_thread])


def _raise(error: BaseException) -> Any:
    raise error


# Returning


@both(lambda: {"answer": 42})
async def test_a_value_that_is_returned_is_the_result(handler: Callable[[], Any]) -> None:
    job = await attempt(handler)
    assert job.state is JobState.SUCCEEDED
    assert job.result == b'{"answer":42}'


async def test_arguments_arrive_as_they_were_given() -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    assert (await attempt(add, 2, 3)).result == b"5"


@both(object)
async def test_a_result_that_cannot_be_stored_fails_the_job_at_once(handler: Callable[[], Any]) -> None:
    job = await attempt(handler, retry=QUICK)
    assert (job.state, job.reason, job.attempt) == (JobState.FAILED, Reason.ERROR, 1)
    assert job.last_error is not None
    assert "cannot be encoded" in job.last_error.message


async def test_a_result_that_is_too_large_fails_the_job_and_says_so() -> None:
    async def huge() -> str:
        return "x" * 2_000_000

    job = await attempt(huge, retry=QUICK)
    assert (job.state, job.reason, job.attempt) == (JobState.FAILED, Reason.RESULT_TOO_LARGE, 1)


# Raising


@both(lambda: _raise(ValueError("no such card")))
async def test_an_error_is_retried_until_the_attempts_are_used_up(handler: Callable[[], Any]) -> None:
    job = await attempt(handler, retry=QUICK)
    assert (job.state, job.reason, job.attempt) == (JobState.FAILED, Reason.EXHAUSTED, 3)
    assert job.last_error is not None
    assert (job.last_error.type, job.last_error.message) == ("builtins.ValueError", "no such card")
    first = job.last_error.traceback.splitlines()[1]  # no frame of the worker stands before the handler
    assert "in_a_thread" in first or "on_the_loop" in first
    assert [entry.outcome for entry in job.history] == [AttemptOutcome.FAILED] * 3


@both(lambda: sys.exit(3))
async def test_a_handler_that_exits_has_failed_and_nothing_else_has(handler: Callable[[], Any]) -> None:
    job = await attempt(handler, retry=QUICK)
    assert (job.state, job.reason, job.attempt) == (JobState.FAILED, Reason.EXHAUSTED, 3)
    assert job.last_error is not None
    assert job.last_error.type == "builtins.SystemExit"


@both(lambda: _raise(KeyboardInterrupt()))
async def test_a_handler_that_raises_keyboard_interrupt_has_failed_and_nothing_else_has(
    handler: Callable[[], Any],
) -> None:
    job = await attempt(handler, retry=QUICK)
    assert (job.state, job.attempt) == (JobState.FAILED, 3)


async def test_a_policy_may_name_what_is_no_exception() -> None:
    async def leaves() -> None:
        sys.exit(1)

    job = await attempt(leaves, retry=RetryPolicy(give_up_on=(SystemExit,)))
    assert (job.state, job.reason, job.attempt) == (JobState.FAILED, Reason.GAVE_UP, 1)


@both(lambda: _raise(StopIteration("end")))
async def test_stop_iteration_is_an_error_like_any_other(handler: Callable[[], Any]) -> None:
    assert (await attempt(handler, retry=QUICK)).state is JobState.FAILED


@both(lambda: _raise(asyncio.CancelledError()))
async def test_a_handler_that_cancels_itself_has_failed(handler: Callable[[], Any]) -> None:
    job = await attempt(handler, retry=QUICK)
    assert (job.state, job.attempt) == (JobState.FAILED, 3)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@both(lambda: _raise(UnprintableError()))
async def test_an_error_that_cannot_be_shown_still_fails_the_attempt(handler: Callable[[], Any]) -> None:
    job = await attempt(handler, retry=QUICK)
    assert job.state is JobState.FAILED
    assert job.last_error is not None
    assert "cannot be shown" in job.last_error.message


async def test_text_no_store_can_hold_is_cleaned() -> None:
    async def garbles() -> None:
        raise ValueError("nul \0 and surrogate \ud800")

    job = await attempt(garbles, retry=QUICK)
    assert job.last_error is not None
    assert "\0" not in job.last_error.message


# Interrupts


@both(lambda: _raise(GiveUp("card expired")))
async def test_give_up_ends_as_failed_whatever_attempts_are_left(handler: Callable[[], Any]) -> None:
    job = await attempt(handler)
    assert (job.state, job.reason, job.note, job.attempt) == (JobState.FAILED, Reason.GAVE_UP, "card expired", 1)


@both(lambda: _raise(Cancel("order withdrawn")))
async def test_cancel_ends_as_cancelled(handler: Callable[[], Any]) -> None:
    job = await attempt(handler)
    assert (job.state, job.reason, job.note) == (JobState.CANCELLED, Reason.ASKED, "order withdrawn")


@both(lambda: _raise(Retry("told to slow down", delay=30)))
async def test_retry_waits_as_long_as_it_was_asked_to_and_costs_an_attempt(handler: Callable[[], Any]) -> None:
    job = await attempt(handler)
    assert (job.state, job.reason, job.attempt) == (JobState.RETRYING, Reason.RETRY_ASKED, 1)
    assert job.started is not None
    assert 29 * SECOND < job.due - job.started < 40 * SECOND


@both(lambda: _raise(Snooze(delay=60)))
async def test_snooze_waits_and_costs_no_attempt(handler: Callable[[], Any]) -> None:
    job = await attempt(handler)
    assert (job.state, job.reason, job.attempt) == (JobState.SCHEDULED, Reason.SNOOZED, 0)


@both(lambda: GiveUp("returned, not raised"))
async def test_an_interrupt_that_is_returned_is_honoured(handler: Callable[[], Any]) -> None:
    job = await attempt(handler)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.GAVE_UP)


async def test_an_interrupt_out_of_a_task_group_is_unwrapped() -> None:
    async def groups() -> None:
        async def inner() -> None:
            raise GiveUp("in a group")

        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as group:
            outer.create_task(asyncio.sleep(10))
            group.create_task(inner())

    job = await attempt(groups)
    assert (job.state, job.reason, job.note) == (JobState.FAILED, Reason.GAVE_UP, "in a group")


@both(lambda: _raise(BaseExceptionGroup("two", [Retry("a"), GiveUp("b")])))
async def test_a_group_with_two_interrupts_is_an_error(handler: Callable[[], Any]) -> None:
    job = await attempt(handler, retry=QUICK)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.EXHAUSTED)


async def test_except_exception_cannot_swallow_an_interrupt() -> None:
    async def careless() -> str:
        try:
            raise Retry("later", delay=30)
        except Exception:
            return "fine"

    assert (await attempt(careless)).state is JobState.RETRYING


# Stored garbage


# A10
@pytest.mark.parametrize("payload", [b"\xff\xfe", b"{", b"[" * 1000, b""])
async def test_a_payload_that_cannot_be_read_fails_and_its_bytes_are_kept(payload: bytes) -> None:
    async def never() -> None:
        raise AssertionError

    app = MinimalApp(MinimalTask(never))
    id = await app.enqueue("never", payload=payload)
    await app.drain()
    job = await app.look(id)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.UNDECODABLE)
    assert job.payload == payload


# A10
@pytest.mark.parametrize("payload", [b"[1,2]", b"null", b"[[1],{}]", b'[[],{"new":1}]'])
async def test_sound_data_that_does_not_fit_is_retried_and_ends_as_a_dead_letter(payload: bytes) -> None:
    async def never() -> None:
        raise AssertionError

    app = App[None]("memory://")
    app.task(name="never", retry_on=(KeyError,), max_attempts=2, backoff=0)(never)
    async with app:
        job = NewJob(queue="default", id="new", task="never", payload=payload)
        await app.engine.enqueue(Group((job,)))
        failed = Probe[events.Failed]("the listener")
        app.on(events.Failed)(failed)
        async with app.worker():
            await failed.calls(1)
        (record,) = (await app.engine.get(JobKey("default", "new"))).jobs
    assert record is not None
    assert (record.state, record.reason, record.attempt) == (JobState.FAILED, Reason.UNDECODABLE, 2)
    assert [entry.outcome for entry in record.history] == [AttemptOutcome.FAILED] * 2
    assert record.payload == payload


# A10
async def test_a_call_of_a_newer_release_waits_for_a_worker_that_has_the_parameter(tmp_path: Path) -> None:
    async def scale(number: int) -> int:
        return number

    async def scale_by(number: int, factor: int) -> int:
        return number * factor

    old, new = (App[None](f"sqlite:///{tmp_path}/jobs.db") for _ in range(2))
    old.task(name="scale", backoff=0.05)(scale)
    task = new.task(name="scale", backoff=0.05)(scale_by)
    retried = Probe[events.Retrying]("the listener")
    old.on(events.Retrying)(retried)
    async with old, new:
        handle = await task.aenqueue(7, factor=6)
        async with old.worker():
            (event, *_) = await retried.calls(1)
            assert event.reason == Reason.UNDECODABLE
        async with new.worker():
            assert await handle.aresult(timeout=60) == 42


# The text of an exception


class Interrupting(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_an_exception_whose_text_raises_keyboard_interrupt_fails_the_attempt_and_not_the_worker(
    is_async: bool,
) -> None:
    async def fails() -> None:
        raise Interrupting

    def fails_in_thread() -> None:
        raise Interrupting

    job = await attempt(fails if is_async else fails_in_thread)
    assert (job.state, job.attempt, job.losses) == (JobState.RETRYING, 1, 0)
    assert job.last_error is not None
    assert "str() raised KeyboardInterrupt" in job.last_error.message


async def test_a_chain_of_twenty_thousand_contexts_is_formatted_in_part() -> None:
    async def fails() -> None:
        error: BaseException = ValueError("the first")
        for number in range(20_000):
            outer = ValueError(f"number {number}")
            outer.__context__ = error
            error = outer
        raise error

    job = await attempt(fails)
    assert job.last_error is not None
    assert "ValueError: the first" in job.last_error.traceback
    assert "ValueError: number 19999" in job.last_error.traceback
    assert "left out" in job.last_error.traceback


async def test_a_backoff_function_that_breaks_does_not_lose_the_job() -> None:
    async def fails() -> None:
        raise ValueError

    def broken(attempt: int, error: BaseException | None) -> float:
        raise RuntimeError("broken back-off")

    from holdfast.model.retry import backoff

    job = await attempt(fails, retry=RetryPolicy(backoff=backoff(broken)))
    assert job.state is JobState.RETRYING


async def test_an_error_class_that_cannot_be_compared_fails_the_job() -> None:
    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            raise RuntimeError("do not ask")

    class Odd(Exception, metaclass=Meta):
        pass

    async def fails() -> None:
        raise ValueError("plain")

    job = await attempt(fails, retry=RetryPolicy(give_up_on=(Odd,)))
    assert (job.state, job.reason) == (JobState.FAILED, Reason.ERROR)


# Errors that are hard to handle


@both(lambda: _raise(GeneratorExit()))
async def test_a_generator_exit_out_of_a_handler_is_a_failure(handler: Callable[[], Any]) -> None:
    job = await attempt(handler, retry=RetryPolicy(max_attempts=1))
    assert job.state is JobState.FAILED
    assert job.last_error is not None
    assert "GeneratorExit" in job.last_error.type


class BrokenClassError(Exception):
    """Cannot be compared with any class."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("broken")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


@both(lambda: _raise(BrokenClassError()))
async def test_an_error_that_cannot_be_inspected_is_a_failure(handler: Callable[[], Any]) -> None:
    job = await attempt(handler, retry=RetryPolicy(max_attempts=1))
    assert job.state is JobState.FAILED


@both(lambda: _raise(ValueError("no such bank")))
async def test_the_traceback_begins_in_the_handler(handler: Callable[[], Any]) -> None:
    job = await attempt(handler, retry=RetryPolicy(max_attempts=1))
    assert job.last_error is not None
    lines = job.last_error.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert f"in {handler.__name__}" in lines[1]


async def test_a_failure_without_a_traceback_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    await attempt(object)
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_text is None
