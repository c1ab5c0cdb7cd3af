"""Callers whose users' transactions stay open: some read an old snapshot, bring many jobs, or are rolled back.

Such a transaction uses ids and keys of its own only. So no other call may wait for it (PF5): a call that raises `Busy`
or is not answered in time is a problem. What the transaction brings keeps its order in a lane, and a child is not
cancelled because its parent was deleted before the commit.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.errors import Busy
from holdfast.model import work as model
from holdfast.model.instants import HOUR
from holdfast.model.job import JobKey
from holdfast.model.produce import Enqueue, Group, NewJob, Parent
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Exchange
from holdfast.testing.histories.all_verbs import RolledBackError
from holdfast.testing.histories.callers import KEPT_FOR_NO_TIME, RandomCaller
from holdfast.testing.histories.check import Verdict, check_roughly
from holdfast.testing.histories.record import History

SERIALIZATION_FAILURE = "40001"


Beside = Callable[[], Coroutine[Any, Any, None]]
"""What the caller does outside of its transaction before it commits."""


class OpenTransactionCaller(RandomCaller):
    """A caller with transactions that stay open while the others go on."""

    arrivals = 20
    """Jobs that a transaction brings to lanes that no other caller uses."""
    open_ms = 60
    """A transaction stays open for up to this time, after each of its commands."""
    longest_ms = 2_500
    """The first transaction of the first caller stays open for longer than a call waits for a lock."""

    async def run(self, calls: int) -> None:
        if self.name == "w0" and self.engine.capabilities.concurrent_writers:
            small, limits = self.in_small()
            await self.in_transaction(self.many(), Enqueue(groups=(Group(small, limits),)), open_ms=self.longest_ms)
        await super().run(calls)

    @property
    def verbs(self) -> tuple[tuple[int, Callable[[], Coroutine[Any, Any, None]]], ...]:
        return (*super().verbs, (3, self.bring), (3, self.replace), (3, self.end), (3, self.become_orphan))

    async def in_transaction(self, *commands: Any, beside: Beside | None = None, open_ms: int = 0) -> bool:
        """Perform commands in a transaction that stays open for a while. False: it was rolled back."""
        commit = self.chance(75)
        try:
            async with self.engine.transaction() as connection:
                if self.engine.capabilities.concurrent_writers and self.chance(50):
                    await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                for command in commands:
                    await self.engine.in_transaction(command, connection)
                    if self.engine.capabilities.concurrent_writers:
                        await self.runtime.sleep(self.dice.below(self.open_ms) / 1000)
                if open_ms:
                    await self.runtime.sleep(open_ms / 1000)
                if beside is not None:
                    await beside()
                if not commit:
                    raise RolledBackError
        except (RolledBackError, Busy):
            return False
        except Exception as error:
            if getattr(error, "sqlstate", "") != SERIALIZATION_FAILURE:
                raise
            return False
        return True

    def own(self, queue: str, **fields: Any) -> NewJob:
        """A job that no other caller cancels or requeues, because none knows its id."""
        return self.new(queue, **{"task": "t", "priority": 0, **fields})

    def many(self) -> Enqueue:
        lanes = (f"own-{self.name}-{number % 10}" for number in range(self.arrivals))
        return Enqueue(groups=(Group(tuple(self.own("lanes", lane=lane) for lane in lanes)),))

    async def bring(self) -> None:
        """Many jobs for lanes, then one more outside of the transaction: it comes last in its lane."""
        lane = f"own-{self.name}"
        many, jobs = self.many(), tuple(self.own("lanes", lane=lane) for _ in range(2))
        (small, small_limits), (pool, pool_limits) = self.in_small(), self.in_pool()
        groups = (Group(jobs), Group(small, small_limits), Group(pool, pool_limits))
        if await self.in_transaction(many, *(Enqueue(groups=(group,)) for group in groups)):
            order = self.shared.history.lane_order.setdefault(lane, [])
            order += [job.id for job in jobs]
            last = self.own("lanes", lane=lane)
            if await self.ask(Enqueue(groups=(Group((last,)),))) is not None:
                order.append(last.id)

    async def replace(self) -> None:
        """An id of its own, again and again: it ends in one transaction and is replaced in the next."""
        job = self.own("lanes", id=f"{self.name}-again", lane="x", unique_key=self.pick((None, f"{self.name}-key")))
        await self.in_transaction(Enqueue(groups=(Group((job,)),)))

    async def end(self) -> None:
        """Settle leases in a transaction. The owner does not touch them before it has ended."""
        if self.held:
            leases, self.held = self.held, []
            settlements = tuple(self.settlement(lease) for lease in leases)
            if not await self.in_transaction(Exchange(settlements=settlements)):
                self.forgotten += leases

    async def become_orphan(self) -> None:
        """A child whose parent succeeds, and is deleted at once, before the transaction of the child commits."""
        if not self.engine.capabilities.concurrent_writers:
            return
        queue = f"parents-{self.name}"
        parent = self.own(queue, given=KEPT_FOR_NO_TIME)
        child = self.own("plain", parents=(Parent(JobKey(queue, parent.id)),))
        await self.ask(Enqueue(groups=(Group((parent,)),)))

        async def succeed() -> None:
            tasks = (model.TaskClaim(task="t", lease_len=HOUR),)
            self.made += 1
            claim = model.Claim(
                claim_id=f"{self.name}-p{self.made}",
                worker=self.name,
                queues=(model.QueueClaim(queue, tasks),),
                limit=100,
            )
            answer = await self.ask(Exchange(claim=claim))
            if answer is not None:
                ends = (
                    model.Settlement(queue=queue, id=lease.id, token=lease.token, target=JobState.SUCCEEDED)
                    for lease in answer.leases
                )
                await self.ask(Exchange(settlements=tuple(ends)))

        if await self.in_transaction(Enqueue(groups=(Group((child,)),)), beside=succeed):
            self.shared.history.released.append(JobKey(child.queue, child.id))


def check_transactions(history: History) -> Verdict:
    """`check_roughly`, and what this page says about open transactions."""
    verdict = check_roughly(history)
    problems = list(verdict.problems)
    if history.busy:
        problems.append(f"{history.busy} calls were answered Busy, and no transaction used a name of another")
    granted: dict[str | None, list[str]] = {}
    for call in history.calls:
        if isinstance(call.command, Exchange) and call.answer is not None:
            for lease in call.answer.leases:
                if lease.id not in granted.setdefault(lease.lane, []):
                    granted[lease.lane].append(lease.id)
    for lane, order in history.lane_order.items():
        verdict.seen["jobs in order"] += len(order)
        if granted.get(lane, []) != order:
            problems.append(f"lane {lane}: its jobs came as {order} and were leased as {granted.get(lane, [])}")
    for key, record in history.records().items():
        if key in history.released:
            verdict.seen["released children"] += 1
            if record is None or record.reason is Reason.PARENT_FAILED:
                problems.append(f"{key} was cancelled, and its parent had succeeded")
    return Verdict(problems, verdict.seen)
