"""A blocking call that finds the connection idle runs its command in its own thread, and may be interrupted there."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually_now
from interrupts import interrupt_at
from sqlite_store import a_claim, job, store, writer_of

from holdfast.engines.command_thread import CommandResult, CommandThread
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.topics import EVERY_TOPIC
from holdfast.errors import EngineUnavailable
from holdfast.model.command import Command
from holdfast.model.job import JobKey
from holdfast.model.observe import Audit, Get, Now
from holdfast.model.operate import Pause, Resume
from holdfast.model.produce import Enqueue
from holdfast.model.work import Exchange
from holdfast.runtime import SystemRuntime


def enqueue(job_id: str) -> Enqueue:
    return Enqueue(groups=(job(job_id),))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    opened = store(tmp_path / "x.db", durability="none")
    opened.open_now()
    yield opened
    opened.close_now()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[SqliteEngine]:
    """Stands for another process. It does not wait long for the gate."""
    opened = store(tmp_path / "x.db", durability="none", busy_timeout=1.0)
    opened.open_now()
    yield opened
    opened.close_now()


def stored(engine: SqliteEngine, job_id: str) -> bool:
    return engine.perform_now(Get(jobs=(JobKey("q", job_id),))).jobs[0] is not None


def test_a_blocking_enqueue_runs_in_the_thread_of_its_caller(engine: SqliteEngine) -> None:
    threads: list[int] = []
    writer_of(engine).connection.set_trace_callback(lambda statement: threads.append(threading.get_ident()))
    engine.perform_now(enqueue("a"))
    assert set(threads) == {threading.get_ident()}


def test_a_command_whose_work_may_go_on_after_it_runs_in_the_thread_of_the_writer(engine: SqliteEngine) -> None:
    threads: list[int] = []
    writer_of(engine).connection.set_trace_callback(lambda statement: threads.append(threading.get_ident()))
    engine.perform_now(Pause(queue="q"))
    assert threads
    assert threading.get_ident() not in threads


def test_an_enqueue_that_is_interrupted_anywhere_blocks_no_other_process(
    engine: SqliteEngine, other: SqliteEngine
) -> None:
    """The job is there or not; the gate is free, and the store can be used."""
    outcomes = set()
    number = 0
    while interrupt_at(number, partial(engine.perform_now, enqueue(f"{number}"))):
        other.perform_now(enqueue(f"other-{number}"))
        outcomes.add(stored(other, f"{number}"))
        engine.perform_now(Resume(queue="q"))  # behind the recovery, in the writer's thread; then that one is idle
        number += 1
    assert number > 100
    assert outcomes == {True, False}
    engine.perform_now(enqueue("last"))
    assert engine.perform_now(Audit()).problems == ()


def test_a_read_that_is_interrupted_anywhere_leaves_no_open_transaction(engine: SqliteEngine) -> None:
    engine.perform_now(enqueue("a"))
    number = 0
    while interrupt_at(number, lambda: stored(engine, "a")):
        assert stored(engine, "a")
        number += 1
    assert engine._reader is not None
    reader: Any = engine._reader.runner
    assert not reader.connection.in_transaction


def test_a_signal_handler_that_uses_the_store_anywhere_in_a_call_never_waits_for_that_call(
    engine: SqliteEngine,
) -> None:
    def handler() -> None:
        with suppress(EngineUnavailable):  # it is refused in the middle of the call
            engine.perform_now(enqueue(f"handler-{number}"))

    def call() -> None:
        more.append(interrupt_at(number, partial(engine.perform_now, enqueue(f"{number}")), handler))

    more: list[bool] = []
    number = 0
    while not more or more[-1]:
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), f"the handler waits at place {number}"
        assert stored(engine, f"{number}")
        number += 1
    assert number > 100


def test_subscribers_are_woken_after_an_enqueue_that_was_interrupted_behind_its_commit(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = threading.Event()
    notify = engine._notify

    def on_notify(topics: frozenset[str]) -> None:
        if EVERY_TOPIC not in topics:
            raise KeyboardInterrupt
        notify(topics)
        woken.set()

    assert engine._writer is not None
    monkeypatch.setattr(engine._writer, "_notify", on_notify)
    with pytest.raises(KeyboardInterrupt):
        engine.perform_now(enqueue("a"))
    assert woken.wait(30)
    assert stored(engine, "a")


class Calls:
    """A runner that calls a function in the middle of a command."""

    def __init__(self) -> None:
        self.in_between: Callable[[], object] = lambda: None
        self.closed = threading.Event()

    def run(self, commands: Sequence[Command[Any]]) -> list[CommandResult]:
        self.in_between()
        return [CommandResult("the answer", None, frozenset())] * len(commands)

    def recover(self) -> None: ...
    def shorten_waits(self) -> None: ...

    def close(self) -> None:
        self.closed.set()


def test_a_signal_handler_that_uses_the_store_in_the_middle_of_a_call_is_refused() -> None:
    """The call waits for its handler, so the handler must not wait for the call."""
    runner = Calls()
    thread = CommandThread(lambda: runner, lambda topics: None, SystemRuntime(), "test writer", {Now})

    def handler() -> None:
        with pytest.raises(EngineUnavailable, match=r"signal handler.*Nothing was written"):
            thread.perform_now(Now())

    runner.in_between = handler
    assert thread.perform_now(Now()) == "the answer"
    thread.close()


def test_no_other_caller_uses_the_connection_before_an_interrupted_call_is_cleaned_up() -> None:
    class Turn:
        """The lock of a thread. It looks free, as for a caller that looked just before another one took it."""

        def __init__(self) -> None:
            self._lock = threading.Lock()

        def locked(self) -> bool:
            return False

        def __enter__(self) -> None:
            if threading.current_thread() is second:
                second_waits.set()
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    runner = Calls()
    thread = CommandThread(lambda: runner, lambda topics: None, SystemRuntime(), "test writer", {Now})
    second = threading.Thread(target=thread.perform_now, args=(Now(),), daemon=True)
    second_waits, steps = threading.Event(), list[str]()

    def interrupted_call() -> None:
        runner.in_between = lambda: steps.append("second call")
        second.start()
        assert second_waits.wait(30)
        second.join(0.1)  # it waits for the lock
        raise KeyboardInterrupt

    runner.in_between = interrupted_call
    runner.recover = lambda: steps.append("recover")  # type: ignore[method-assign]
    thread._turn = Turn()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        thread.perform_now(Now())
    second.join(30)
    assert steps == ["recover", "second call"]
    thread.close()


def test_a_command_that_is_submitted_while_the_store_is_closed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = CommandThread(Calls, lambda topics: None, SystemRuntime(), "test writer")
    errors: list[BaseException] = []

    def close_meanwhile() -> bool:
        """Between the look of `_submit` and its `put`."""
        monkeypatch.undo()
        closing = threading.Thread(target=thread.close)
        closing.start()
        closing.join(30)
        return False

    def call() -> None:
        try:
            thread.perform_now(Now())
        except EngineUnavailable as error:
            errors.append(error)

    monkeypatch.setattr(thread, "_is_inside_call", close_meanwhile)
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(30)
    assert [str(error) for error in errors] == ["The store has been closed. Nothing was written. Open it again."]


def test_a_signal_handler_can_close_the_store_in_the_middle_of_a_call() -> None:
    runner = Calls()
    thread = CommandThread(lambda: runner, lambda topics: None, SystemRuntime(), "test writer", {Now})
    runner.in_between = thread.close
    assert thread.perform_now(Now()) == "the answer"
    assert runner.closed.wait(30)
    with pytest.raises(EngineUnavailable, match="closed"):
        thread.perform_now(Now())


def test_commands_of_other_threads_wait_for_a_call_and_then_run_in_one_batch() -> None:
    runner = Calls()
    thread = CommandThread(lambda: runner, lambda topics: None, SystemRuntime(), "test writer", {Now})
    began, go_on, sizes = threading.Event(), threading.Event(), []

    def run(commands: Sequence[Command[Any]]) -> list[CommandResult]:
        sizes.append(len(commands))
        began.set()
        assert go_on.wait(30)
        return [CommandResult(None, None, frozenset())] * len(commands)

    runner.run = run  # type: ignore[method-assign]
    callers = [threading.Thread(target=thread.perform_now, args=(Now(),), daemon=True) for _ in range(5)]
    callers[0].start()
    assert began.wait(30)
    for caller in callers[1:]:
        caller.start()
    # The thread has taken the first of the four, and waits for its turn.
    eventually_now(lambda: thread._batch_waits and thread._pending.qsize() == 3, "four commands")
    go_on.set()
    for caller in callers:
        caller.join(30)
    assert sizes == [1, 4]
    thread.close()


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Python drops an error of a closing generator
def test_an_exchange_that_is_interrupted_anywhere_blocks_no_other_process(
    engine: SqliteEngine, other: SqliteEngine
) -> None:
    number = 0
    while interrupt_at(number, lambda: engine.perform_now(Exchange(claim=a_claim("w", 1)))):
        other.perform_now(enqueue(f"{number}"))
        engine.perform_now(Resume(queue="q"))
        number += 1
    assert number > 100
    assert engine.perform_now(Audit()).problems == ()
