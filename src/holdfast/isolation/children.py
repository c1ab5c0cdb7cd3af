"""In the worker: its child processes. Each runs one attempt at a time and is used again.

There is at most one for each slot. A child is started when an attempt needs one and none is idle; children with another
memory limit do not count as idle for it. A child that died, was killed or is used up is replaced by the next attempt
that needs one. After a start that failed, the next start for the same task waits: the jobs keep their slots meanwhile,
so that a module that cannot be imported does not keep the processors busy. Only a few children start at the same time:
a hundred that import at once would take so long that each of them fails. An attempt that waits for its turn takes a
child that becomes idle before.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from holdfast.isolation.frames import ChildSetup, TaskPlace
from holdfast.isolation.process import HandlerProcess
from holdfast.model.instants import Seconds
from holdfast.runtime import Runtime, call_later

START_TIMEOUT_S: Seconds = 60.0
"""Importing the modules and entering the lifespan may take this long."""
END_TIMEOUT_S: Seconds = 2.5
"""An idle child may take this long to leave its lifespan when the worker stops. Then it is killed."""
KILLED_TIMEOUT_S: Seconds = 5.0
"""A killed process ends within this time, unless the kernel cannot end it."""
FIRST_PAUSE_S: Seconds = 0.1
MAX_PAUSE_S: Seconds = 5.0
"""Time before the next start for a task, after one that failed; it doubles."""
MAX_STARTING = max(4, os.cpu_count() or 1)
"""This many children start at the same time."""
TURN_S: Seconds = 5.0
"""A start that takes longer does not keep others waiting: it may be a module that waits for something."""

_logger = logging.getLogger("holdfast.isolation")


class ChildSource(Protocol):
    """What a child is started with. It is asked when one is started."""

    def environment(self) -> Mapping[str, str]: ...
    def setup(self, task: TaskPlace, memory_limit: int | None) -> ChildSetup: ...


class HandlerProcesses:
    """The children of one worker. Used on its event loop."""

    def __init__(self, runtime: Runtime, source: ChildSource, most: Callable[[], int]) -> None:
        self._runtime = runtime
        self._source = source
        self._most = most
        self._idle: list[HandlerProcess] = []
        self._all: set[HandlerProcess] = set()
        self._leaving: set[HandlerProcess] = set()
        """Those of `_all` that end, because they are not needed any more."""
        self._failures: dict[str, int] = {}
        """By task: starts that failed, since the last one that did not."""
        self._starting = 0
        self._changed = asyncio.Event()
        """A child is idle, or another one may start. Replaced when it is set."""

    async def take(self, task: TaskPlace, memory_limit: int | None) -> HandlerProcess:
        """An idle child, or a new one. `ProcessGone`: it cannot start. `TimeoutError`: that takes too long."""
        process = self._take_idle(memory_limit)
        if process is None and (failures := self._failures.get(task.name, 0)):
            await self._runtime.sleep(min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 10)))
            process = self._take_idle(memory_limit)
        while process is None and self._starting >= MAX_STARTING:
            await self._changed.wait()  # no limit: each start gives up its turn
            process = self._take_idle(memory_limit)
        if process is not None:
            return process
        while self._idle and len(self._all) - len(self._leaving) >= self._most():
            self._end(self._idle.pop(0))
        return await self._start(task, memory_limit)

    def _take_idle(self, memory_limit: int | None) -> HandlerProcess | None:
        for process in [one for one in reversed(self._idle) if one.memory_limit == memory_limit]:
            self._idle.remove(process)
            if process.is_usable:
                return process
            self._end(process)
        return None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def give_back(self, process: HandlerProcess) -> None:
        """Its call has ended, or was given up."""
        if process.is_usable:
            self._idle.append(process)
            self._wake()
        else:
            self._end(process)

    async def _start(self, task: TaskPlace, memory_limit: int | None) -> HandlerProcess:
        has_turn = True

        def end_turn() -> None:
            nonlocal has_turn
            if has_turn:
                has_turn = False
                self._starting -= 1
                self._wake()

        process: HandlerProcess | None = None
        self._starting += 1
        timer = call_later(TURN_S, end_turn)
        try:
            setup = self._source.setup(task, memory_limit)
            process = HandlerProcess(self._runtime, setup, self._source.environment(), self._on_end)
            self._all.add(process)
            async with asyncio.timeout(START_TIMEOUT_S):
                await process.connect()
        except BaseException as error:
            if isinstance(error, Exception):
                self._failures[task.name] = self._failures.get(task.name, 0) + 1
            if process is not None:
                process.kill()
                self._end(process)
            raise
        finally:
            timer.cancel()
            end_turn()
        self._failures.pop(task.name, None)
        return process

    def _on_end(self, process: HandlerProcess) -> None:
        self._all.discard(process)
        self._leaving.discard(process)
        if process in self._idle:
            self._idle.remove(process)

    def _end(self, process: HandlerProcess) -> None:
        """Let a child end that is not needed any more, or that has ended."""
        if process in self._all:
            self._leaving.add(process)
        process.close()
        self._runtime.spawn(self._wait_for_end(process), name="holdfast end of a handler process")

    async def _wait_for_end(self, process: HandlerProcess) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await process.ended.wait()
        process.kill()
        try:
            async with asyncio.timeout(KILLED_TIMEOUT_S):
                await process.ended.wait()
        except TimeoutError:
            _logger.error("The process %d of a handler was killed and has not ended.", process.pid)
        process.close()

    async def kill_busy(self) -> None:
        """Kill the children that run a handler, and wait for their end. The idle ones begin to end."""
        for process in self._idle:
            process.close()
        busy = self._all.difference(self._idle)
        for process in busy:
            process.kill()
        await self._wait_for(busy)

    async def end_all(self) -> None:
        """Wait for the end of all children. A child that does not end in time is killed."""
        self._idle = []
        await self._wait_for(set(self._all))

    async def _wait_for(self, processes: set[HandlerProcess]) -> None:
        waits = [
            self._runtime.spawn(self._wait_for_end(process), name="holdfast end of a handler process")
            for process in processes
        ]
        if waits:
            await asyncio.wait(waits)
