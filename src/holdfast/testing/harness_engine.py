"""What the harness gives to an App: a clock that stands still, and an engine that observes its callers.

The App keeps its tasks, middleware, listeners and settings; only the store and the time are replaced. Time stands still
for the store and for all that the store decides. Code still takes real time: a caller that waits with a timeout waits
in real seconds, and so does the timeout of a handler.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from holdfast.app import App
from holdfast.engine import Engine, RenewalConnection
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import Unsupported, UsageError
from holdfast.model.command import A, Answer, Command
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.operate import Amend
from holdfast.model.produce import Enqueue, EnqueueAnswer, GroupAccepted
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Heartbeat, HeartbeatAnswer, Renew, Renewal, RenewAnswer, Workers
from holdfast.runtime import SystemRuntime
from holdfast.testing.clock import FakeClock, FrozenRuntime, microseconds
from holdfast.testing.crash import CURRENT_WORKER
from holdfast.views import moment

START_AHEAD_US = 2 * SECOND
"""The clock of a test starts this much after the real clock, rounded down to a second. So if the code under test uses
the real clock, as in `at=datetime.now(UTC) + timedelta(hours=1)`, the job is due after `clock.advance(hours=1)`."""

OnCommand = Callable[[Command[Any], Answer], None]
"""Called with each command that the store has run, on the thread of its caller."""


def frozen_now() -> FrozenRuntime:
    """A clock that stands at the present, rounded to a second."""
    return FrozenRuntime(wall=(SystemRuntime().wall() + START_AHEAD_US) // SECOND * SECOND)


class HarnessClock(FakeClock):
    """The time of the App under test. Only the test moves it."""

    def __init__(self, engine: Engine, time: FrozenRuntime) -> None:
        super().__init__(engine)
        self.time = time
        self.on_advance: Callable[[], None] | None = None
        """Called after each move."""

    def advance(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Move the clock forward. Call from any thread, also inside a handler."""
        if microseconds(seconds, minutes=minutes, hours=hours, days=days) < 0:
            raise ValueError("A FakeClock only goes forward. To play a clock that was set back, use `set_back`.")
        self.time.advance(seconds, minutes=minutes, hours=hours, days=days)
        if self.on_advance is not None:
            self.on_advance()

    def now(self) -> datetime:
        """The current time, with its time zone."""
        return moment(self.time.wall())


class HarnessRuntime(SystemRuntime):
    """The App's runtime in a test: times, ids and random numbers are frozen, waits take real seconds."""

    def __init__(self, time: FrozenRuntime) -> None:
        self.time = time
        super().__init__()

    @property
    def clock_offset(self) -> int:
        return self.time.clock_offset

    @clock_offset.setter
    def clock_offset(self, value: int) -> None:
        self.time.clock_offset = value

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


class HarnessEngine(Engine):
    """An engine that refuses commands of dead workers, and calls that would wait for ever."""

    def observe(self) -> None:
        """Called by the constructors."""
        self.working = False
        """True while the harness runs jobs."""
        self.on_command: OnCommand | None = None
        self.simulated_workers: set[str] = set()
        """Names of workers that the harness simulates."""

    def answer_now(self, command: Command[A]) -> A:
        """Perform a command in this thread, without the checks."""
        raise NotImplementedError

    def perform_now(self, command: Command[A]) -> A:
        self.before(command)
        answer = self.answer_now(command)
        self.after(command, answer)
        return answer

    def before(self, command: Command[Any]) -> None:
        simulated = CURRENT_WORKER.get(None)
        if simulated is not None:
            simulated.before(command)
        if not self.working and _asks_for_reply(command):
            self._refuse_to_wait(sure=simulated is not None)

    def after(self, command: Command[A], answer: A) -> None:
        if self.on_command is not None:
            self.on_command(command, answer)
        simulated = CURRENT_WORKER.get(None)
        if simulated is not None:
            simulated.after(command, answer)

    def renewal_connection(self) -> RenewalConnection:
        return HarnessRenewalConnection(self)

    def new_store(self) -> "HarnessEngine":
        """Another store with the same clock, empty, for one attempt. The caller closes it with `end`."""
        raise NotImplementedError

    def end(self) -> None:
        """Close the store for good. `close` only does what the App needs: it may be opened again."""
        raise NotImplementedError

    def _refuse_to_wait(self, *, sure: bool) -> None:
        """A blocking caller stops the only thread that could run the job. Other coroutines may run while one waits."""
        task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
        if not sure and (task is None or task.get_name() != "holdfast blocking call"):
            return
        answer = self.answer_now(Workers())
        if not any(w.is_alive(answer.at.wall) for w in answer.workers if w.worker not in self.simulated_workers):
            raise UsageError(
                "The job has not ended, and nothing in this test will run it: this call would wait for ever. "
                "Call drain() first, or have a worker: `with jobs.worker():`."
            )


class MemoryHarnessEngine(HarnessEngine, MemoryEngine):
    def __init__(self, time: FrozenRuntime) -> None:
        super().__init__("memory://", time)
        self._time_of_test = time
        self.observe()

    def answer_now(self, command: Command[A]) -> A:
        return MemoryEngine.perform_now(self, command)

    async def perform(self, command: Command[A]) -> A:
        return self.perform_now(command)

    def _no_user_transactions(self) -> Unsupported:
        return Unsupported(
            "This test has a store in memory, which cannot take part in a transaction. Give it a SQLite store: "
            '`harness(jobs, store="sqlite")`, or holdfast_store = "sqlite" in pytest\'s settings.',
            capability="user_transactions",
            engine=self.scheme,
        )

    def new_store(self) -> "MemoryHarnessEngine":
        return MemoryHarnessEngine(self._time_of_test)

    def end(self) -> None: ...


class HarnessRenewalConnection(RenewalConnection):
    """Renews like every other command, because the harness has no thread for it."""

    def __init__(self, engine: HarnessEngine) -> None:
        self._engine = engine

    def renew(self, jobs: Iterable[Renewal]) -> RenewAnswer:
        return self._engine.perform_now(Renew(jobs=tuple(jobs)))

    def heartbeat(self, worker: WorkerRecord) -> HeartbeatAnswer:
        return self._engine.perform_now(Heartbeat(worker=worker))

    def close(self) -> None: ...


def _asks_for_reply(command: Command[Any]) -> bool:
    """True if the command asks for a notification when a job ends."""
    match command:
        case Enqueue(groups=groups):
            return any(job.reply is not None for group in groups for job in group.jobs)
        case Amend(reply=reply):
            return reply is not None
    return False


def awaited_jobs(command: Command[Any], answer: Answer) -> set[JobKey]:
    """The jobs for whose end the sender of this command now waits."""
    found: set[JobKey] = set()
    match command, answer:
        case Amend(queue=queue, ids=ids, reply=str()), _:
            found.update(JobKey(queue, each) for each in ids)
        case Enqueue(groups=groups), EnqueueAnswer(groups=answers):
            for group, accepted in zip(groups, answers, strict=True):
                if isinstance(accepted, GroupAccepted):
                    for job, accepted_job in zip(group.jobs, accepted.jobs, strict=True):
                        if job.reply is not None:
                            found.add(JobKey(job.queue, accepted_job.id))
    return found


@contextmanager
def swapped(app: App[Any], engine: HarnessEngine, runtime: HarnessRuntime) -> Iterator[None]:
    """Replace the store and the time of the App until the end of the block."""
    if isinstance(app.runtime, HarnessRuntime):
        raise UsageError(
            f"{app!r} is in a harness already. Use that one: in a test with the fixture `holdfast`, the fixture itself."
        )
    with app.swapped(engine, runtime):
        yield
