"""A thread that owns a connection and runs all waiting commands in one batch.

While a batch is in progress, the commands of the next one queue up. There is no timer: the busier the store is, the
larger the batches are.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from holdfast.engines.sqlite.store import CommandResult
from holdfast.errors import EngineUnavailable
from holdfast.model.command import Command
from holdfast.runtime import Runtime

log = logging.getLogger("holdfast")

MAX_BATCH = 1_000
"""Commands in one transaction, so that it holds the gate for tens of milliseconds and not longer."""


class CommandRunner(Protocol):
    """A `Writer` or a `Reader`."""

    def run(self, commands: Sequence[Command[Any]]) -> list[CommandResult]: ...
    def shorten_waits(self) -> None: ...
    def close(self) -> None: ...


class PendingCommand(NamedTuple):
    """A command that waits for its turn, and where its result goes."""

    command: Command[Any]
    waiter: "asyncio.Future[Any] | Callable[[CommandResult], None]"


class CommandThread:
    """Runs commands on a thread of its own, in the order of arrival."""

    def __init__(
        self,
        open_runner: Callable[[], CommandRunner],
        notify: Callable[[frozenset[str]], None],
        runtime: Runtime,
        name: str,
    ) -> None:
        self._pending: SimpleQueue[PendingCommand | None] = SimpleQueue()
        self._open = open_runner
        self._notify = notify
        self._closed = False
        self.runner: CommandRunner | None = None
        """Made and used by the thread alone, except `shorten_waits`."""
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
        results: SimpleQueue[CommandResult] = SimpleQueue()
        self._submit(PendingCommand(command, results.put))
        result = results.get()  # no limit: the thread answers every command, and its waits have limits
        if result.error is not None:
            raise result.error
        return result.answer

    def _submit(self, pending: PendingCommand) -> None:
        if self._closed:
            raise EngineUnavailable("The store has been closed. Nothing was written. Open it again.")
        self._pending.put(pending)

    def close(self) -> None:
        """Run the commands that were submitted, then stop."""
        if not self._closed:
            self._closed = True
            if self.runner is not None:
                self.runner.shorten_waits()
            self._pending.put(None)
            self._thread.join()  # no limit: the commands have limits, and these are short from now on

    def _main(self) -> None:
        try:
            runner = self.runner = self._open()
        except BaseException as failure:
            self._opened.put(failure)
            return
        self._opened.put(None)
        try:
            while (batch := self._next_batch()) is not None:
                self._deliver(batch, self._run(runner, [pending.command for pending in batch]))
        finally:
            runner.close()

    def _run(self, runner: CommandRunner, commands: list[Command[Any]]) -> list[CommandResult]:
        """PF3. An error that the runner does not expect ends its batch and not the thread, which others wait for."""
        try:
            return runner.run(commands)
        except Exception as error:
            log.exception("A batch of %d commands failed.", len(commands))
            return [CommandResult(None, error, frozenset())] * len(commands)

    def _next_batch(self) -> list[PendingCommand] | None:
        first = self._pending.get()  # no limit: `close` puts None
        if first is None:
            return None
        batch = [first]
        while len(batch) < MAX_BATCH and not self._pending.empty():
            pending = self._pending.get()  # no limit: it is not empty, and no other thread takes from it
            if pending is None:
                self._pending.put(None)
                break
            batch.append(pending)
        return batch

    def _deliver(self, batch: list[PendingCommand], results: list[CommandResult]) -> None:
        topics = frozenset[str]().union(*(result.topics for result in results))
        if topics:
            try:
                self._notify(topics)
            except Exception:  # notifications are hints: an error in one must not keep an answer back
                log.exception("The notification of %s failed.", sorted(topics))
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], CommandResult]]] = {}
        for (_, waiter), result in zip(batch, results, strict=True):
            if isinstance(waiter, asyncio.Future):
                by_loop.setdefault(waiter.get_loop(), []).append((waiter, result))
            else:
                waiter(result)
        for loop, answers in by_loop.items():
            with suppress(RuntimeError):  # the loop has been closed, and its tasks have ended
                loop.call_soon_threadsafe(_resolve, answers)


def _resolve(answers: "list[tuple[asyncio.Future[Any], CommandResult]]") -> None:
    for future, result in answers:
        if future.done():
            continue  # its caller was cancelled
        if result.error is not None:
            future.set_exception(result.error)
        else:
            future.set_result(result.answer)
