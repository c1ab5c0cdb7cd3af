"""A connection with a thread that runs all waiting commands in one batch.

While a batch is in progress, the commands of the next one queue up. There is no timer: the busier the store is, the
larger the batches are.

A blocking caller that finds the connection idle runs a short command in its own thread, because two changes of threads
take longer than the command itself. There a signal handler can raise an error at any line, such as KeyboardInterrupt:
inside a transaction, or between the commit and the notifications. Unless such a call has an answer or a refusal, the
thread of the connection ends what may be left open (`recover`) and wakes all subscribers.
"""

import asyncio
import logging
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from enum import Enum, auto
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from holdfast.engines.topics import EVERY_TOPIC
from holdfast.errors import EngineUnavailable, HoldfastError, OutcomeUnknown
from holdfast.model.command import Command
from holdfast.runtime import Runtime

log = logging.getLogger("holdfast")

MAX_BATCH = 1_000
"""Commands in one transaction, so that it holds the gate for tens of milliseconds and not longer."""


class CommandResult(NamedTuple):
    """The result of one command: an answer or an error, and the topics to notify."""

    answer: Any
    error: BaseException | None
    topics: frozenset[str]


class CommandRunner(Protocol):
    """What carries out the commands, such as a connection that writes: used by one thread at a time."""

    def run(self, commands: Sequence[Command[Any]]) -> list[CommandResult]: ...
    def recover(self) -> None: ...
    def shorten_waits(self) -> None: ...
    def close(self) -> None: ...


class PendingCommand(NamedTuple):
    """A command that waits for its turn, and where its result goes."""

    command: Command[Any]
    waiter: "asyncio.Future[Any] | Callable[[CommandResult], None]"


class ThreadRequest(Enum):
    """What the thread shall do besides running commands."""

    END = auto()
    RECOVER = auto()


class CommandThread:
    """Runs commands, in the order of arrival."""

    def __init__(
        self,
        open_runner: Callable[[], CommandRunner],
        notify: Callable[[frozenset[str]], None],
        runtime: Runtime,
        name: str,
        short: Container[type] = (),
    ) -> None:
        """`short`: the commands that a blocking caller may run in its own thread."""
        self._pending: SimpleQueue[PendingCommand | ThreadRequest] = SimpleQueue()
        self._open = open_runner
        self._notify = notify
        self._runtime = runtime
        self._short = short
        self._closed = False
        self._turn = runtime.lock()
        """Held by the thread that uses the runner."""
        self._calling_thread = 0
        """The caller that runs a command in its own thread, while it does."""
        self._must_recover = False
        """A call has left the runner in disorder, maybe."""
        self._batch_waits = False
        """The thread has commands and waits for its turn."""
        self._has_ended = False
        """The thread takes no command any more."""
        self.runner: CommandRunner | None = None
        self._opened: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = runtime.thread(self._main, name=name)
        failure = self._opened.get()  # no limit: to open a store has limits
        if failure is not None:
            raise failure

    async def perform(self, command: Command[Any]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._submit(PendingCommand(command, future))
        return await future

    def perform_now(self, command: Command[Any]) -> Any:
        """Block the calling thread until the command has its result."""
        idle = not (self._turn.locked() or self._batch_waits or self._closed) and self._pending.empty()
        result = self._run_here(command) if idle and type(command) in self._short else None
        if result is None:
            results: SimpleQueue[CommandResult] = SimpleQueue()
            self._submit(PendingCommand(command, results.put))
            result = results.get()  # no limit: the thread answers every command, and its waits have limits
        if result.error is not None:
            raise result.error
        return result.answer

    def _run_here(self, command: Command[Any]) -> CommandResult | None:
        """None: the thread of the connection has to run it, after what it has to do before."""
        caller = self._runtime.thread_id()
        with self._turn:
            if self._must_recover or self._closed or self.runner is None:
                return None
            self._calling_thread = caller  # no function is called before: a signal handler would wait for this thread
            complete = False
            try:
                (result,) = self._run(self.runner, [command])
                self._send(result.topics)
                complete = result.error is None or _is_refusal(result.error)
                return result
            finally:
                try:
                    if not complete:
                        self._must_recover = True
                        self._pending.put(ThreadRequest.RECOVER)
                finally:
                    self._calling_thread = 0

    def _submit(self, pending: PendingCommand) -> None:
        if self._closed:
            raise closed_error()
        if self._is_inside_call():
            raise EngineUnavailable(
                "A signal handler or a finalizer has used the store in the middle of a call of the same thread. "
                "Nothing was written. Let the handler set a flag or an event, and use the store after that."
            )
        self._pending.put(pending)
        if self._has_ended:
            self._refuse_late_commands()

    def _is_inside_call(self) -> bool:
        """True if a call of this thread has been interrupted in the middle of its own command, and waits for us."""
        return self._calling_thread == self._runtime.thread_id()

    def close(self) -> None:
        """Run the commands that were submitted, then stop."""
        if not self._closed:
            self._closed = True
            if self.runner is not None:
                self.runner.shorten_waits()
            self._pending.put(ThreadRequest.END)
            if not self._is_inside_call():
                self._thread.join()  # no limit: the commands have limits, and these are short from now on

    def _main(self) -> None:
        try:
            runner = self.runner = self._open()
        except BaseException as failure:
            self._opened.put(failure)
            return
        self._opened.put(None)
        while (first := self._pending.get()) is not ThreadRequest.END:  # no limit: `close` puts END
            self._batch_waits = True
            with self._turn:
                self._batch_waits = False
                if first is ThreadRequest.RECOVER:
                    self._recover(runner)
                    continue
                batch = self._batch_of(first)
                results = self._run(runner, [pending.command for pending in batch])
            self._deliver(batch, results)
        with self._turn:
            runner.close()
        self._has_ended = True
        self._refuse_late_commands()

    def _refuse_late_commands(self) -> None:
        """Answer the commands of callers that looked before `close` and submitted after it. From any thread."""
        with suppress(Empty):
            while True:
                pending = self._pending.get_nowait()
                if isinstance(pending, PendingCommand):
                    self._deliver([pending], [CommandResult(None, closed_error(), frozenset())])

    def _recover(self, runner: CommandRunner) -> None:
        try:
            runner.recover()
        except Exception:
            log.exception("A connection could not be brought back to order after an interrupted call.")
        self._must_recover = False
        self._send(frozenset({EVERY_TOPIC}))  # its command may have been committed without notifications

    def _run(self, runner: CommandRunner, commands: list[Command[Any]]) -> list[CommandResult]:
        """PF3. An error that the runner does not expect ends its batch and not the thread, which others wait for."""
        try:
            return runner.run(commands)
        except Exception as error:
            log.exception("A batch of %d commands failed.", len(commands))
            return [CommandResult(None, error, frozenset())] * len(commands)

    def _batch_of(self, first: PendingCommand) -> list[PendingCommand]:
        """The first command, and those that wait behind it."""
        batch = [first]
        while len(batch) < MAX_BATCH and not self._pending.empty():
            pending = self._pending.get()  # no limit: it is not empty, and no other thread takes from it
            if isinstance(pending, ThreadRequest):
                self._pending.put(pending)
                break
            batch.append(pending)
        return batch

    def _send(self, topics: frozenset[str]) -> None:
        if topics:
            try:
                self._notify(topics)
            except Exception:  # notifications are hints: an error in one must not keep an answer back
                log.exception("The notification of %s failed.", sorted(topics))

    def _deliver(self, batch: list[PendingCommand], results: list[CommandResult]) -> None:
        self._send(frozenset[str]().union(*(result.topics for result in results)))
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], CommandResult]]] = {}
        for (_, waiter), result in zip(batch, results, strict=True):
            if isinstance(waiter, asyncio.Future):
                by_loop.setdefault(waiter.get_loop(), []).append((waiter, result))
            else:
                waiter(result)
        for loop, answers in by_loop.items():
            with suppress(RuntimeError):  # the loop has been closed, and its tasks have ended
                loop.call_soon_threadsafe(_resolve, answers)


def _is_refusal(error: BaseException) -> bool:
    """True if the runner certainly wrote nothing. Other errors may come from a signal handler, or hide one."""
    return isinstance(error, HoldfastError) and not isinstance(error, EngineUnavailable | OutcomeUnknown)


def closed_error() -> EngineUnavailable:
    return EngineUnavailable("The store has been closed. Nothing was written. Open it again.")


def _resolve(answers: "list[tuple[asyncio.Future[Any], CommandResult]]") -> None:
    for future, result in answers:
        if future.done():
            continue  # its caller was cancelled
        if result.error is not None:
            future.set_exception(result.error)
        else:
            future.set_result(result.answer)
