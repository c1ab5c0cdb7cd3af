"""The pull worker: a process that pulls jobs counts as a worker without slots.

It has a worker record and a heartbeat, so that operators see it and other workers notice when it has died. Its keeper
renews, in a thread of its own, the leases taken through `leases()` or a `with` block. There may be no other worker on
the store, so each claim also runs the upkeep if it is due: it reaps bare payloads whose owner was lost, disowns dead
workers, and prunes.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.blocking import move_to_loop
from holdfast.context import AbortReason
from holdfast.core.connection import StoreConnection
from holdfast.declare.policy import TaskPolicy, make_policy
from holdfast.engine import Engine
from holdfast.errors import Busy, EngineError, EngineUnavailable, OutcomeUnknown, UsageError
from holdfast.model.check import MAX_SETTLEMENTS
from holdfast.model.instants import SECOND, Instant, Micros, Seconds
from holdfast.model.job import BARE_TASK
from holdfast.model.outcome import Released, decide
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Claim, ExchangeAnswer, Lease, QueueClaim, RenewStatus, TaskClaim
from holdfast.runtime import Runtime
from holdfast.service import Service, run_through
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.dead_workers import DeadWorkers
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.hooks import Hooks
from holdfast.worker.keeper import HEARTBEAT_US, NOT_CONNECTED, Keeper
from holdfast.worker.pruner import Pruner
from holdfast.worker.reaper import Reaper
from holdfast.worker.reporting import Reporter
from holdfast.worker.slots import Slots

KEEPER_STOP_TIMEOUT_S: Seconds = 2.0
"""Closing the App waits this long for the keeper's thread."""
CLAIM_TRIES = 3
"""A claim is sent this often if its answer gets lost: the same claim id returns the same leases."""

GIVE_BACK_TIMEOUT_S: Seconds = 5.0
"""A cancelled call waits this long for the store, to give back its leases or to settle one; then they expire."""

_logger = logging.getLogger("holdfast.pull")


@dataclass(slots=True)
class BarePayloadTask:
    """Bare payloads as a task without a handler: only its policy is used."""

    policy: TaskPolicy
    is_async: bool = False
    takes_context: bool = False
    middleware: Sequence[Any] = ()
    dead_letter_hooks: Sequence[Callable[[Any, Any], object]] = ()

    @property
    def function(self) -> Callable[..., Any]:
        return _no_handler

    def decode_arguments(self, payload: bytes, codec: str) -> tuple[Sequence[Any], Mapping[str, Any]]:
        raise _no_handler()

    def encode_result(self, value: Any, codec: str) -> bytes:
        raise _no_handler()


def _no_handler() -> UsageError:
    return UsageError("A bare payload has no handler; it is pulled.")


@dataclass(slots=True)
class PullWorkerInfo:
    """The worker record of this process. It must not refer to the App: the keeper's thread may outlive that."""

    name: str
    engine: Engine
    slots: Slots
    started: Instant
    queues: set[str] = field(default_factory=set)
    stop_requested: bool = False

    def record(self) -> WorkerRecord:
        return WorkerRecord(
            worker=self.name,
            tasks=(BARE_TASK,),
            queues=tuple(sorted(self.queues)),
            host=socket.gethostname(),
            pid=os.getpid(),
            process=self.engine.process_name,
            busy=len(self.slots.attempts),
            started=self.started,
            interval=HEARTBEAT_US,
        )

    def request_stop(self) -> None:
        self.stop_requested = True


class LeasesNotKept(EngineUnavailable):
    """Nothing was claimed, because this process cannot renew leases at present. A claim that waits tries again."""


class PullWorker:
    """One per App and process."""

    def __init__(self, store: StoreConnection, engine: Engine) -> None:
        runtime, settings = store.runtime, store.config.worker
        self._runtime: Runtime = runtime
        self._engine = engine
        self._bus = store.bus
        self._registered = False
        self.name = f"{socket.gethostname() or 'host'}-pull-{runtime.token_bytes(4).hex()}"
        self.slots = Slots(0)
        """Only `slots.attempts` is used: the leases that the keeper renews."""
        self._unstarted: dict[str, LeasedAttempt] = {}
        self.info = PullWorkerInfo(self.name, engine, self.slots, runtime.wall())
        self._config = store.config
        self._plans: dict[str, ExecutionPlan] = {}
        self._handler_threads = HandlerThreads(runtime)
        self._hooks = Hooks(runtime, engine, self._handler_threads)
        reporter = self.reporter(engine)
        self.keeper = Keeper(
            runtime,
            engine,
            self.slots,
            record=self.info.record,
            on_status=_on_renew_status,
            on_stop_requested=self.info.request_stop,
            on_progress=lambda attempt, at: reporter.progressed(attempt, attempt.sent_progress, at),
        )
        reaper = _Reaper(
            runtime,
            engine,
            worker=self.name,
            plans={BARE_TASK: self.plan_of("")},
            slots=self.slots,
            bus=store.bus,
            reporter=reporter,
            on_freed=lambda: None,
            interval_s=settings.reap_interval,
        )
        self._upkeep = _Upkeep(runtime, DeadWorkers(runtime, engine, reaper), reaper, Pruner(runtime, engine))

    def plan_of(self, queue: str) -> ExecutionPlan:
        """The plan of the payloads of a queue, by its settings."""
        if queue not in self._plans:
            settings = self._config.queue(queue)
            own = {name: getattr(settings, name) for name in ("max_attempts", "backoff", "lease")}
            chosen = replace(self._config.task, **{name: value for name, value in own.items() if value is not None})
            task = BarePayloadTask(make_policy(BARE_TASK, {}, chosen))
            self._plans[queue] = ExecutionPlan(
                task, worker=self.name, state=None, middleware=(), handler_threads=self._handler_threads
            )
        return self._plans[queue]

    def reporter(self, engine: Engine) -> Reporter:
        """Reports what became of a lease. `engine` must be usable from the calling thread."""
        return Reporter(engine, self._bus, self._hooks, self.name)

    # Claiming

    async def claim(
        self, engine: Engine, queue: str, *, limit: int, prefetch: int, lease_us: Micros | None
    ) -> ExchangeAnswer:
        """Claim bare payloads of a queue. `engine` must be usable from the calling thread."""
        self.info.queues.add(queue)
        if not self._registered:
            await self._register(engine)
        problem = self.keeper.problem
        if problem is not None and problem is not NOT_CONNECTED:
            raise LeasesNotKept(f"Leases of this process cannot be kept: {problem.rstrip('.')}. Nothing was claimed.")
        policy = self.plan_of(queue).policy
        retry = policy.retry
        task_claim = TaskClaim(
            task=BARE_TASK,
            lease_len=lease_us or policy.lease,
            max_attempts=retry.max_attempts or 0,
            max_losses=retry.max_losses,
        )
        claim = Claim(
            claim_id=self._runtime.new_claim_id(),
            worker=self.name,
            queues=(QueueClaim(queue, (task_claim,)),),
            limit=limit,
            prefetch=prefetch,
        )
        if asyncio._get_running_loop() is None:
            try:
                return await self._send(engine, claim)
            except Exception:
                raise
            except BaseException:  # Ctrl-C: the store may have carried out the claim
                await self._release_claim(engine, claim, None)
                raise
        call = self._runtime.spawn(self._answer_or_error(engine, claim), name="holdfast claim")
        try:
            answer = await asyncio.shield(call)
        except asyncio.CancelledError:  # the caller is cancelled, the claim is not: its leases are given back
            await self.run_through(lambda: self._release_claim(engine, claim, call))
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _answer_or_error(self, engine: Engine, claim: Claim) -> ExchangeAnswer | Exception:
        try:
            return await self._send(engine, claim)
        except Exception as error:
            return error

    async def _send(self, engine: Engine, claim: Claim) -> ExchangeAnswer:
        for _ in range(CLAIM_TRIES - 1):
            try:
                return await engine.claim(claim)
            except OutcomeUnknown:  # sent again, the same claim id returns the leases that it took
                continue
        return await engine.claim(claim)

    # Giving back

    async def give_back(self, engine: Engine, leases: Sequence[Lease]) -> None:
        """Release leases that no code will use. A cancellation of the caller does not stop it."""
        if leases and asyncio._get_running_loop() is None:
            await self._release(engine, leases)
        elif leases:
            await self.run_through(lambda: self._release(engine, leases))

    async def run_through(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a last step to its end, although the caller is cancelled."""
        await run_through(self._runtime, make, name="holdfast give back", timeout_s=GIVE_BACK_TIMEOUT_S)

    async def _release_claim(
        self, engine: Engine, claim: Claim, call: "asyncio.Task[ExchangeAnswer | Exception] | None"
    ) -> None:
        if call is None or call.cancelled():
            answer = await self._answer_or_error(engine, claim)
        else:
            answer = await asyncio.shield(call)
        if isinstance(answer, Exception):
            _logger.info("A claim was cancelled, and its answer is not known: %s Its leases will expire.", answer)
        else:
            await self._release(engine, answer.leases)

    async def _release(self, engine: Engine, leases: Sequence[Lease]) -> None:
        released = [
            decide(Released(), lease, self.plan_of(lease.queue).policy.retry, now=0, draw=0.0) for lease in leases
        ]
        try:
            for start in range(0, len(released), MAX_SETTLEMENTS):
                await engine.settle(*released[start : start + MAX_SETTLEMENTS])
        except EngineError as error:
            _logger.info("%d leases could not be given back: %s They will expire.", len(released), error)

    async def _register(self, engine: Engine) -> None:
        """Send the first heartbeat and start the keeper."""
        self._registered = True
        try:
            await engine.heartbeat(self.info.record())
        except BaseException:
            self._registered = False
            raise
        self.keeper.start()

    async def upkeep(self) -> None:
        """Run the upkeep if it is due. Then this call moves to an event loop."""
        if self._upkeep.due():
            await move_to_loop()
            try:
                await self._upkeep.run_due()
            except EngineError as error:
                _logger.info("The upkeep of bare payloads failed and is tried later: %s", error)

    # Renewing

    def keep(self, attempt: LeasedAttempt, *, unstarted: bool = False) -> None:
        """Renew this lease from now on. `unstarted`: a stream holds it and has not handed it out yet."""
        self.slots.attempts[attempt.lease.token] = attempt
        if unstarted:
            self._unstarted[attempt.lease.token] = attempt

    def mark_started(self, attempt: LeasedAttempt) -> bool:
        """The stream hands it out. False: it was not waiting in a stream."""
        return self._unstarted.pop(attempt.lease.token, None) is not None

    def drop(self, attempt: LeasedAttempt) -> None:
        """Stop renewing this lease."""
        self.slots.drop(attempt)

    # Stop

    async def stop(self) -> None:
        self.keeper.stop()
        await self._runtime.run_blocking(self.keeper.wait_ended, KEEPER_STOP_TIMEOUT_S)
        unstarted = list(self._unstarted.values())
        self._unstarted.clear()
        self.slots.attempts.clear()
        await self._release(self._engine, [attempt.lease for attempt in unstarted])
        try:
            if self._registered:
                await self._engine.forget_worker(self.name)
        except EngineError as error:
            self._engine.keep_process_record()
            _logger.info("Pull worker %s could not remove its record: %s", self.name, error)


def _on_renew_status(attempt: LeasedAttempt, status: RenewStatus) -> None:
    """Mark the attempt as aborted. The code that works on the lease can check it; else it fails to settle."""
    if status is RenewStatus.LOST:
        attempt.mark(AbortReason.OWNERSHIP_LOST)
    elif status is RenewStatus.CANCEL:
        attempt.mark(AbortReason.CANCEL)


class _Reaper(Reaper):
    """A reaper without a supervisor: `wake` makes it run in the same upkeep."""

    woken = False

    def wake(self) -> None:
        self.woken = True


class _Upkeep:
    """The services of a worker that a pulling process needs too. A claim ticks those that are due."""

    def __init__(self, runtime: Runtime, dead_workers: Service, reaper: _Reaper, pruner: Service) -> None:
        self._runtime = runtime
        self._reaper = reaper
        self._next: dict[Service, Micros | None] = dict.fromkeys((dead_workers, reaper, pruner), runtime.monotonic())

    def due(self) -> bool:
        now = self._runtime.monotonic()
        return any(at is not None and at <= now for at in self._next.values())

    async def run_due(self) -> None:
        for service in self._next:
            at, now = self._next[service], self._runtime.monotonic()
            woken = service is self._reaper and self._reaper.woken
            if woken or (at is not None and at <= now):
                self._next[service] = now + SECOND  # a claim in another thread must not run it too
                self._reaper.woken = self._reaper.woken and service is not self._reaper
                delay = await service.tick()
                self._next[service] = None if delay is None else now + round(delay * SECOND)


def locked_error(job_id: str, queue: str) -> Busy:
    """The error of a verb of a lease whose job another transaction has locked."""
    message = f"Another open transaction has locked job {job_id!r} of queue {queue!r}. Nothing was written."
    return Busy(f"{message} Commit or roll back that transaction, then try again.", queue=queue, waited=0.0)
