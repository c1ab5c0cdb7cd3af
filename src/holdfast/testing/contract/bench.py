"""The test bench of an engine: the calls with which nearly every example begins and ends."""

import itertools
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from itertools import groupby
from typing import Any

from holdfast.engine import Engine
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.observe import QueueStats
from holdfast.model.produce import Accepted, DepthLimit, Group, GroupAccepted, GroupAnswer, NewJob
from holdfast.model.records import LaneRecord
from holdfast.model.states import JobState
from holdfast.model.work import Claim, ExpiredLease, Lease, Settlement, SettleStatus
from holdfast.testing.clock import FakeClock
from holdfast.testing.contract.builders import QUEUE, REAPER, claim, reap, succeed

EngineMaker = Callable[[], Engine]
"""Makes an engine on an empty store; the caller opens it."""
UserTransaction = Callable[[], AbstractAsyncContextManager[object]]
"""Opens a transaction as a user would; its value can be passed to `in_transaction`."""
DamageOneChange = Callable[[Engine], Awaitable[None]]
"""Damages one stored change of an engine's last write, and opens the engine again."""


class Bench:
    """An open engine, its clock, and shorthands for its verbs. A shorthand asserts what it assumes about the answer."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.clock = FakeClock(engine)
        self._claims = itertools.count(1)

    # Producing

    async def offer(self, *jobs: NewJob, limits: Iterable[DepthLimit] = ()) -> GroupAnswer:
        """Enqueue one group and return its answer; the group may be refused."""
        answer = await self.engine.enqueue(Group(jobs, tuple(limits)))
        assert len(answer.groups) == 1
        return answer.groups[0]

    async def put(self, *jobs: NewJob, limits: Iterable[DepthLimit] = ()) -> tuple[Accepted, ...]:
        """Enqueue one group and assert that it is accepted. S4: one group for each queue, if an engine needs that."""
        if not self.engine.capabilities.cross_queue_atomic and len({job.queue for job in jobs}) > 1:
            by_queue = [await self.put(*some, limits=limits) for _, some in groupby(jobs, lambda job: job.queue)]
            return tuple(accepted for some in by_queue for accepted in some)
        answer = await self.offer(*jobs, limits=limits)
        assert isinstance(answer, GroupAccepted), f"The group was not accepted: {answer!r}"
        assert len(answer.jobs) == len(jobs)
        return answer.jobs

    async def put_one(self, job: NewJob, limits: Iterable[DepthLimit] = ()) -> Accepted:
        return (await self.put(job, limits=limits))[0]

    # Working

    def claim(self, **fields: Any) -> Claim:
        """A claim with a new id; see `builders.claim`."""
        return claim(f"claim-{next(self._claims)}", **fields)

    async def take(self, limit: int = 1, **fields: Any) -> tuple[Lease, ...]:
        return (await self.engine.claim(self.claim(limit=limit, **fields))).leases

    async def take_one(self, **fields: Any) -> Lease:
        leases = await self.take(**fields)
        assert len(leases) == 1, f"Wanted one lease, got {leases!r}"
        return leases[0]

    async def take_ids(self, limit: int = 100, **fields: Any) -> list[str]:
        """Claim jobs and return their ids, in the order of the answer."""
        return [lease.id for lease in await self.take(limit, **fields)]

    async def settle(self, settlement: Settlement) -> SettleStatus:
        answer = await self.engine.settle(settlement)
        assert len(answer.settled) == 1
        return answer.settled[0]

    async def finish(self, job: NewJob, **fields: Any) -> Lease:
        """Enqueue a job, claim it and let it succeed. No other job may be ready."""
        await self.put(job)
        lease = await self.take_one(queue=job.queue, tasks=(job.task,))
        assert lease.id == job.id
        assert await self.settle(succeed(lease, **fields)) is SettleStatus.APPLIED
        return lease

    # Expiry

    async def expired(self, **fields: Any) -> tuple[ExpiredLease, ...]:
        return (await self.engine.expired(REAPER, **fields)).leases

    async def expire(self, lease: Lease) -> ExpiredLease:
        """Let a lease expire, and return its entry in the list of expired leases."""
        self.clock.advance((lease.lease_len + SECOND) / SECOND)
        found = [lost for lost in await self.expired() if lost.token == lease.token]
        assert len(found) == 1, f"The lease of {lease.id!r} should be listed once, got {found!r}"
        return found[0]

    async def lose(self, lease: Lease, **fields: Any) -> SettleStatus:
        """Let a lease expire, and reap it: the job becomes `retrying`, due at once."""
        return await self.settle(reap(await self.expire(lease), **fields))

    # Exact instants

    def freeze(self) -> None:
        """Set the clock back a little. The time of an engine then stands still at the last time it read.

        For rules that apply at the exact instant of a limit. On an engine whose time continues, the instant has passed.
        """
        self.clock.set_back(seconds=4)  # TM3: a longer lead may be dropped

    # Reading

    async def get_or_none(self, id: str, queue: str = QUEUE) -> JobRecord | None:
        return (await self.engine.get(JobKey(queue, id))).jobs[0]

    async def get(self, id: str = "a", queue: str = QUEUE) -> JobRecord:
        job = await self.get_or_none(id, queue)
        assert job is not None, f"There is no job {id!r} in queue {queue!r}"
        return job

    async def state(self, id: str = "a", queue: str = QUEUE) -> JobState:
        return (await self.get(id, queue)).state

    async def states(self, *ids: str) -> list[JobState]:
        return [await self.state(id) for id in ids]

    async def stats(self, queue: str = QUEUE) -> QueueStats:
        return (await self.engine.stats(queue)).queues[0]

    async def lane(self, lane: str, queue: str = QUEUE) -> LaneRecord:
        found = [record for record in (await self.engine.lanes(queue)).lanes if record.lane == lane]
        assert len(found) == 1, f"Lane {lane!r} should be there once, got {found!r}"
        return found[0]
