"""What a test puts under an App: a clock that stands still, a memory engine that watches who calls it.

The App keeps its tasks, middleware, listeners and settings; only the store and the time are others. Time stands still
for the store and for everything that is decided by it. Code still takes real time, so a caller that waits with a limit
waits in real seconds, as does a handler with a timeout.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from holdfast.app import App
from holdfast.engine import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import UsageError
from holdfast.model.command import A, Answer, Command
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.operate import Amend
from holdfast.model.produce import Enqueue, EnqueueAnswer, GroupAccepted
from holdfast.model.work import Workers
from holdfast.runtime import SystemRuntime
from holdfast.testing.clock import FakeClock, FrozenRuntime, microseconds
from holdfast.testing.crash import CURRENT_WORKER
from holdfast.views import is_alive, moment

AHEAD = 2 * SECOND
"""How far ahead of the real clock a test begins, less a part of a second. So what the code under test makes of the real
clock, such as `at=datetime.now(UTC) + timedelta(hours=1)`, is not just too late for `clock.advance(hours=1)`."""

OnCommand = Callable[[Command[Any], Answer], None]
"""Told of each command that the store has carried out, on the thread that asked."""


def frozen_now() -> FrozenRuntime:
    """A clock that stands at the present, at a whole second."""
    return FrozenRuntime(wall=(SystemRuntime().wall() + AHEAD) // SECOND * SECOND)


class HarnessClock(FakeClock):
    """The time of the App under test. It moves when told, and by nothing else."""

    def __init__(self, engine: Engine, time: FrozenRuntime) -> None:
        super().__init__(engine)
        self.time = time
        self.on_advance: Callable[[], None] | None = None
        """Called after each move."""

    def advance(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Let this much time pass. From any thread, also from inside a handler."""
        if microseconds(seconds, minutes=minutes, hours=hours, days=days) < 0:
            raise ValueError("A FakeClock only goes forward. To play a clock that was set back, use `set_back`.")
        self.time.advance(seconds, minutes=minutes, hours=hours, days=days)
        if self.on_advance is not None:
            self.on_advance()

    def now(self) -> datetime:
        """What time it is, with its time zone."""
        return moment(self.time.wall())


class HarnessRuntime(SystemRuntime):
    """The App's runtime in a test: instants, ids and dice from the frozen one, waits in real seconds."""

    def __init__(self, time: FrozenRuntime) -> None:
        super().__init__()
        self.time = time

    def wall(self) -> int:
        return self.time.wall()

    def boot(self) -> int:
        return self.time.boot()

    def boot_id(self) -> str:
        return self.time.boot_id()

    def random(self) -> float:
        return self.time.random()

    def token_bytes(self, count: int) -> bytes:
        return self.time.token_bytes(count)


class HarnessEngine(MemoryEngine):
    """The memory engine, deaf to dead workers, and with a word for callers who would wait for ever."""

    def __init__(self, time: FrozenRuntime) -> None:
        super().__init__("memory://", time)
        self.working = False
        """Somebody runs jobs."""
        self.on_command: OnCommand | None = None
        self.simulated_workers: set[str] = set()
        """Names of workers that were only ever played."""

    def perform_now(self, command: Command[A]) -> A:
        simulated = CURRENT_WORKER.get(None)
        if simulated is not None:
            simulated.before(command)
        if not self.working and _asks_for_reply(command):
            self._refuse_to_wait(sure=simulated is not None)
        answer = super().perform_now(command)
        if self.on_command is not None:
            self.on_command(command, answer)
        if simulated is not None:
            simulated.after(command, answer)
        return answer

    def _refuse_to_wait(self, *, sure: bool) -> None:
        """A blocking caller stops the only thread that could run the job. A coroutine may have others beside it."""
        task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
        if not sure and (task is None or task.get_name() != "holdfast blocking call"):
            return
        answer = super().perform_now(Workers())
        if not any(is_alive(w, answer.at.wall) for w in answer.workers if w.worker not in self.simulated_workers):
            raise UsageError(
                "The job has not ended, and nothing in this test will run it: this would wait for ever. "
                "Call drain() first, or have a worker: `with jobs.worker():`."
            )


def _asks_for_reply(command: Command[Any]) -> bool:
    """Whether somebody wants to be told when a job ends."""
    match command:
        case Enqueue(groups=groups):
            return any(job.reply is not None for group in groups for job in group.jobs)
        case Amend(reply=reply):
            return reply is not None
    return False


def awaited_jobs(command: Command[Any], answer: Answer) -> set[JobKey]:
    """The jobs whose end somebody now waits for."""
    found: set[JobKey] = set()
    match command, answer:
        case Amend(queue=queue, ids=ids, reply=str()), _:
            found.update(JobKey(queue, each) for each in ids)
        case Enqueue(groups=groups), EnqueueAnswer(groups=said):
            for group, accepted in zip(groups, said, strict=True):
                if isinstance(accepted, GroupAccepted):
                    for job, got in zip(group.jobs, accepted.jobs, strict=True):
                        if job.reply is not None:
                            found.add(JobKey(job.queue, got.id))
    return found


@contextmanager
def swapped(app: App[Any], engine: HarnessEngine, runtime: HarnessRuntime) -> Iterator[None]:
    """Another store and another time under the App, until the end of the block, however it ends."""
    if isinstance(app.runtime, HarnessRuntime):
        raise UsageError(
            f"{app!r} is in a harness already. Use that one: in a test with the fixture `holdfast`, the fixture itself."
        )
    with app.swapped(engine, runtime):
        yield
