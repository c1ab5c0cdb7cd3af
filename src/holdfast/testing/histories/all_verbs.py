"""Callers that use every verb: parents, clears, resizes, and transactions of users that commit or roll back.

Some ends are then not visible in any answer: a failed parent cancels its children, a clear cancels all jobs. So these
histories are only checked roughly: no call raises, the structure is sound at all times, and all jobs can be drained.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from holdfast.errors import Busy
from holdfast.model import observe, operate
from holdfast.model import work as model
from holdfast.model.instants import MILLISECOND
from holdfast.model.job import JobKey
from holdfast.model.produce import Enqueue, Group, NewJob, Parent, PoolPlace
from holdfast.testing.histories.callers import (
    KEPT_FOR_NO_TIME,
    LANES,
    POOL_LANES,
    QUEUES,
    RandomCaller,
)


class RolledBackError(Exception):
    """Raised to roll back a user's transaction."""


class AllVerbsCaller(RandomCaller):
    """A caller that uses every verb."""

    @property
    def verbs(self) -> tuple[tuple[int, Callable[[], Coroutine[Any, Any, None]]], ...]:
        return (
            *super().verbs,
            (8, self.family),
            (5, self.crowd),
            (2, self.clear),
            (2, self.resize),
            (3, self.remove_queue),
            (4, self.delete),
            (4, self.amend),
            (3, self.trigger),
            (2, self.disown),
            (1, self.audit),
            *(((5, self.transaction),) if self.engine.capabilities.user_transactions else ()),
        )

    # Producing

    async def family(self) -> None:
        """Jobs with parents: each other, and stored jobs."""
        jobs: list[NewJob] = []
        queues = self.of_one_group(QUEUES)
        for _ in range(1 + self.dice.below(3)):
            parents = [JobKey(job.queue, job.id) for job in jobs[-1:]]
            stored = [name for name in self.shared.names[-20:] if name.queue in queues]
            if stored and self.chance(60):
                parents.append(self.pick(stored))
            edges = tuple(Parent(parent, any_end=self.chance(50)) for parent in parents)
            jobs.append(self.anywhere(self.pick(queues), parents=edges))
        await self.enqueue(jobs)

    async def crowd(self) -> None:
        """Jobs with ids that other callers use too, in any lane, with a process to notify."""
        jobs = []
        queues = self.of_one_group(("lanes", "pool"))
        for _ in range(1 + self.dice.below(4)):
            queue, reply = self.pick(queues), self.pick((None, "p1", "p2"))
            jobs.append(self.anywhere(queue, id=f"{queue[0]}{self.dice.below(4)}", task="t", reply=reply))
        await self.enqueue(jobs)

    def of_one_group(self, queues: Sequence[str]) -> Sequence[str]:
        """The queues that one group may have jobs in (S4)."""
        return queues if self.engine.capabilities.cross_queue_atomic else (self.pick(queues),)

    def anywhere(self, queue: str, **fields: Any) -> NewJob:
        if queue == "lanes":
            fields["lane"] = self.pick(LANES)
        elif queue == "pool":
            fields["pool"] = PoolPlace(POOL_LANES, self.pick((None, "a", "b")))
        if self.chance(15):
            fields["given"] = KEPT_FOR_NO_TIME
        if self.chance(10):
            fields["expires"] = self.now + 20 * MILLISECOND
        return self.new(queue, **fields)

    async def enqueue(self, jobs: list[NewJob]) -> None:
        await self.ask(Enqueue(groups=(Group(tuple(jobs)),)))
        self.shared.names += [JobKey(job.queue, job.id) for job in jobs]

    async def transaction(self) -> None:
        """Enqueue and settle inside a user's transaction, which commits or rolls back."""
        try:
            async with self.engine.transaction() as connection:
                for _ in range(1 + self.dice.below(2)):
                    await self.engine.in_transaction(self.joinable(), connection)
                    await self.runtime.sleep(self.dice.below(8) / 1000)
                if self.chance(25):
                    raise RolledBackError
        except (RolledBackError, Busy):
            pass

    def joinable(self) -> Any:
        if self.held and self.chance(60):
            return model.Exchange(settlements=(self.settlement(self.held.pop()),))
        jobs, _ = self.pick((self.fresh, self.in_lanes, self.in_pool, self.keyed))()
        self.shared.names += [JobKey(job.queue, job.id) for job in jobs]
        return Enqueue(groups=(Group(jobs),))

    # Operating

    def some(self) -> tuple[str, tuple[str, ...]]:
        queue = self.pick(QUEUES)
        ids = [name.id for name in self.shared.names[-60:] if name.queue == queue]
        return queue, tuple(self.pick(ids) for _ in range(1 + self.dice.below(3))) if ids else ("absent",)

    async def cancel(self) -> None:
        queue, ids = self.some()
        await self.ask(operate.Cancel(queue=queue, ids=ids))
        self.shared.ended += [JobKey(queue, id) for id in ids]

    async def requeue(self) -> None:
        queue, ids = self.some()
        await self.ask(operate.Requeue(queue=queue, ids=ids))
        await super().requeue()

    async def clear(self) -> None:
        await self.ask(operate.Clear(queue=self.pick(QUEUES), lane=self.pick((None, "x", "0"))))

    async def resize(self) -> None:
        await self.ask(operate.Resize(name="pool", lanes=1 + self.dice.below(4)))

    async def remove_queue(self) -> None:
        await self.ask(operate.RemoveQueue(queue=self.pick(QUEUES)))

    async def delete(self) -> None:
        queue, ids = self.some()
        await self.ask(operate.Delete(queue=queue, ids=ids))

    async def amend(self) -> None:
        queue, ids = self.some()
        reply = self.pick((None, "p3"))
        await self.ask(operate.Amend(queue=queue, ids=ids, priority=self.dice.below(5), reply=reply))

    async def trigger(self) -> None:
        queue, ids = self.some()
        await self.ask(operate.Trigger(queue=queue, ids=ids))

    async def disown(self) -> None:
        await self.ask(model.Disown(workers=(f"w{self.dice.below(8)}",)))

    async def audit(self) -> None:
        await self.ask(observe.Audit())
