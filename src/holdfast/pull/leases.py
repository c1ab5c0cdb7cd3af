"""Claiming bare payloads: once, with a wait, or as a stream.

A payload that cannot be read fails as failed(undecodable), with its bytes kept, and the next one is claimed. One that
can be read and does not fit is retried (A10).

A stream claims a batch at a time. The first job of the batch runs; the others are assigned, and each starts when the
stream hands it out. The call that settles one job also starts the next, so starting costs no extra call. When the loop
over the stream ends, the jobs left in the batch are released at once and cost no attempt.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.blocking import ALLOW, move_to_loop, run_coroutine
from holdfast.core.connection import StoreConnection
from holdfast.core.process import Process
from holdfast.declare.payload import PayloadTask
from holdfast.engine import Engine
from holdfast.errors import BlockingCall, EngineUnavailable, HoldfastError
from holdfast.lease import Lease
from holdfast.model.instants import SECOND, Micros, Seconds
from holdfast.model.outcome import decide
from holdfast.model.work import ExchangeAnswer
from holdfast.pull.worker import LeasesNotKept, PullWorker
from holdfast.pull.workers import PullWorkers
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.outcomes import undecodable

T = TypeVar("T")

POLL_WITH_PUSH_S: Seconds = 1.0
"""Poll this often although the store notifies: a notification may be lost."""
POLL_WITHOUT_PUSH_S: Seconds = 0.25
"""Poll this often where the store cannot notify."""
MIN_POLL_S: Seconds = 0.001
"""The shortest pause before a job that is nearly due: a claim must not spin."""

_logger = logging.getLogger("holdfast.pull")


class ClaimOptions(NamedTuple):
    """How many jobs to claim (to run, and to prefetch), and how long their leases are."""

    limit: int
    lease_us: Micros | None
    """None: as the settings of the queue say."""
    prefetch: int = 0


class PayloadClaims(Generic[T]):
    """Claims payloads of one queue."""

    def __init__(self, store: StoreConnection, pull_workers: PullWorkers, task: PayloadTask[T]) -> None:
        self._store = store
        self._pull_workers = pull_workers
        self._task = task

    async def claim_now(self, options: ClaimOptions, process: Process) -> tuple[list[Lease[T]], ExchangeAnswer]:
        """Claim what is ready now. Payloads that cannot be decoded are failed, not returned."""
        store, queue = self._store, self._task.queue
        await self._engine(process)
        pull_worker = self._pull_workers.current()
        await pull_worker.upkeep()
        while True:
            engine = await self._engine(process)
            sent_at = store.runtime.boot()
            answer = await pull_worker.claim(
                engine, queue, limit=options.limit, prefetch=options.prefetch, lease_us=options.lease_us
            )
            leases: list[Lease[T]] = []
            undecoded: list[tuple[LeasedAttempt, Exception]] = []
            for lease in answer.leases:
                attempt = LeasedAttempt(lease, pull_worker.plan_of(queue), sent_at)
                try:
                    payload = self._task.decode(lease.payload, lease.codec)
                except Exception as error:
                    undecoded.append((attempt, error))
                else:
                    leases.append(Lease(store, pull_worker, self._task, attempt, payload, answer.at))
            try:
                for attempt, why in undecoded:
                    await self._fail_undecodable(engine, pull_worker, attempt, why)
            except BaseException:  # the caller gets none of them
                await self.give_back(leases)
                await pull_worker.give_back(engine, [attempt.lease for attempt, _ in undecoded])
                raise
            if leases or not answer.leases:
                return leases, answer

    async def give_back(self, leases: list[Lease[T]]) -> None:
        """Release leases that the caller does not get, also if the caller is cancelled."""
        pull_worker = self._pull_workers.current()
        for lease in leases:
            lease._verb = "released"
            pull_worker.mark_started(lease._attempt)
            pull_worker.drop(lease._attempt)
        await pull_worker.give_back(pull_worker.info.engine, [lease._attempt.lease for lease in leases])

    async def _engine(self, process: Process) -> Engine:
        """The engine; raises if the App was closed in the meantime: a waiting claim must not open it again."""
        if self._store.process is not process:
            raise EngineUnavailable("The App was closed while a claim waited for work. Open it again.")
        return await self._store.engine()

    async def _fail_undecodable(
        self, engine: Engine, pull_worker: PullWorker, attempt: LeasedAttempt, error: Exception
    ) -> None:
        policy = attempt.plan.policy
        settlement = decide(
            undecodable(error),
            attempt.lease,
            policy.retry,
            now=0,
            draw=0.0,
            result_ttl=policy.result_ttl,
            failed_retention=policy.failed_retention,
        )
        answer = await engine.settle(settlement)
        reporter = pull_worker.reporter(engine)
        reporter.settled(attempt, settlement, answer.settled[0], answer.at.wall)
        await reporter.after_exchange((settlement,), answer)

    async def claim_within(
        self, options: ClaimOptions, timeout_s: Seconds | None, should_stop: Callable[[], bool] = lambda: False
    ) -> list[Lease[T]]:
        """Claim what is ready, or wait for it. `timeout_s` None: wait until `should_stop()` is true."""
        process, runtime = self._store.process, self._store.runtime
        leases: list[Lease[T]] = []
        try:
            leases, _ = await self.claim_now(options, process)
        except LeasesNotKept:
            if timeout_s == 0:
                raise
        if leases or timeout_s == 0 or should_stop():
            return leases
        await move_to_loop()
        engine = await self._engine(process)
        deadline = None if timeout_s is None else runtime.monotonic() + round(timeout_s * SECOND)
        with engine.subscribe(f"queue:{self._task.queue}") as subscription:
            while True:
                next_due_us: Micros | None = None
                try:
                    leases, answer = await self.claim_now(options, process)
                    if answer.next_due is not None:
                        next_due_us = answer.next_due - answer.at.wall
                except LeasesNotKept:
                    if deadline is not None and runtime.monotonic() >= deadline:
                        raise
                poll_s = POLL_WITH_PUSH_S if engine.capabilities.push else POLL_WITHOUT_PUSH_S
                left_s = poll_s if deadline is None else (deadline - runtime.monotonic()) / SECOND
                if leases or left_s <= 0 or should_stop():
                    return leases
                if next_due_us is not None:
                    left_s = min(left_s, max(MIN_POLL_S, next_due_us / SECOND))
                await subscription.wait(min(left_s, poll_s))


class Leases(Generic[T]):
    """Use it in `for` or `async for`. Each loop is a stream of its own; `close` ends all of them, from any thread."""

    def __init__(
        self,
        claims: PayloadClaims[T],
        store: StoreConnection,
        pull_workers: PullWorkers,
        options: ClaimOptions,
        *,
        until_empty: bool,
    ) -> None:
        self._store = store
        self._pull_workers = pull_workers
        self._claims = claims
        self._options = options
        self._until_empty = until_empty
        self._closed = False

    def _stream(self) -> "_Stream[T]":
        return _Stream(
            self._claims,
            self._pull_workers,
            self._options,
            until_empty=self._until_empty,
            closed=lambda: self._closed,
        )

    def close(self) -> None:
        """Hand out no more leases. A loop that waits ends within a second."""
        self._closed = True

    def __iter__(self) -> Iterator[Lease[T]]:
        return self._iterate_sync(self._stream())

    def _iterate_sync(self, stream: "_Stream[T]") -> Generator[Lease[T], None, None]:
        try:
            while (lease := self._run(stream.next())) is not None:
                yield lease
                del lease  # else it would stay alive while the loop waits for the next one
        finally:
            if stream.leases:
                self._run(stream.release_rest())

    def _run(self, coroutine: Any) -> Any:
        if asyncio._get_running_loop() is not None and os.environ.get(ALLOW) != "1":
            coroutine.close()
            message = "`for` over leases would block the running event loop. Use `async for` here."
            raise BlockingCall(message, method="next", twin="anext")
        return run_coroutine(coroutine, self._store.loop_thread)

    def __aiter__(self) -> AsyncIterator[Lease[T]]:
        return self._iterate_async(self._stream())

    async def _iterate_async(self, stream: "_Stream[T]") -> AsyncGenerator[Lease[T], None]:
        try:
            while (lease := await stream.next()) is not None:
                yield lease
                del lease
        finally:
            await stream.release_rest()


class _Stream(Generic[T]):
    """The leases of one loop that have not been handed out yet."""

    def __init__(
        self,
        claims: PayloadClaims[T],
        pull_workers: PullWorkers,
        options: ClaimOptions,
        *,
        until_empty: bool,
        closed: Callable[[], bool],
    ) -> None:
        self._claims = claims
        self._pull_workers = pull_workers
        self._options = options
        self._until_empty = until_empty
        self._closed = closed
        self.leases: deque[Lease[T]] = deque()

    async def next(self) -> Lease[T] | None:
        """The next lease. None: the stream has ended."""
        while not self._should_stop():
            while self.leases:
                lease = self.leases.popleft()
                try:
                    begun = await lease._begin(self._next_unstarted)
                except BaseException:
                    if not lease.settled:  # the end of the stream releases it
                        lease._wait_for_turn()
                        self.leases.appendleft(lease)
                    raise
                if begun:
                    return lease
            leases = await self._claims.claim_within(self._options, 0 if self._until_empty else None, self._should_stop)
            if not leases and self._until_empty:
                return None
            for lease in leases:
                lease._wait_for_turn()
            self.leases.extend(leases)
        return None

    def _next_unstarted(self) -> Lease[T] | None:
        """The next lease, if it has not started. One thread may settle a lease while another thread runs the loop."""
        try:
            lease = self.leases[0]
        except IndexError:
            return None
        return None if lease._begun else lease

    def _should_stop(self) -> bool:
        return self._closed() or self._pull_workers.current().info.stop_requested

    async def release_rest(self) -> None:
        """The loop has ended: release the leases that were not handed out."""
        while self.leases:
            lease = self.leases[0]
            try:
                await lease._give_back()
            except HoldfastError as trouble:
                _logger.info("A lease that was not handed out could not be released: %s", trouble)
            except asyncio.CancelledError:
                rest = list(self.leases)
                self.leases.clear()
                await self._claims.give_back(rest)
                raise
            self.leases.popleft()
