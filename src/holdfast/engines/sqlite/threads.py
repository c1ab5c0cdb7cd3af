"""A thread that owns a connection and takes everything that waits for it at once.

While one batch is under way the next gathers by itself: nobody waits for a timer, and the busier it is, the larger
the batches.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol

from holdfast.engines.sqlite.transactor import Done
from holdfast.errors import EngineUnavailable
from holdfast.model.command import Command
from holdfast.runtime import Runtime

log = logging.getLogger("holdfast")

MOST = 1_000


class Runner(Protocol):
    """A `Transactor` or a `Reader`."""

    def run(self, commands: Sequence[Command[Any]]) -> list[Done]: ...
    def close(self) -> None: ...


Tell = Callable[[Done], None]
Call = tuple[Command[Any], "asyncio.Future[Any] | Tell"]


class CommandThread:
    """Runs commands on a thread of its own, in the order they came."""

    def __init__(
        self, open_runner: Callable[[], Runner], ring: Callable[[frozenset[str]], None], runtime: Runtime, name: str
    ) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._open = open_runner
        self._ring = ring
        self._closed = False
        self.runner: Runner | None = None
        """Made on the thread, and the thread's own."""
        self._opened: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = runtime.thread(self._main, name=name)
        failure = self._opened.get()
        if failure is not None:
            raise failure

    async def perform(self, command: Command[Any]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._submit((command, future))
        return await future

    def perform_now(self, command: Command[Any]) -> Any:
        """Block the calling thread until it is done."""
        answers: SimpleQueue[Done] = SimpleQueue()
        self._submit((command, answers.put))
        done = answers.get()
        if done.error is not None:
            raise done.error
        return done.answer

    def _submit(self, call: Call) -> None:
        if self._closed:
            raise EngineUnavailable("The store has been closed. Nothing was written. Open it again.")
        self._calls.put(call)

    def close(self) -> None:
        """Finish what was handed over, then stop."""
        if not self._closed:
            self._closed = True
            self._calls.put(None)
            self._thread.join()

    def _main(self) -> None:
        try:
            runner = self.runner = self._open()
        except BaseException as failure:
            self._opened.put(failure)
            return
        self._opened.put(None)
        try:
            while (batch := self._next_batch()) is not None:
                done = runner.run([command for command, _ in batch])
                self._answer(batch, done)
        finally:
            runner.close()

    def _next_batch(self) -> list[Call] | None:
        first = self._calls.get()
        if first is None:
            return None
        batch = [first]
        while len(batch) < MOST and not self._calls.empty():
            call = self._calls.get()
            if call is None:
                self._calls.put(None)
                break
            batch.append(call)
        return batch

    def _answer(self, batch: list[Call], results: list[Done]) -> None:
        topics = frozenset[str]().union(*(done.topics for done in results))
        if topics:
            try:
                self._ring(topics)
            except Exception:  # bells are hints: a broken one must not keep an answer back
                log.exception("Ringing %s failed.", sorted(topics))
        loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Done]]] = {}
        for (_, waiter), done in zip(batch, results, strict=True):
            if isinstance(waiter, asyncio.Future):
                loops.setdefault(waiter.get_loop(), []).append((waiter, done))
            else:
                waiter(done)
        for loop, answers in loops.items():
            with suppress(RuntimeError):  # a loop that has been closed: nobody waits there any more
                loop.call_soon_threadsafe(_resolve, answers)


def _resolve(answers: "list[tuple[asyncio.Future[Any], Done]]") -> None:
    for future, done in answers:
        if future.done():
            continue  # the caller has gone away meanwhile
        if done.error is not None:
            future.set_exception(done.error)
        else:
            future.set_result(done.answer)
