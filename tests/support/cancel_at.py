"""Raises a CancelledError at one chosen await of the tasks of a runtime: at the first one, the second one, and so on.

A test runs the same scenario once for each await. `before` is called there, such as to cancel the worker itself.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

from minimal_app import ShortSleepRuntime

from holdfast.engines.memory import MemoryEngine
from holdfast.model.command import A, Command

T = TypeVar("T")


class AwaitingEngine(MemoryEngine):
    """A memory engine whose calls suspend twice: before a command is carried out, and before it is answered."""

    async def perform(self, command: Command[A]) -> A:
        await asyncio.sleep(0)
        answer = await super().perform(command)
        await asyncio.sleep(0)
        return answer


class CancellingRuntime(ShortSleepRuntime):
    """Counts the awaits of all tasks whose name `counts` accepts. At number `at`, `act` decides what happens."""

    def __init__(self, at: int, counts: Callable[[str], bool]) -> None:
        super().__init__()
        self.at = at
        self.count = 0
        self._counts = counts
        self.where = ""
        """The task and the line where it happened; empty: the scenario has fewer awaits."""
        self.act: Callable[[], BaseException | None] = asyncio.CancelledError
        """Returns the error to raise at that await, or None."""

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> "asyncio.Task[T]":
        if self._counts(name):
            task = super().spawn(self._watched(coro, name), name=name)
            task.add_done_callback(lambda _: coro.close())  # the task may be cancelled before it begins
            return task
        return super().spawn(coro, name=name)

    async def _watched(self, coro: Coroutine[Any, Any, T], name: str) -> T:
        answer: T = await self.step_through(coro, name)
        return answer

    @coroutine
    def step_through(self, coro: Any, name: str) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        while True:
            try:
                waits_for = coro.send(None) if error is None else coro.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            self.count += 1
            if self.count == self.at:
                self.where = f"{name}: {_innermost(coro)}"
                error = self.act()
                if error is not None:
                    if waits_for is not None:
                        waits_for._asyncio_future_blocking = False  # the task does not wait for it any more
                    continue
            try:
                yield waits_for
            except BaseException as thrown:
                error = thrown


def _innermost(coro: Any) -> str:
    """The line at which a coroutine waits."""
    where = ""
    while coro is not None and getattr(coro, "cr_frame", None) is not None:
        where = f"{coro.cr_code.co_qualname}:{coro.cr_frame.f_lineno}"
        coro = coro.cr_await
    return where
