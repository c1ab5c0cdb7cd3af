"""Middleware: onions on the loop may change what comes out, generators surround the handler where it runs."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from minimal_app import QUICK, MinimalApp, MinimalTask

from holdfast.context import Context, Next
from holdfast.errors import GiveUp
from holdfast.model.states import JobState, Reason

log: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    log.clear()


def onion(name: str) -> Any:
    async def around(ctx: Context, proceed: Next) -> object:
        log.append(f"{name} in")
        try:
            return await proceed()
        finally:
            log.append(f"{name} out")

    return around


def surround(name: str) -> Any:
    def around(ctx: Context) -> Iterator[None]:
        log.append(f"{name} in {threading.current_thread() is threading.main_thread()}")
        yield
        log.append(f"{name} out")

    return around


async def _on_loop() -> str:
    log.append("handler")
    return "result"


def _in_thread() -> str:
    log.append("handler")
    return "result"


@pytest.mark.parametrize(("function", "main"), [(_on_loop, True), (_in_thread, False)])
async def test_the_application_is_outside_of_the_task_and_onions_outside_of_generators(
    function: Any, main: bool
) -> None:
    task = MinimalTask(function, name="task", middleware=[surround("C"), onion("D")])
    app = MinimalApp(task, middlewares=[onion("A"), surround("B")])
    id = await app.enqueue("task")
    await app.drain()
    assert await app.result(id) == "result"
    assert log == ["A in", "D in", f"B in {main}", f"C in {main}", "handler", "C out", "B out", "D out", "A out"]


async def test_an_onion_may_replace_the_result_or_try_again() -> None:
    tries = 0

    async def flaky() -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionError
        return tries

    async def patient(ctx: Context, proceed: Next) -> object:
        while True:
            try:
                return f"after {await proceed()} tries"
            except ConnectionError:
                continue

    app = MinimalApp(MinimalTask(flaky, middleware=[patient]))
    id = await app.enqueue("flaky")
    await app.drain()
    assert await app.result(id) == "after 3 tries"
    assert (await app.look(id)).attempt == 1


async def test_an_onion_may_refuse() -> None:
    async def refuses(ctx: Context, proceed: Next) -> object:
        raise GiveUp("not on a Sunday")

    app = MinimalApp(MinimalTask(_on_loop, name="task", middleware=[refuses]))
    id = await app.enqueue("task")
    await app.drain()
    job = await app.look(id)
    assert (job.state, job.reason, job.note) == (JobState.FAILED, Reason.GAVE_UP, "not on a Sunday")
    assert log == []


@pytest.mark.parametrize("sync", [True, False])
async def test_a_generator_that_swallows_an_error_does_not_hide_it(sync: bool) -> None:
    def swallows(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ValueError:
            log.append("seen")

    async def fails() -> None:
        raise ValueError("for real")

    def fails_in_thread() -> None:
        raise ValueError("for real")

    app = MinimalApp(MinimalTask(fails_in_thread if sync else fails, name="task", middleware=[swallows], retry=QUICK))
    id = await app.enqueue("task")
    await app.drain()
    job = await app.look(id)
    assert job.state is JobState.FAILED
    assert job.last_error is not None
    assert job.last_error.message == "for real"
    assert log == ["seen"] * 3


def _never(ctx: Context) -> Iterator[None]:
    yield from ()


def _twice(ctx: Context) -> Iterator[None]:
    yield
    yield


def _breaks_before(ctx: Context) -> Iterator[None]:
    log.remove("nothing like that")
    yield


def _breaks_after(ctx: Context) -> Iterator[None]:
    yield
    raise OSError("after")


@pytest.mark.parametrize("broken", [_never, _twice, _breaks_before, _breaks_after])
async def test_a_broken_generator_fails_the_attempt_and_not_the_worker(broken: Any) -> None:
    app = MinimalApp(
        MinimalTask(_on_loop, name="task", middleware=[surround("outer"), broken], retry=QUICK), MinimalTask(_on_loop)
    )
    id = await app.enqueue("task")
    fine = await app.enqueue("_on_loop")
    await app.drain()
    assert (await app.look(id)).state is JobState.FAILED
    assert (await app.look(fine)).state is JobState.SUCCEEDED
    assert log.count("outer out") <= 3


async def test_middleware_sees_the_context_of_its_attempt() -> None:
    async def looks(ctx: Context, proceed: Next) -> object:
        log.append(f"{ctx.job.task} {ctx.attempt} {Context.current() is ctx}")
        return await proceed()

    app = MinimalApp(MinimalTask(_on_loop, name="task"), middlewares=[looks])
    await app.enqueue("task")
    await app.drain()
    assert log == ["task 1 True", "handler"]
