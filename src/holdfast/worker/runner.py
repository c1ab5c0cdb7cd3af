"""Starts attempts on the event loop, several in one asyncio task where possible.

To create an asyncio task costs more than a short handler does. So attempts run in chains: a chain is an asyncio task
that runs one attempt after the other. Before each attempt it makes sure that another chain is scheduled. The loop runs
that chain as soon as the handler suspends; it takes the next attempt, and so on. Handlers that never suspend run one
after the other in one task.

A handler can treat the asyncio task as its own. A chain that was suspended in a handler runs no further attempt, so a
cancellation, a timeout or a task group cannot reach another handler. A chain whose context variables a handler has
changed runs no further attempt either.

With chains alone, handlers that suspend would start one per iteration of the loop. So the plan of each job's task
remembers whether its last handler suspended. If it did, its attempts get an asyncio task each, all at once.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from contextvars import copy_context
from functools import partial

from holdfast.context import CURRENT
from holdfast.model.instants import MILLISECOND, Micros
from holdfast.runtime import Runtime
from holdfast.service import yield_to_loop
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.execute import Executor

MAX_TURN_US: Micros = 5 * MILLISECOND
"""After this long without suspending, a chain yields to the loop, so that other tasks can run."""


class AttemptRunner:
    """Starts attempts. Used from the loop's thread only."""

    def __init__(self, runtime: Runtime, executor: Executor) -> None:
        self._runtime = runtime
        self._executor = executor
        self._ready: deque[LeasedAttempt] = deque()
        self._scheduled: asyncio.Task[None] | None = None
        """The chain that has not begun yet."""
        self._turns = 0

    def run(self, attempts: Iterable[LeasedAttempt]) -> None:
        """Start these attempts, in this order."""
        self._turns += 1  # a chain that is suspended now sees the difference
        for attempt in attempts:
            if attempt.plan.suspends:
                task = self._runtime.spawn(self._run_alone(attempt), name="holdfast attempt")
                task.add_done_callback(partial(self._alone_ended, attempt))
            else:
                self._ready.append(attempt)
        self._schedule_chain()

    def _schedule_chain(self) -> None:
        if self._ready and self._scheduled is None:
            self._scheduled = self._runtime.spawn(self._chain(), name="holdfast attempts")
            self._scheduled.add_done_callback(self._chain_ended)

    def _alone_ended(self, attempt: LeasedAttempt, task: "asyncio.Task[None]") -> None:
        if attempt.began_at is None and attempt.settlement is None:  # its task was cancelled before it began
            self._ready.append(attempt)
            self._schedule_chain()

    def _chain_ended(self, task: "asyncio.Task[None]") -> None:
        if self._scheduled is task:  # it was cancelled before it began
            self._scheduled = None
            self._schedule_chain()

    async def _run_alone(self, attempt: LeasedAttempt) -> None:
        self._turns += 1
        turn = self._turns
        attempt.loop_task = asyncio.current_task()
        CURRENT.set(attempt)
        await self._executor.run(attempt)
        if self._turns == turn:  # nothing else started in the meantime: the handler probably did not suspend
            attempt.plan.suspends = False

    async def _chain(self) -> None:
        self._scheduled = None
        self._turns += 1
        turn = self._turns
        ready, execute = self._ready, self._executor.run
        own_task = asyncio.current_task()
        assert own_task is not None
        chain_began_at = self._runtime.monotonic()
        while ready:
            attempt = ready.popleft()
            self._schedule_chain()  # before the handler, so that the other chain does not inherit its context variables
            attempt.loop_task = own_task
            CURRENT.set(attempt)
            before = copy_context()
            await execute(attempt)
            if self._turns != turn:
                attempt.plan.suspends = True
                break
            if copy_context() != before or own_task.cancelling():  # a cancellation would reach the next handler
                break
            assert attempt.began_at is not None
            if attempt.began_at - chain_began_at > MAX_TURN_US:
                await yield_to_loop()
                break

    def take_back_all(self) -> list[LeasedAttempt]:
        """Remove and return the attempts that have not started."""
        unstarted = list(self._ready)
        self._ready.clear()
        return unstarted
