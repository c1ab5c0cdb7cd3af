"""Attempts on the event loop: many in turn, and as many side by side as have to wait for something.

A task per attempt costs more than a short handler does. So attempts run in chains: a chain is a task that takes one
attempt after the other. Before each it makes sure that another chain stands ready; that one gets its turn as soon as a
handler waits for something, takes the next attempt, and so on. Handlers that never wait follow each other in one task.

To a handler it looks as if the task were its own. A chain that was suspended in a handler runs no further one, so
whatever hangs on the task (a cancellation, a timeout, a task group) ends with it; and one whose context variables a
handler has changed runs no further one either.

Handlers that wait would start one per turn of the loop this way. So it is remembered of each job's task whether its
last handler waited; if so, its attempts get a task each from the beginning, all in the same turn.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from contextvars import copy_context

from holdfast.context import CURRENT
from holdfast.model.instants import MILLISECOND
from holdfast.runtime import Runtime
from holdfast.service import breathe
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.execute import Executor

LONGEST_TURN = 5 * MILLISECOND
"""After so long without a wait, a chain lets everything else have its turn."""


class AttemptRunner:
    """Starts attempts. Used from the loop's thread only."""

    def __init__(self, runtime: Runtime, executor: Executor) -> None:
        self._runtime = runtime
        self._executor = executor
        self._ready: deque[LeasedAttempt] = deque()
        self._standby = False
        self._turns = 0

    def run(self, attempts: Iterable[LeasedAttempt]) -> None:
        """Run these, in this order."""
        self._turns += 1  # whoever is suspended now will notice
        for attempt in attempts:
            if attempt.plan.suspends:
                self._runtime.spawn(self._alone(attempt), name="holdfast attempt")
            else:
                self._ready.append(attempt)
        self._stand_by()

    def _stand_by(self) -> None:
        if self._ready and not self._standby:
            self._standby = True
            self._runtime.spawn(self._chain(), name="holdfast attempts")

    async def _alone(self, attempt: LeasedAttempt) -> None:
        self._turns += 1
        turn = self._turns
        attempt.loop_task = asyncio.current_task()
        CURRENT.set(attempt)
        await self._executor.run(attempt)
        if self._turns == turn:  # nothing else began meanwhile: it probably did not wait
            attempt.plan.suspends = False

    async def _chain(self) -> None:
        self._standby = False
        self._turns += 1
        turn = self._turns
        ready, execute = self._ready, self._executor.run
        me = asyncio.current_task()
        began = self._runtime.monotonic()
        while ready:
            attempt = ready.popleft()
            self._stand_by()  # before the handler, so that the other chain does not inherit what it leaves behind
            attempt.loop_task = me
            CURRENT.set(attempt)
            before = copy_context()
            await execute(attempt)
            if self._turns != turn:
                attempt.plan.suspends = True
                break
            if copy_context() != before:
                break
            assert attempt.began_at is not None
            if attempt.began_at - began > LONGEST_TURN:
                await breathe()
                break

    def take_back_all(self) -> list[LeasedAttempt]:
        """Take back what has not begun yet."""
        left = list(self._ready)
        self._ready.clear()
        return left
