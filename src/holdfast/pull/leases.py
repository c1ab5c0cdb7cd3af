"""PayloadClaims bare payloads: once, with a wait, or as a stream.

A payload that cannot be read is set aside as failed(undecodable), with its bytes, and the next one is taken.

A stream claims a batch at a time. The first of the batch runs; the others are assigned, and begin when their turn
comes: with the write that settles the one before, so that this costs nothing. What is left of a batch when the loop is
left goes back at once and costs no attempt.
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
from holdfast.model.instants import SECOND
from holdfast.model.outcome import decide
from holdfast.model.work import ExchangeAnswer
from holdfast.pull.worker import PullWorker
from holdfast.pull.workers import PullWorkers
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.outcomes import undecodable

T = TypeVar("T")

POLL_WITH_PUSH = 1.0
POLL_WITHOUT = 0.25
MIN_POLL_S = 0.001

_logger = logging.getLogger("holdfast.pull")


class ClaimOptions(NamedTuple):
    """What is asked for: so many to work on and so many ahead of need, for so many microseconds."""

    limit: int
    lease: int
    prefetch: int = 0


class PayloadClaims(Generic[T]):
    """Claims payloads of one queue."""

    def __init__(self, store: StoreConnection, pull_workers: PullWorkers, task: PayloadTask[T]) -> None:
        self._store = store
        self._pull_workers = pull_workers
        self._task = task

    async def claim_now(self, options: ClaimOptions, process: Process) -> tuple[list[Lease[T]], ExchangeAnswer]:
        """What is there; all of it readable."""
        store, queue = self._store, self._task.queue
        await self._engine(process)
        pull_worker = self._pull_workers.current()
        await pull_worker.upkeep()
        while True:
            engine = await self._engine(process)
            sent = store.runtime.boot()
            answer = await pull_worker.claim(
                engine, queue, limit=options.limit, prefetch=options.prefetch, lease=options.lease
            )
            leases: list[Lease[T]] = []
            for lease in answer.leases:
                attempt = LeasedAttempt(lease, pull_worker.plan, sent)
                try:
                    payload = self._task.decode(lease.payload, lease.codec)
                except Exception as error:
                    await self._set_aside(engine, pull_worker, attempt, error)
                else:
                    leases.append(Lease(store, pull_worker, self._task, attempt, payload, answer.at))
            if leases or not answer.leases:
                return leases, answer

    async def _engine(self, process: Process) -> Engine:
        """The engine, unless the App has been closed since: then whoever waited must not open it again."""
        if self._store.process is not process:
            raise EngineUnavailable("The App has been closed while somebody waited for work. Open it again.")
        return await self._store.engine()

    async def _set_aside(
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
        self, options: ClaimOptions, seconds: float | None, over: Callable[[], bool] = lambda: False
    ) -> list[Lease[T]]:
        """What is there, or comes within so many seconds. None: for ever, or until it is `over`."""
        process, runtime = self._store.process, self._store.runtime
        leases, _ = await self.claim_now(options, process)
        if leases or seconds == 0 or over():
            return leases
        await move_to_loop()
        engine = await self._engine(process)
        poll = POLL_WITH_PUSH if engine.capabilities.push else POLL_WITHOUT
        deadline = None if seconds is None else runtime.monotonic() + round(seconds * SECOND)
        with engine.subscribe(f"queue:{self._task.queue}") as subscription:
            while True:
                leases, answer = await self.claim_now(options, process)
                left = poll if deadline is None else (deadline - runtime.monotonic()) / SECOND
                if leases or left <= 0 or over():
                    return leases
                if answer.next_due is not None:
                    left = min(left, max(MIN_POLL_S, (answer.next_due - answer.at.wall) / SECOND))
                await subscription.wait(min(left, poll))


class Leases(Generic[T]):
    """`for` or `async for`. Each loop over it is a stream of its own; `close` ends them, from any thread."""

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
        """Hand out nothing more. A loop that waits ends within a second."""
        self._closed = True

    def __iter__(self) -> Iterator[Lease[T]]:
        return self._blocking(self._stream())

    def _blocking(self, stream: "_Stream[T]") -> Generator[Lease[T], None, None]:
        try:
            while (lease := self._run(stream.next())) is not None:
                yield lease
                del lease  # or it would be held while the next one is waited for
        finally:
            if stream.waiting:
                self._run(stream.give_back())

    def _run(self, asked: Any) -> Any:
        if asyncio._get_running_loop() is not None and os.environ.get(ALLOW) != "1":
            asked.close()
            said = "`for` over leases would block the running event loop. Use `async for` here."
            raise BlockingCall(said, method="next", twin="anext")
        return run_coroutine(asked, self._store.loop_thread)

    def __aiter__(self) -> AsyncIterator[Lease[T]]:
        return self._awaiting(self._stream())

    async def _awaiting(self, stream: "_Stream[T]") -> AsyncGenerator[Lease[T], None]:
        try:
            while (lease := await stream.next()) is not None:
                yield lease
                del lease
        finally:
            await stream.give_back()


class _Stream(Generic[T]):
    """One loop's leases: those that wait for their turn."""

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
        self.waiting: deque[Lease[T]] = deque()

    async def next(self) -> Lease[T] | None:
        """The next lease; None: there is no more."""
        while not self._over():
            while self.waiting:
                lease = self.waiting.popleft()
                if await lease._begin(self._following):
                    return lease
            leases = await self._claims.claim_within(self._options, 0 if self._until_empty else None, self._over)
            if not leases and self._until_empty:
                return None
            for lease in leases:
                lease._wait_for_turn()
            self.waiting.extend(leases)
        return None

    def _following(self) -> Lease[T] | None:
        """The next in line, if it has yet to begin. A thread that settles may ask while another one loops."""
        try:
            lease = self.waiting[0]
        except IndexError:
            return None
        return None if lease._begun else lease

    def _over(self) -> bool:
        return self._closed() or self._pull_workers.current().info.stop_requested

    async def give_back(self) -> None:
        """Nobody wants the rest."""
        while self.waiting:
            lease = self.waiting.popleft()
            try:
                await lease._give_back()
            except HoldfastError as trouble:
                _logger.info("A lease that nobody wanted could not be given back: %s", trouble)
