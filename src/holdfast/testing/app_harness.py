"""The harness: an App under test, with a store for this test and a clock that only the test moves.

    def test_a_welcome_is_sent(holdfast: Harness) -> None:      # or: with harness(jobs) as holdfast:
        sign_up("ada@example.org")
        holdfast.assert_enqueued(send_welcome, "ada@example.org")
        assert holdfast.drain().succeeded == 1

The App object stays the same, so the code under test needs no change. Jobs run when the test calls `drain`, in the same
way as in a worker: stored bytes, validation, middleware, context, retry policy. They run one after the other, in the
order in which a worker would claim them, so a test does the same things each time.

The store is in memory, unless the code under test uses `transaction=`: then it is a SQLite file, and the sessions of
the code under test are bound to the same file, `holdfast.url`.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from holdfast.app import App
from holdfast.blocking import blocking, move_to_loop
from holdfast.durations import Duration
from holdfast.errors import InvalidOption, JobFailed, UsageError, duration_us
from holdfast.model.address import mask_password
from holdfast.model.instants import SECOND, Instant, Micros
from holdfast.model.observe import Stats
from holdfast.model.produce import Group
from holdfast.model.records import Totals
from holdfast.model.states import LEASED, JobState
from holdfast.task import Task
from holdfast.telemetry.events import Event
from holdfast.testing.attempt_ends import error_of
from holdfast.testing.crash import CrashPoint, SimulatedWorker, WorkerDied, check_point
from holdfast.testing.expect import Expected, call_of, contents, stored
from holdfast.testing.harness_engine import (
    HarnessClock,
    HarnessEngine,
    HarnessRuntime,
    MemoryHarnessEngine,
    frozen_now,
    swapped,
)
from holdfast.testing.stepped_worker import SteppedWorker, listeners_ended, stepped_worker
from holdfast.views import Job

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What happened in a drain, in numbers of jobs."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    """By their handlers, by a caller, or because they had expired."""
    retried: int = 0
    """Attempts that failed and will be repeated."""
    snoozed: int = 0
    """Attempts that postponed the job."""
    reaped: int = 0
    """Jobs whose worker was lost."""
    left: int = 0
    """Jobs that have not ended: not due yet, held back, paused, leased, or of a task that this App does not have."""
    crashed: bool = False
    """The worker died at the point that `crash` set."""


class Harness:
    """An App under test. Made by the fixture `holdfast`, or by `harness(jobs)`."""

    def __init__(self, app: App[Any], engine: HarnessEngine, clock: HarnessClock, url: str) -> None:
        self.app = app
        """The App under test."""
        self.clock = clock
        """The time of the App. It moves only by `clock.advance(...)` and by `drain(until=...)`."""
        self.url = url
        """The address of the store. With SQLite: bind the sessions of the code under test to it."""
        self.events: list[Event] = []
        """All events since the test began, in order."""
        self._store = app._store
        self._engine = engine
        self._point: CrashPoint | None = None
        self._workers = 0
        self._busy = False

    # Running

    async def adrain(self, /, *, until: Duration | None = None, raises: bool = True) -> Drained:
        """Run the due jobs until none is due. With `until`, also run those that fall due within that time.

        Then the clock moves from one due time to the next: through delays, back-offs, and leases of workers that died.
        It stops when the last job has ended; if jobs are left, at the end of the time.

        An error of a handler is raised here, after its job has been settled; with `until`, only if the error ended the
        job. `Retry`, `Snooze`, `GiveUp` and `Cancel` are not errors. `raises=False`: no error is raised.
        """
        length_us = None if until is None else duration_us(until, "until")
        await move_to_loop()
        before = self._totals()
        worker: SteppedWorker | None = None
        crashed = False
        try:
            async with self._worker(self._engine, SimulatedWorker(self._point)) as worker:
                await self._drain(worker, length_us, raises)
        except WorkerDied:
            crashed = True
        after = self._totals()
        return Drained(
            succeeded=after.succeeded - before.succeeded,
            failed=after.failed - before.failed,
            cancelled=after.cancelled - before.cancelled,
            retried=0 if worker is None else worker.retried,
            snoozed=0 if worker is None else worker.snoozed,
            reaped=0 if worker is None else worker.reaped,
            left=sum(queue.depth for queue in self._engine.perform_now(Stats()).queues),
            crashed=crashed,
        )

    drain = blocking(adrain)

    async def _drain(self, worker: SteppedWorker, length_us: Micros | None, raises: bool) -> None:
        deadline = None if length_us is None else self.clock.time.wall() + length_us

        def check_ends() -> None:
            for end in worker.ended:
                is_retried = end.settlement.target is JobState.RETRYING
                error = error_of(end) if raises and not (is_retried and deadline is not None) else None
                if error is not None:
                    raise error
            worker.ended.clear()

        worker.advance_clock = lambda: self._move(deadline)
        await worker.work(check_ends)
        while worker.advance_clock():
            await worker.work(check_ends)

    def _move(self, deadline: Instant | None) -> bool:
        """Move the clock to the next due time, but not past the deadline. False: nothing more can fall due."""
        if deadline is None:
            return False
        now = self.clock.time.wall()
        answer = self._engine.perform_now(Stats())
        if now >= deadline or not any(queue.depth for queue in answer.queues):
            return False
        coming = [queue.next_due for queue in answer.queues if queue.next_due is not None]
        for state in LEASED:
            for job in stored(self._engine, state=state):
                if job.lease_expires is not None:
                    coming.append(now + job.lease_expires - answer.at.lease)
        then = min((instant for instant in coming if instant > now), default=deadline)
        self.clock.advance((min(then, deadline) - now) / SECOND)
        return True

    async def aattempt(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one attempt of this call; return what the handler returned, or raise what it raised.

        The job is stored, claimed and decoded as usual, but in tables of its own: no other job runs, and none is left
        behind. `Retry`, `Snooze`, `GiveUp` and `Cancel` are raised as they are.
        """
        self._check(task)
        job = task.using(delay=0).draft(*args, **kwargs).job
        registered = self.app.registry.get(task.name)
        if registered is None or registered.policy.remote:
            raise UsageError(f"The code of task {task.name!r} is not in this process, so it cannot run here.")
        await move_to_loop()
        engine = self._engine.new_store()
        try:
            await engine.enqueue(Group((job,)))
            async with self._worker(engine, SimulatedWorker()) as worker:
                await worker.run_one(lambda: None)
                await listeners_ended()
        finally:
            engine.end()
        if not worker.ended:
            raise UsageError(f"Task {task.name!r} was not run: the job had expired or was cancelled.")
        end = worker.ended[0]
        if end.settlement.target is JobState.SUCCEEDED:
            assert end.settlement.result is not None, "Success comes with a result."
            return task.decode_result(end.settlement.result, job.codec)
        error = error_of(end) or end.error
        if error is not None:
            raise error
        raise JobFailed(job_id=job.id, task=task.name, attempts=1, reason=str(end.settlement.reason))

    attempt = blocking(aattempt)

    @contextmanager
    def crash(self, point: CrashPoint, /) -> Iterator[None]:
        """Inside the block, `drain` runs a worker that dies when it first reaches this point.

        `after_claim`: it never gets the answer to its claim. `in_handler`: at the handler's first wait or first change
        of the store, or else at its end. `before_settle`: the handler has ended, its outcome is lost. `after_settle`:
        the outcome is stored, the worker never gets the answer. After that point the store takes no change from the
        worker, and the job stays leased until its lease expires.
        """
        check_point(point)
        if self._point is not None:
            raise UsageError(f"A worker cannot die twice: crash({self._point!r}) is in force already.")
        self._point = point
        try:
            yield
        finally:
            self._point = None

    # Reading

    def enqueued(
        self, task: Task[..., Any] | None = None, /, *, queue: str | None = None, state: JobState | str | None = None
    ) -> list[Job]:
        """The jobs of this test, in the order of their arrival; also finished ones, while they are kept."""
        if task is not None:
            self._check(task)
        name = None if task is None else task.name
        found = stored(self._engine, task=name, queue=queue, state=None if state is None else JobState(state))
        return [Job.from_record(record, self._store.codec_named) for record in found]

    def assert_enqueued(self, task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Return the job of this call, in any state. Options are compared if `task.using(...)` names them."""
        __tracebackhide__ = True
        self._check(task)
        expected = Expected(task, args, kwargs)
        for record in stored(self._engine, task=task.name):
            if not expected.differences(record):
                return Job.from_record(record, self._store.codec_named)
        raise AssertionError(expected.complaint(self._engine))

    def assert_not_enqueued(self, task: Task[..., Any], /) -> None:
        """Fail if there is a job of this task, with any arguments."""
        __tracebackhide__ = True
        self._check(task)
        found = stored(self._engine, task=task.name)
        if found:
            lines = [f"  {job.id} in queue {job.queue}, {job.state}: {call_of(task, job)}" for job in found]
            raise AssertionError("\n".join([f"Jobs of task {task.name} were enqueued:", *lines]))

    # Inside

    def _check(self, task: Task[..., Any]) -> None:
        if task._store is not self._store:
            raise UsageError(f"Task {task.name!r} belongs to another App than this harness. {contents(self._engine)}")

    @asynccontextmanager
    async def _worker(self, engine: HarnessEngine, simulated: SimulatedWorker) -> AsyncIterator[SteppedWorker]:
        if self._busy:
            raise UsageError("This harness already runs jobs. Await that call first.")
        self._busy = True
        self._workers += 1
        try:
            async with stepped_worker(
                self.app, engine, self.clock, name=f"harness-{self._workers}", simulated=simulated
            ) as worker:
                yield worker
        finally:
            self._busy = False

    def _totals(self) -> Totals:
        totals = [queue.totals for queue in self._engine.perform_now(Stats()).queues]
        return Totals(
            succeeded=sum(each.succeeded for each in totals),
            failed=sum(each.failed for each in totals),
            cancelled=sum(each.cancelled for each in totals),
        )

    def __repr__(self) -> str:
        return f"<Harness of {self.app!r}. {contents(self._engine)}>"


@contextmanager
def harness(app: App[Any], /, *, store: str = "memory") -> Iterator[Harness]:
    """Give an App a store of its own and a fake clock until the end of the block.

    `store`: "memory"; "sqlite", a temporary file; or the address of a file for this test, `sqlite:///path`. Code that
    uses `transaction=` needs SQLite.
    """
    app.import_modules()
    time = frozen_now()
    with ExitStack() as stack:
        runtime = HarnessRuntime(time)
        url = "memory://"
        engine: HarnessEngine = MemoryHarnessEngine(time)
        if store != "memory":
            url = (
                f"sqlite:///{stack.enter_context(runtime.fs.temporary_folder())}/jobs.db"
                if store == "sqlite"
                else store
            )
            engine = _sqlite_engine(app, url, runtime)
        stack.callback(engine.end)
        stack.enter_context(swapped(app, engine, runtime))
        new = Harness(app, engine, HarnessClock(engine, time), url)
        stack.callback(app.bus.on(Event, new.events.append))
        yield new


def _sqlite_engine(app: App[Any], url: object, runtime: HarnessRuntime) -> HarnessEngine:
    if not isinstance(url, str) or not url.startswith("sqlite:"):
        shown = mask_password(url) if isinstance(url, str) else repr(url)
        raise InvalidOption(
            f'`store` of a harness is "memory", "sqlite" or the address of a SQLite file, not {shown}. To test on '
            "another store, give it to the App and run `jobs.worker(until_empty=True).run()`.",
            option="store",
        )
    from holdfast.testing.harness_sqlite import SqliteHarnessEngine

    return SqliteHarnessEngine(url, runtime, app._store.namespace)
