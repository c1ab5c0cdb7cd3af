"""Callers that conflict with each other: few names, short leases, and workers that forget the leases they hold.

Each caller has a random generator of its own, made from the seed. How their calls interleave depends on the engine and
the machine. So a seed repeats what was tried, not the result; a failure is described by the calls that it is about.
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.engine import Engine
from holdfast.model import observe, operate
from holdfast.model import work as model
from holdfast.model.instants import HOUR, MILLISECOND, SECOND, Micros
from holdfast.model.job import Given, JobKey
from holdfast.model.produce import DepthLimit, Enqueue, Group, NewJob, PoolPlace
from holdfast.model.states import JobState, Reason
from holdfast.runtime import Runtime, SystemRuntime
from holdfast.testing.contract.interleave import Dice
from holdfast.testing.histories.record import History

T = TypeVar("T")

QUEUES = ("plain", "lanes", "small", "pool")
TASKS = ("t", "u")
LANES = ("x", "y", "z")
POOL_LANES = 3
SMALL = (DepthLimit("small", 4),)
POOL = (DepthLimit("pool", 3, each_lane=True),)
LEASE_US: Micros = 40 * MILLISECOND
"""Short enough to run out while others still work."""
EMPTY_ROUNDS = 5
"""After this many rounds without a job, none is left. One is not enough: ending a job may free others."""
KEPT_FOR_NO_TIME = Given(result_ttl=0, retention=0)


@dataclass(frozen=True, slots=True)
class Load:
    """How many callers, and how many calls each makes."""

    callers: int = 6
    calls: int = 120


USUAL = Load()


@dataclass(slots=True)
class Shared:
    """The jobs that all callers know."""

    history: History
    names: list[JobKey] = field(default_factory=list)
    ended: list[JobKey] = field(default_factory=list)
    """Jobs that have failed or were cancelled, as far as an answer showed it."""


async def overlap(
    engines: Sequence[Engine],
    seed: int,
    load: Load = USUAL,
    runtime: Runtime | None = None,
    kind: "type[RandomCaller] | None" = None,
) -> History:
    """Run callers on one store, then finish the jobs they left. The engines are open; callers share them in turn."""
    kind = kind or RandomCaller
    shared = Shared(History(cross_queue_atomic=engines[0].capabilities.cross_queue_atomic))
    runtime = runtime or SystemRuntime()
    callers = [
        kind(shared, engines[number % len(engines)], f"w{number}", Dice(f"{seed}/{number}"), runtime)
        for number in range(load.callers)
    ]
    tasks = [runtime.spawn(caller.run(load.calls), name=caller.name) for caller in callers]
    for task in tasks:
        await task
    await RandomCaller(shared, engines[0], "last", Dice(seed), runtime).drain()
    return shared.history


class RandomCaller:
    """A producer, a worker, a reaper and an operator in one."""

    def __init__(self, shared: Shared, engine: Engine, name: str, dice: Dice, runtime: Runtime) -> None:
        self.shared = shared
        self.engine = engine
        self.name = name
        self.dice = dice
        self.runtime = runtime
        self.held: list[model.Lease] = []
        self.forgotten: list[model.Lease] = []
        self.settled: list[model.Settlement] = []
        self.made = 0
        self.now = 0
        """The engine's time in its last answer."""

    @property
    def verbs(self) -> tuple[tuple[int, Callable[[], Coroutine[Any, Any, None]]], ...]:
        """The verbs of the caller, each with its share of the calls."""
        return (
            (30, self.produce),
            (40, self.work),
            (10, self.renew),
            (8, self.reap),
            (5, self.cancel),
            (6, self.requeue),
            (5, self.switch),
            (1, self.prune),
            (3, self.look),
        )

    async def run(self, calls: int) -> None:
        wheel = [verb for share, verb in self.verbs for _ in range(share)]
        for _ in range(calls):
            await self.pick(wheel)()
            if self.dice.below(4) == 0:
                await self.runtime.sleep(self.dice.below(5) / 1000)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.dice.below(len(items))]

    def chance(self, percent: int) -> bool:
        return self.dice.below(100) < percent

    async def ask(self, command: Any) -> Any:
        answer = await self.shared.history.ask(self.engine, self.name, command)
        if answer is not None:
            self.now = answer.at.wall
        return answer

    # Producing

    async def produce(self) -> None:
        jobs, limits = self.pick((self.fresh, self.named, self.keyed, self.in_lanes, self.in_small, self.in_pool))()
        answer = await self.ask(Enqueue(groups=(Group(jobs, limits),)))
        if answer is not None:
            self.shared.names += [JobKey(job.queue, job.id) for job in jobs]

    def new(self, queue: str, **fields: Any) -> NewJob:
        self.made += 1
        fields = {
            "id": f"{self.name}-{self.made}",
            "task": self.pick(TASKS),
            "priority": self.pick((0, 0, 5)),
            **fields,
        }
        return NewJob(queue=queue, **fields)

    def several(self, most: int, make: Callable[[], NewJob]) -> tuple[NewJob, ...]:
        return tuple(make() for _ in range(1 + self.dice.below(most)))

    def fresh(self) -> tuple[tuple[NewJob, ...], tuple[DepthLimit, ...]]:
        given = KEPT_FOR_NO_TIME if self.chance(30) else Given()
        delay = self.pick((0, 0, 0, 5 * MILLISECOND))
        return self.several(3, lambda: self.new("plain", fresh_id=True, delay=delay, given=given)), ()

    def named(self) -> tuple[tuple[NewJob, ...], tuple[DepthLimit, ...]]:
        number = self.dice.below(6)
        return (self.new("plain", id=f"n{number}", task=TASKS[number % 2]),), ()

    def keyed(self) -> tuple[tuple[NewJob, ...], tuple[DepthLimit, ...]]:
        return (self.new("plain", unique_key=self.pick("kl"), task="t"),), ()

    def in_lanes(self) -> tuple[tuple[NewJob, ...], tuple[DepthLimit, ...]]:
        if self.chance(20):
            number = self.dice.below(3)
            return (self.new("lanes", id=f"l{number}", task="t", lane=LANES[number]),), ()
        return self.several(2, lambda: self.new("lanes", lane=self.pick(LANES))), ()

    def in_small(self) -> tuple[tuple[NewJob, ...], tuple[DepthLimit, ...]]:
        return self.several(2, lambda: self.new("small")), SMALL

    def in_pool(self) -> tuple[tuple[NewJob, ...], tuple[DepthLimit, ...]]:
        return self.several(2, lambda: self.new("pool", pool=PoolPlace(POOL_LANES, self.pick((None, "a", "b"))))), POOL

    # Working

    async def work(self) -> None:
        settlements = [self.settlement(self.held.pop()) for _ in range(len(self.held)) if self.chance(70)]
        if self.settled and self.chance(10):
            settlements.append(self.pick(self.settled))  # sent again, as after an answer that was lost
        if self.forgotten and self.chance(20):
            settlements.append(self.settlement(self.forgotten.pop()))  # late; applied only if no reaper was faster
        unique = {settlement.token: settlement for settlement in settlements}
        self.settled += unique.values()
        starts = tuple(
            model.Start(lease.queue, lease.id, lease.token)
            for lease in self.held
            if lease.state is JobState.ASSIGNED and self.chance(50)
        )
        claim = self.claim(1 + self.dice.below(3), self.pick((0, 0, 1))) if self.chance(80) else None
        answer = await self.ask(model.Exchange(settlements=tuple(unique.values()), starts=starts, claim=claim))
        if answer is not None:
            self.note_ends(unique.values())
            for lease in answer.leases:
                (self.forgotten if self.chance(15) else self.held).append(lease)

    def claim(self, limit: int, prefetch: int = 0, lease_len: Micros = LEASE_US) -> model.Claim:
        first = self.dice.below(len(QUEUES))
        queues = (QUEUES + QUEUES)[first : first + 1 + self.dice.below(len(QUEUES))]
        tasks = tuple(model.TaskClaim(task=task, lease_len=lease_len) for task in TASKS)
        self.made += 1
        return model.Claim(
            claim_id=f"{self.name}-c{self.made}",
            worker=self.name,
            queues=tuple(model.QueueClaim(queue, tasks) for queue in queues),
            limit=limit,
            prefetch=prefetch,
        )

    def settlement(self, lease: model.Lease) -> model.Settlement:
        outcome = self.dice.below(100)
        fields: dict[str, Any] = {"target": JobState.SUCCEEDED, "result": lease.token.encode()}
        if outcome < 15:
            fields = {"target": JobState.FAILED, "reason": Reason.ERROR}
        elif outcome < 25:
            fields = {"target": JobState.RETRYING, "reason": Reason.ERROR, "delay": self.pick((0, 3 * MILLISECOND))}
        elif outcome < 28:
            fields = {"target": JobState.RETRYING, "reason": Reason.WORKER_LOST, "loss": True}
        elif outcome < 32:
            fields = {"target": JobState.QUEUED, "reason": Reason.RELEASED, "refund": True}
        elif outcome < 37:
            fields = {"target": JobState.SCHEDULED, "reason": Reason.SNOOZED, "delay": 2 * MILLISECOND, "refund": True}
        return model.Settlement(queue=lease.queue, id=lease.id, token=lease.token, lane=lease.lane, **fields)

    def note_ends(self, settlements: Iterable[model.Settlement]) -> None:
        self.shared.ended += [JobKey(one.queue, one.id) for one in settlements if one.target is JobState.FAILED]

    async def renew(self) -> None:
        leases = [*self.held, *self.forgotten[-4:]]
        if leases:
            await self.ask(model.Renew(jobs=tuple(model.Renewal(one.queue, one.id, one.token) for one in leases)))

    async def reap(self) -> None:
        answer = await self.ask(model.Expired(worker=self.name, limit=self.pick((2, 500))))
        if answer is not None and answer.leases:
            if self.chance(50):  # long enough for an owner to come back
                await self.runtime.sleep(self.dice.below(10) / 1000)
            reaps = tuple(self.loss(lost) for lost in answer.leases)
            await self.ask(model.Exchange(settlements=reaps))
            self.note_ends(reaps)

    def loss(self, lost: model.ExpiredLease) -> model.Settlement:
        return model.Settlement(
            queue=lost.queue,
            id=lost.id,
            token=lost.token,
            target=JobState.FAILED if self.chance(10) else JobState.RETRYING,
            reason=Reason.WORKER_LOST,
            refund=lost.state is JobState.ASSIGNED,
            listed_expiry=lost.lease_expires,
        )

    # Operating

    async def cancel(self) -> None:
        if self.shared.names:
            name = self.pick(self.shared.names[-40:])
            await self.ask(operate.Cancel(queue=name.queue, ids=(name.id,)))
            self.shared.ended.append(name)

    async def requeue(self) -> None:
        if self.shared.ended:
            name = self.pick(self.shared.ended[-5:])
            limits = {"small": SMALL, "pool": POOL}.get(name.queue, ())
            await self.ask(operate.Requeue(queue=name.queue, ids=(name.id,), limits=limits))

    async def switch(self) -> None:
        queue, lane = self.pick((("plain", None), ("lanes", "x"), ("lanes", "y"), ("small", None)))
        verb = self.pick((operate.Pause, operate.Resume, operate.Resume))
        await self.ask(verb(queue=queue, lane=lane))

    async def prune(self) -> None:
        await self.ask(observe.Prune(limit=5))

    async def look(self) -> None:
        await self.ask(observe.Stats(queues=QUEUES))

    # The end

    async def drain(self) -> None:
        """Alone: run every live job to its end, then read and audit the store."""
        for queue, lane in (("plain", None), ("lanes", "x"), ("lanes", "y"), ("small", None)):
            await self.ask(operate.Resume(queue=queue, lane=lane))
        idle = 0
        for _ in range(1000):
            self.engine.clock_offset += SECOND
            listed = await self.must(model.Expired(worker=self.name))
            settlements = [self.loss(lost) for lost in listed.leases]
            settlements += [
                model.Settlement(
                    queue=lease.queue,
                    id=lease.id,
                    token=lease.token,
                    lane=lease.lane,
                    target=JobState.SUCCEEDED,
                    result=lease.token.encode(),
                )
                for lease in self.held
            ]
            claim = self.everything()
            answer = await self.must(model.Exchange(settlements=tuple(settlements), claim=claim))
            self.held = list(answer.leases)
            idle = 0 if self.held or listed.leases or answer.next_due is not None else idle + 1
            if idle == EMPTY_ROUNDS:
                break
        names = tuple(sorted({*self.shared.names, *self.shared.history.released}))
        await self.must(observe.Get(jobs=names))
        await self.must(observe.Stats(queues=QUEUES))
        await self.must(observe.Audit())
        self.shared.history.drained = True

    async def must(self, command: Any) -> Any:
        answer = await self.ask(command)
        assert answer is not None, f"{command} failed: {self.shared.history.calls[-1].error}"
        return answer

    def everything(self) -> model.Claim:
        tasks = tuple(model.TaskClaim(task=task, lease_len=HOUR) for task in TASKS)
        self.made += 1
        return model.Claim(
            claim_id=f"{self.name}-c{self.made}",
            worker=self.name,
            queues=tuple(model.QueueClaim(queue, tasks) for queue in QUEUES),
            limit=100,
        )
