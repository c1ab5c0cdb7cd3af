"""Blocking twins: each async method has one, none of them ever stops an event loop, and threads may use all of them."""

import asyncio
import errno
import inspect
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
from manual_worker import succeed

from holdfast import App, BlockingCall, Client, Control, EngineUnavailable, Handle, Task
from holdfast.blocking import CallerLoop, LoopThread, move_to_loop, run_coroutine
from holdfast.runtime import SystemRuntime

WITH_TWINS: list[type] = [App, Task, Handle, Client, Control]


@pytest.fixture
def jobs() -> Iterator[App[object]]:
    app = App("memory://")
    yield app
    app.close()


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    loop_thread = LoopThread(SystemRuntime())
    yield loop_thread
    loop_thread.close()


def async_methods(cls: type) -> list[str]:
    return [name for name, member in vars(cls).items() if inspect.iscoroutinefunction(member) and name[0] == "a"]


@pytest.mark.parametrize("cls", WITH_TWINS, ids=lambda cls: cls.__name__)
def test_every_public_async_method_has_its_blocking_twin(cls: type) -> None:
    names = async_methods(cls)
    assert names
    for name in names:
        twin = getattr(cls, name[1:])
        assert getattr(twin, "__twin__", None) == name, f"{cls.__name__}.{name[1:]} is not blocking({name})"
        assert twin.__doc__ == getattr(cls, name).__doc__
        assert inspect.signature(twin) == inspect.signature(getattr(cls, name))


@pytest.mark.parametrize("cls", WITH_TWINS, ids=lambda cls: cls.__name__)
def test_every_public_async_method_is_named_with_an_a(cls: type) -> None:
    public = [n for n, m in vars(cls).items() if inspect.iscoroutinefunction(m) and not n.startswith("_")]
    assert public == async_methods(cls)


def test_a_blocking_call_on_a_running_loop_is_refused_and_names_its_twin(jobs: App[object]) -> None:
    @jobs.task
    def resize() -> None: ...

    async def on_a_loop() -> list[BlockingCall]:
        calls: list[Callable[[], object]] = [
            resize.enqueue,
            resize.request,
            resize.call,
            resize.handle("a").result,
            jobs.control.queues,
            jobs.open,
            jobs.__enter__,
        ]
        refused = []
        for call in calls:
            with pytest.raises(BlockingCall) as error:
                call()
            refused.append(error.value)
        return refused

    refused = asyncio.run(on_a_loop())
    assert [error.twin for error in refused] == [
        "aenqueue",
        "arequest",
        "acall",
        "aresult",
        "aqueues",
        "aopen",
        "aopen",
    ]
    assert "await aenqueue()" in str(refused[0])
    assert jobs.control.queues() == []


async def test_a_switch_allows_blocking_calls_on_a_loop(jobs: App[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ALLOW_BLOCKING", "1")

    @jobs.task
    def resize() -> int:
        return 3

    handle = resize.enqueue()
    await succeed(jobs, resize, 3)
    assert handle.result() == 3


def test_without_waiting_a_blocking_call_stays_in_its_thread(jobs: App[object]) -> None:
    where: list[int] = []

    @jobs.task
    def note() -> None:
        where.append(threading.get_ident())

    jobs.open()
    before = set(threading.enumerate())
    note.enqueue()
    note.call()
    assert where == [threading.get_ident()]
    assert set(threading.enumerate()) <= before


def test_many_threads_share_one_portal(jobs: App[object]) -> None:
    @jobs.task
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    before = set(threading.enumerate())
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(double.call, range(200)))
    new = set(threading.enumerate()) - before

    assert answers == [2 * n for n in range(200)]
    assert [thread.name for thread in new] == ["holdfast-loop"]


async def test_many_threads_enqueue_and_wait_at_once(jobs: App[object]) -> None:
    @jobs.task
    def double(n: int) -> int:
        return 2 * n

    handles: list[Handle[int]] = []
    with ThreadPoolExecutor(8) as pool:
        handles += pool.map(double.enqueue, range(100))
        waits = [pool.submit(handle.result, timeout=20) for handle in handles[:8]]

        for _ in handles:
            await succeed(jobs, double, 0)
        assert [wait.result() for wait in waits] == [0] * 8
    assert len({handle.id for handle in handles}) == 100


# The loop thread


async def hop(value: Any) -> Any:
    await move_to_loop()
    await asyncio.sleep(0)
    return value


def test_a_coroutine_moves_only_where_it_has_to_wait(loop_thread: LoopThread) -> None:
    threads: list[int] = []

    async def travel() -> str:
        threads.append(threading.get_ident())
        await move_to_loop()
        threads.append(threading.get_ident())
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await move_to_loop()
        return "there"

    assert run_coroutine(travel(), lambda: loop_thread) == "there"
    assert threads[0] == threading.get_ident()
    assert threads[1] not in (0, threading.get_ident())


def test_what_goes_wrong_comes_back_to_the_caller(loop_thread: LoopThread) -> None:
    class Odd(BaseException):
        pass

    async def fails(error: BaseException) -> None:
        await move_to_loop()
        raise error

    for error in (ValueError("x"), Odd("y"), SystemExit(3)):
        with pytest.raises(type(error)) as caught:
            run_coroutine(fails(error), lambda: loop_thread)
        assert caught.value is error
    assert run_coroutine(hop("still alive"), lambda: loop_thread) == "still alive"


def test_context_variables_of_the_caller_go_with_the_call(loop_thread: LoopThread) -> None:
    trace: ContextVar[str] = ContextVar("trace", default="none")

    async def look() -> str:
        await move_to_loop()
        return trace.get()

    trace.set("mine")
    assert run_coroutine(look(), lambda: loop_thread) == "mine"


def test_a_coroutine_that_waits_without_moving_is_a_mistake(loop_thread: LoopThread) -> None:
    class YieldsObject:
        def __await__(self) -> Generator[object, None, None]:
            yield object()

    async def stays() -> None:
        await YieldsObject()

    with pytest.raises(RuntimeError, match="without moving"):
        run_coroutine(stays(), lambda: loop_thread)


def test_a_loop_thread_that_closes_answers_everybody(loop_thread: LoopThread) -> None:
    begun = threading.Event()

    async def waits_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(loop_thread.run, waits_for_ever())
        assert begun.wait(20)
        loop_thread.close()
        with pytest.raises(EngineUnavailable):
            call.result(20)
    with pytest.raises(EngineUnavailable):
        loop_thread.run(hop(1))


def test_a_loop_thread_cannot_wait_for_itself(loop_thread: LoopThread) -> None:
    async def asks_again() -> None:
        loop_thread.run(hop(1))

    with pytest.raises(BlockingCall):
        loop_thread.run(asks_again())


class InterruptedLock:
    """A lock whose second acquire is interrupted, as by Ctrl-C."""

    def __init__(self, at: Callable[[], object]) -> None:
        self.taken = 0
        self.at = at

    def acquire(self) -> bool:
        self.taken += 1
        if self.taken == 2:
            self.at()
            raise KeyboardInterrupt
        return True

    def release(self) -> None: ...


def test_an_interrupted_wait_gives_up_the_call(loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def waits() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(loop_thread._runtime, "lock", lambda: InterruptedLock(begun.wait))
    with pytest.raises(KeyboardInterrupt):
        loop_thread.run(waits())
    assert ended.wait(20)


def test_a_call_interrupted_before_it_began_is_dropped(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(loop_thread._runtime, "lock", lambda: InterruptedLock(lambda: None))
        for _ in range(50):
            with pytest.raises(KeyboardInterrupt):
                loop_thread.run(hop(1))
    assert loop_thread.run(hop(2)) == 2
    loop_thread.close()
    assert loop_thread._calls == set()


# PF1
def test_a_loop_thread_that_cannot_start_is_an_error_and_no_endless_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "Runner", refuse)
    with pytest.raises(EngineUnavailable, match=r"could not start.*Too many open files"):
        LoopThread(SystemRuntime())


def test_closing_a_loop_thread_waits_a_limited_time_and_names_the_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.blocking.CLOSE_TIMEOUT_S", 0.1)
    loop_thread = LoopThread(SystemRuntime())
    started, finish = threading.Event(), threading.Event()

    async def stubborn() -> None:
        started.set()
        finish.wait(30)  # blocks the loop: no cancellation gets through

    caller = threading.Thread(target=loop_thread.run, args=(stubborn(),))
    caller.start()
    assert started.wait(30)
    loop_thread.close()
    (record,) = caplog.records
    assert "waits for stubborn" in record.message
    finish.set()
    caller.join(30)
    loop_thread.close()


# A loop that the caller runs


@pytest.fixture
def caller_loop() -> Iterator[CallerLoop]:
    others = tuple(set(signal.valid_signals()) - {signal.SIGINT, signal.SIGALRM})  # SIGALRM: the time limit of the test
    made = CallerLoop(SystemRuntime())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.runtime._SIGNALS_BESIDE_INTERRUPT", others)
        yield made
    made.close()


def test_a_caller_runs_a_coroutine_in_its_own_thread(caller_loop: CallerLoop) -> None:
    async def thread() -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    for _ in range(2):
        assert caller_loop.reserve()
        assert caller_loop.run(thread()) == threading.get_ident()


def test_two_threads_do_not_run_one_caller_loop(caller_loop: CallerLoop) -> None:
    assert caller_loop.reserve()
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(caller_loop.reserve).result(30)
        caller_loop.run(asyncio.sleep(0))
        assert pool.submit(caller_loop.reserve).result(30)
        pool.submit(caller_loop.run, asyncio.sleep(0)).result(30)


def test_an_interrupted_caller_ends_what_its_call_has_begun(caller_loop: CallerLoop) -> None:
    ended = []

    async def call() -> None:
        asyncio.get_running_loop().call_soon(interrupt)
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("call")

    def interrupt() -> None:
        raise KeyboardInterrupt

    assert caller_loop.reserve()
    with pytest.raises(KeyboardInterrupt):
        caller_loop.run(call())
    assert ended == ["call"]
    assert caller_loop.reserve()  # it can be used again
    caller_loop.run(asyncio.sleep(0))


def test_ctrl_c_raises_no_error_inside_a_call_of_the_main_thread(caller_loop: CallerLoop) -> None:
    """It could appear inside a driver that is written in C, and crash the process."""
    steps = []

    async def call() -> None:
        signal.raise_signal(signal.SIGINT)
        steps.append("goes on")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise

    assert caller_loop.reserve()
    with pytest.raises(KeyboardInterrupt):
        caller_loop.run(call())
    assert steps == ["goes on", "cancelled"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert caller_loop.reserve()  # it can be used again
    caller_loop.run(asyncio.sleep(0))


def test_ctrl_c_ends_a_call_of_the_main_thread_that_waits(caller_loop: CallerLoop) -> None:
    assert caller_loop.reserve()
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        caller_loop.run(asyncio.sleep(3600))
    timer.join(30)


def test_a_second_ctrl_c_during_the_end_of_a_call_leaves_the_loop_usable(caller_loop: CallerLoop) -> None:
    async def call() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.sleep(30)
        finally:
            asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)

    assert caller_loop.reserve()
    with pytest.raises(KeyboardInterrupt):
        caller_loop.run(call())
    assert caller_loop.reserve()
    assert caller_loop.run(asyncio.sleep(0.01, "the next answer")) == "the next answer"


def test_ctrl_c_is_not_lost_if_the_call_has_its_answer(caller_loop: CallerLoop) -> None:
    async def call() -> str:
        signal.raise_signal(signal.SIGINT)
        return "answer"

    assert caller_loop.reserve()
    with pytest.raises(KeyboardInterrupt):
        caller_loop.run(call())
    assert caller_loop.reserve()
    assert caller_loop.run(asyncio.sleep(0.01, "the next answer")) == "the next answer"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_main_thread_runs_no_loop_while_the_program_has_a_signal_handler(
    caller_loop: CallerLoop, number: signal.Signals
) -> None:
    before = signal.signal(number, lambda *_: None)
    try:
        assert not caller_loop.reserve()
        with ThreadPoolExecutor(1) as pool:  # handlers run in the main thread only
            assert pool.submit(caller_loop.reserve).result(30)
            pool.submit(caller_loop.run, asyncio.sleep(0)).result(30)
    finally:
        signal.signal(number, before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_other_threads_can_wake_a_caller_loop_after_a_forked_child_has_ended(caller_loop: CallerLoop) -> None:
    """Parent and child share the selector of the loop: what the child removes from it is lost for the parent."""
    late: list[bool] = []

    async def wait_for_another_thread() -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(10, late.append, True)
        await loop.run_in_executor(None, threading.Event().wait, 0.05)
        timer.cancel()

    assert caller_loop.reserve()
    caller_loop.run(asyncio.sleep(0))
    child = os.fork()
    if not child:
        caller_loop.close()  # the collector, too, closes a loop that it finds
        os._exit(0)
    os.waitpid(child, 0)
    assert caller_loop.reserve()
    caller_loop.run(wait_for_another_thread())
    assert late == []


async def test_a_caller_loop_is_closed_by_the_thread_that_runs_it(caller_loop: CallerLoop) -> None:
    began, go_on = threading.Event(), threading.Event()

    async def call() -> str:
        began.set()
        await asyncio.to_thread(go_on.wait, 30)
        return "answer"

    def run() -> str:
        assert caller_loop.reserve()
        return caller_loop.run(call())

    running = asyncio.create_task(asyncio.to_thread(run))
    assert await asyncio.to_thread(began.wait, 30)
    caller_loop.close()
    assert not caller_loop.reserve()
    go_on.set()
    assert await running == "answer"
    assert caller_loop._loop is None


def test_without_a_file_descriptor_a_caller_moves_to_the_loop_thread(
    caller_loop: CallerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("holdfast.blocking.asyncio.new_event_loop", refuse)
    assert not caller_loop.reserve()
    monkeypatch.undo()
    assert caller_loop.reserve()
    caller_loop.run(asyncio.sleep(0))
