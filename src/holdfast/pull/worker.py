"""A process as one that pulls: its name among the workers, the keeper of its leases, and the upkeep of its queues.

Who pulls is a worker without slots. It is on record with a heartbeat, so that operators see it and others notice its
death. Leases taken through `leases()` or a `with` block are renewed by the keeper, in its own thread. And since there
may be no other worker on the store, whoever claims also brings back bare payloads whose owner went away with them, and
prunes, now and then.
"""

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.blocking import move_to_loop
from holdfast.context import AbortReason
from holdfast.core.connection import StoreConnection
from holdfast.declare.policy import TaskPolicy, make_policy
from holdfast.engine import Engine
from holdfast.errors import EngineError, OutcomeUnknown, UsageError
from holdfast.model.check import MAX_SETTLEMENTS
from holdfast.model.instants import SECOND
from holdfast.model.outcome import Released, decide
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Claim, ExchangeAnswer, QueueClaim, RenewStatus, TaskClaim
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.dead_workers import DeadWorkers
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.hooks import Hooks
from holdfast.worker.keeper import HEARTBEAT_US, Keeper
from holdfast.worker.pruner import Pruner
from holdfast.worker.reaper import Reaper
from holdfast.worker.reporting import Reporter
from holdfast.worker.slots import Slots

BARE_TASK = ""
"""The task of a bare payload."""
CLAIM_TRIES = 3
"""How often a claim is sent whose answer gets lost."""

_logger = logging.getLogger("holdfast.pull")


@dataclass(slots=True)
class BarePayloadTask:
    """Bare payloads as a task without a handler: only their policy counts."""

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
    """What is on record of this process. Knows nothing of the App, which may be gone before the keeper's thread is."""

    name: str
    engine: Engine
    slots: Slots
    started: int
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


class PullWorker:
    """One per App and process."""

    def __init__(self, store: StoreConnection, engine: Engine) -> None:
        runtime, settings = store.runtime, store.config.worker
        self._runtime: Runtime = runtime
        self._engine = engine
        self._bus = store.bus
        self._begun = False
        self.name = f"{socket.gethostname() or 'host'}-pull-{runtime.token_bytes(4).hex()}"
        self.slots = Slots(0)
        """Only its register of leases is used: those that the keeper renews."""
        self._unstarted: dict[str, LeasedAttempt] = {}
        self.info = PullWorkerInfo(self.name, engine, self.slots, runtime.wall())
        handler_threads = HandlerThreads(runtime)
        task = BarePayloadTask(make_policy(BARE_TASK, {}, store.config.task))
        self.plan = ExecutionPlan(task, worker=self.name, state=None, middleware=(), handler_threads=handler_threads)
        self._hooks = Hooks(runtime, engine, handler_threads)
        self.keeper = Keeper(
            runtime,
            engine,
            self.slots,
            record=self.info.record,
            on_status=_on_renew_status,
            on_stop_requested=self.info.request_stop,
        )
        reaper = _Reaper(
            runtime,
            engine,
            worker=self.name,
            plans={BARE_TASK: self.plan},
            slots=self.slots,
            bus=store.bus,
            reporter=self.reporter(engine),
            on_freed=lambda: None,
            interval_s=settings.reap_interval,
        )
        self._upkeep = _Upkeep(runtime, DeadWorkers(runtime, engine, reaper), reaper, Pruner(runtime, engine))

    def reporter(self, engine: Engine) -> Reporter:
        """Who tells what became of a lease. `engine` as the calling thread may use it."""
        return Reporter(engine, self._bus, self._hooks, self.name)

    # Claiming

    async def claim(self, engine: Engine, queue: str, *, limit: int, prefetch: int, lease: int) -> ExchangeAnswer:
        """So many leases on bare payloads of a queue. `engine` as the calling thread may use it."""
        self.info.queues.add(queue)
        if not self._begun:
            await self._begin(engine)
        retry = self.plan.policy.retry
        terms = TaskClaim(
            task=BARE_TASK, lease_len=lease, max_attempts=retry.max_attempts or 0, max_losses=retry.max_losses
        )
        claim = Claim(
            claim_id=self._runtime.new_claim_id(),
            worker=self.name,
            queues=(QueueClaim(queue, (terms,)),),
            limit=limit,
            prefetch=prefetch,
        )
        for _ in range(CLAIM_TRIES - 1):
            try:
                return await engine.claim(claim)
            except OutcomeUnknown:  # sent again, it answers the leases it took
                continue
        return await engine.claim(claim)

    async def _begin(self, engine: Engine) -> None:
        """Go on record, and let the keeper work."""
        self._begun = True
        try:
            await engine.heartbeat(self.info.record())
        except BaseException:
            self._begun = False
            raise
        self.keeper.start()

    async def upkeep(self) -> None:
        """Reap and prune, if it is time to. Moves to an event loop if it is."""
        if self._upkeep.due():
            await move_to_loop()
            try:
                await self._upkeep.make()
            except EngineError as error:
                _logger.info("The upkeep of bare payloads has to wait: %s", error)

    # Keeping

    def keep(self, attempt: LeasedAttempt, *, unstarted: bool = False) -> None:
        """Renew this lease from now on. `unstarted`: it waits for its turn to be worked on."""
        self.slots.attempts[attempt.lease.token] = attempt
        if unstarted:
            self._unstarted[attempt.lease.token] = attempt

    def mark_started(self, attempt: LeasedAttempt) -> bool:
        """It waits no more. False: it did not."""
        return self._unstarted.pop(attempt.lease.token, None) is not None

    def drop(self, attempt: LeasedAttempt) -> None:
        """Renew it no more."""
        self.slots.drop(attempt)

    # The end

    async def stop(self) -> None:
        self.keeper.stop()
        await self._runtime.run_blocking(self.keeper.wait_ended, 2.0)
        unstarted = list(self._unstarted.values())
        self._unstarted.clear()
        self.slots.attempts.clear()
        released = [decide(Released(), attempt.lease, self.plan.policy.retry, now=0, draw=0.0) for attempt in unstarted]
        try:
            for start in range(0, len(released), MAX_SETTLEMENTS):
                await self._engine.settle(*released[start : start + MAX_SETTLEMENTS])
            if self._begun:
                await self._engine.forget_worker(self.name)
        except EngineError as error:
            _logger.info("Puller %s could not tidy up: %s Its leases will run out.", self.name, error)


def _on_renew_status(attempt: LeasedAttempt, status: RenewStatus) -> None:
    """What a renewal says of a lease. Who works on it looks when it wants to, or hears it when it settles."""
    if status is RenewStatus.LOST:
        attempt.mark(AbortReason.OWNERSHIP_LOST)
    elif status is RenewStatus.CANCEL:
        attempt.mark(AbortReason.CANCEL)


class _Reaper(Reaper):
    """Hurries when a death is noticed, though no supervisor runs it."""

    hurried = False

    def wake(self) -> None:
        self.hurried = True


class _Upkeep:
    """Services that a worker would run beside its work, ticked whenever somebody claims."""

    def __init__(self, runtime: Runtime, deaths: Service, reaper: _Reaper, pruner: Service) -> None:
        self._runtime = runtime
        self._reaper = reaper
        self._next: dict[Service, int | None] = dict.fromkeys((deaths, reaper, pruner), runtime.monotonic())

    def due(self) -> bool:
        now = self._runtime.monotonic()
        return any(at is not None and at <= now for at in self._next.values())

    async def make(self) -> None:
        for service in self._next:
            at, now = self._next[service], self._runtime.monotonic()
            hurried = service is self._reaper and self._reaper.hurried
            if hurried or (at is not None and at <= now):
                self._next[service] = now + SECOND  # whoever claims meanwhile need not do the same
                self._reaper.hurried = self._reaper.hurried and service is not self._reaper
                delay = await service.tick()
                self._next[service] = None if delay is None else now + round(delay * SECOND)
