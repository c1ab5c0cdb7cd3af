"""The contract: what an engine is. Its implementations stand in `engines/`; users call them stores.

An engine keeps records and applies decisions; it takes none. (One exception: when someone asked to cancel,
a settlement that would let the job run again becomes `cancelled`.) Each verb is atomic, and its effect is as
durable as the engine's class says before the answer is given.

To write an engine: subclass `Engine`, implement the abstract methods, and run the conformance suite
(`pytest --pyargs holdfast.testing.contract --holdfast-engine=URL`). `perform` receives every verb as a command
from `holdfast.model` and returns that command's answer; the methods below only name the verbs, check what
they are given, and say what is promised. `docs/contract.md` has the rules in full.

Names of jobs are (queue, id). Order is promised inside a queue: priority, then due time, then arrival.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar, Self

from msgspec import Struct

from holdfast.errors import Unsupported
from holdfast.model import check, observe, operate, produce, work
from holdfast.model.command import A, Command
from holdfast.model.instants import At
from holdfast.model.job import JobKey
from holdfast.model.records import ScheduleRecord, WorkerRecord
from holdfast.transactions.seat import JoinsTransactions


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an engine can do. Code branches on these, never on an engine's name."""

    durable: bool
    """Acknowledged writes survive the process."""
    shared_between_processes: bool
    shared_between_hosts: bool
    push: bool
    """Bells reach other waiters without polling."""
    joins_transactions: bool
    """`enqueue` and `settle` can take part in a transaction of the user's."""
    cross_queue_atomic: bool
    """One verb over several queues is one atomic step; edges between queues are possible."""
    order_slack: int = 0
    """Microseconds for which a ready job may be outranked while calls overlap."""
    concurrent_writers: bool = True
    """Others go on writing while a transaction of the user's is open."""


class Subscription(ABC):
    """Ears for bells. A bell is a hint that it is worth looking; it carries nothing and may be lost."""

    @abstractmethod
    async def wait(self, timeout: float | None = None) -> frozenset[str]:
        """Wait until a bell has rung since the last call; answer which. Empty: the time ran out."""

    @abstractmethod
    def close(self) -> None:
        """Stop listening. A waiter is woken and gets an empty answer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class RenewalConnection(ABC):
    """A small blocking door with its own connection, for the lease keeper's thread and nobody else."""

    @abstractmethod
    def renew(self, jobs: Iterable[work.Renewal]) -> work.RenewAnswer: ...

    @abstractmethod
    def heartbeat(self, worker: WorkerRecord) -> work.HeartbeatAnswer: ...

    @abstractmethod
    def close(self) -> None: ...


class Engine(JoinsTransactions, ABC):
    """Storage for jobs, leases and what belongs to them. `JoinsTransactions` is its part in users' transactions."""

    scheme: ClassVar[str]
    """The first part of its address, and its name in messages."""
    capabilities: ClassVar[Capabilities]

    # What an engine implements

    @abstractmethod
    async def perform(self, command: Command[A]) -> A:
        """Carry out one command, atomically, and answer it.

        Raises EngineUnavailable when certainly nothing happened, OutcomeUnknown when it may have.
        """

    @abstractmethod
    async def open(self) -> None:
        """Connect, and refuse a server or a schema that is too old. Opening twice does nothing."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections and wake every waiter. Closing twice does nothing."""

    @abstractmethod
    async def migrate(self) -> tuple[str, ...]:
        """Bring the schema up to date; answer the names of the steps taken. Safe when two run at once."""

    async def migration_script(self, *, after: int | None = None, roles: Iterable[str] = ()) -> str:
        """What `migrate` and `grant` would do, for somebody else to run. Empty: nothing.

        `after` is the version to start from; without it the store is asked.
        """
        raise Unsupported(capability="migration_script", engine=self.scheme)

    async def grant(self, role: str) -> None:
        """Let a role of the store's own use it, with no more rights than that takes. Raises Unsupported."""
        raise Unsupported(capability="grant", engine=self.scheme)

    @abstractmethod
    def subscribe(self, *topics: str) -> Subscription:
        """Listen for `queue:Q`, `room:Q`, `worker:W`, `reply:P`."""

    @abstractmethod
    def renewal_connection(self) -> RenewalConnection:
        """A blocking door for renewals and heartbeats. See `RenewalConnection`."""

    @property
    @abstractmethod
    def clock_offset(self) -> int:
        """Microseconds added to the engine's clocks: 0 in production, moved forward by tests."""

    @clock_offset.setter
    @abstractmethod
    def clock_offset(self, value: int) -> None: ...

    @property
    def process_name(self) -> str:
        """The name under which other processes of this host can tell whether this one lives; empty: they cannot."""
        return ""

    async def ended_workers(self) -> tuple[str, ...]:
        """Workers on this host whose process is known to have ended. Always none where that cannot be known."""
        return ()

    # The feed: what has happened, told to other processes that listen. Lossy; nothing depends on it

    @property
    def feed_kinds(self) -> frozenset[str]:
        """The kinds of messages that other processes listen for, as far as is known. Cheap; from any thread."""
        return frozenset()

    def publish(self, message: bytes) -> None:
        """Send UTF-8 text of at most 7,000 bytes to whoever listens, or lose it. Never waits, never raises."""

    def listen_to_feed(self, kinds: Iterable[str], hear: Callable[[bytes], None]) -> None:
        """Have `hear` called, on any thread, with what other processes tell. Called again: instead. No kinds: stop.

        The kinds are for `feed_kinds` over there; what comes may be of any. `hear` never waits and never raises.
        """

    # Producing

    async def enqueue(self, *groups: produce.Group, join: object | None = None) -> produce.EnqueueAnswer:
        """Insert groups of jobs.

        Does: decides each group whole (created, duplicate, completed; or full, conflict, orphan) in the order
        given. Guarantees: a refused group wrote nothing; an accepted one is durable; of any number of racing
        callers with one id or key exactly one creates. Raises: Unsupported for `join` without the
        capability, Busy when a key is held in someone's open transaction for too long.
        """
        for group in groups:
            check.group(group)
        if join is not None:
            return await self.joined(produce.Enqueue(groups=groups), join)
        return await self.perform(produce.Enqueue(groups=groups))

    # Working

    async def exchange(
        self,
        settlements: Iterable[work.Settlement] = (),
        starts: Iterable[work.Start] = (),
        claim: work.Claim | None = None,
    ) -> work.ExchangeAnswer:
        """Settle, start and claim in one step.

        Does: settlements in the order given, then lanes and due jobs move up, then the claim.
        Guarantees: a settlement applies only while its token is current, and only once; no job is leased
        twice at a time; leases come back in claim order, never more than `limit` + `prefetch`; what the
        settlements freed can be claimed in the same call. Raises: nothing of its own; a stale owner
        gets the answer `lost`.
        """
        command = work.Exchange(settlements=tuple(settlements), starts=tuple(starts), claim=claim)
        check.exchange(command)
        return await self.perform(command)

    async def claim(self, claim: work.Claim) -> work.ExchangeAnswer:
        """`exchange` with nothing but a claim."""
        return await self.exchange(claim=claim)

    async def settle(self, *settlements: work.Settlement, join: object | None = None) -> work.ExchangeAnswer:
        """`exchange` with nothing but settlements; with `join`, inside a transaction of the user's."""
        if join is None:
            return await self.exchange(settlements)
        command = work.Exchange(settlements=settlements)
        check.exchange(command)
        return await self.joined(command, join)

    async def renew(self, *jobs: work.Renewal) -> work.RenewAnswer:
        """Extend leases by their own length from now, and hear what the worker should know.

        Guarantees: accepted while the token is current, expired or not; never shortens a lease.
        """
        for job in jobs:
            if job.progress is not None:
                check.storable(job.progress.note, "note")
        return await self.perform(work.Renew(jobs=jobs))

    async def expired(self, worker: str, *, limit: int = 500, tasks: Iterable[str] | None = None) -> work.ExpiredAnswer:
        """List leases past their expiry; changes nothing. Callers get different orders, so reapers spread."""
        check.limit(limit)
        named = None if tasks is None else tuple(tasks)
        return await self.perform(work.Expired(worker=worker, limit=limit, tasks=named))

    async def disown(self, *workers: str) -> work.DisownAnswer:
        """Let the leases of dead workers expire now. Wrongly called it costs a run, never a second outcome."""
        for worker in workers:
            check.name(worker, "worker")
        return await self.perform(work.Disown(workers=workers))

    async def heartbeat(self, worker: WorkerRecord) -> work.HeartbeatAnswer:
        """Write a worker's record; hear whether it was asked to stop."""
        check.name(worker.worker, "worker")
        check.storable(worker.host, "host")
        return await self.perform(work.Heartbeat(worker=worker))

    async def workers(self) -> work.WorkersAnswer:
        """All worker records, by name."""
        return await self.perform(work.Workers())

    async def stop_worker(self, worker: str) -> work.WorkerAnswer:
        """Ask a worker to stop gently: told by its next heartbeat, hurried by its bell."""
        check.name(worker, "worker")
        return await self.perform(work.StopWorker(worker=worker))

    async def forget_worker(self, worker: str) -> work.WorkerAnswer:
        """Remove a worker's record, as it ends."""
        check.name(worker, "worker")
        return await self.perform(work.ForgetWorker(worker=worker))

    # Operating

    async def cancel(self, queue: str, *ids: str, note: str = "") -> operate.CancelJobsAnswer:
        """Cancel: waiting jobs at once, leased ones by request (their worker's bell is rung)."""
        check.names(queue, ids)
        return await self.perform(operate.Cancel(queue=queue, ids=ids, note=check.note(note)))

    async def requeue(self, queue: str, *ids: str, limits: Iterable[produce.DepthLimit] = ()) -> operate.OperateAnswer:
        """Bring failed or cancelled jobs back at the tail; every older lease stays fenced."""
        check.names(queue, ids)
        command = operate.Requeue(queue=queue, ids=ids, limits=tuple(limits))
        check.limits(command.limits)
        return await self.perform(command)

    async def trigger(self, queue: str, *ids: str) -> operate.OperateAnswer:
        """Make scheduled or retrying jobs due now. A blocked, leased or finished one is `wrong_state`."""
        check.names(queue, ids)
        return await self.perform(operate.Trigger(queue=queue, ids=ids))

    async def delete(self, queue: str, *ids: str) -> operate.OperateAnswer:
        """Remove finished jobs. A live one is `wrong_state`: cancel it first."""
        check.names(queue, ids)
        return await self.perform(operate.Delete(queue=queue, ids=ids))

    async def amend(
        self,
        queue: str,
        *ids: str,
        result_ttl: int | None = None,
        retention: int | None = None,
        priority: int | None = None,
        due: int | None = None,
        reply: str | None = None,
    ) -> operate.OperateAnswer:
        """Change TTLs, priority or due time after the fact. See `operate.Amend`."""
        command = operate.Amend(
            queue=queue,
            ids=ids,
            result_ttl=result_ttl,
            retention=retention,
            priority=priority,
            due=due,
            reply=reply,
        )
        check.names(queue, ids)
        check.amend(command)
        return await self.perform(command)

    async def pause(self, queue: str, lane: str | None = None) -> operate.ScopeAnswer:
        """No claim invoked after this answer takes a job of the queue or lane. Enqueue goes on."""
        check.scope(queue, lane)
        return await self.perform(operate.Pause(queue=queue, lane=lane))

    async def resume(self, queue: str, lane: str | None = None) -> operate.ScopeAnswer:
        """Undo `pause`. Due times were kept."""
        check.scope(queue, lane)
        return await self.perform(operate.Resume(queue=queue, lane=lane))

    async def clear(self, queue: str, lane: str | None = None) -> operate.ScopeAnswer:
        """Cancel every live job that has arrived so far, running ones included: their tokens are void."""
        check.scope(queue, lane)
        return await self.perform(operate.Clear(queue=queue, lane=lane))

    async def emptied(self, queue: str) -> operate.EmptiedAnswer:
        """True for one caller each time the queue has run empty."""
        check.name(queue, "queue")
        return await self.perform(operate.Emptied(queue=queue))

    async def put_pool(self, name: str, lanes: int) -> operate.PoolAnswer:
        """Declare a pool, or learn its stored size."""
        check.pool(name, lanes)
        return await self.perform(operate.PutPool(name=name, lanes=lanes))

    async def resize(self, name: str, lanes: int) -> operate.PoolAnswer:
        """Change a pool's number of lanes."""
        check.pool(name, lanes)
        return await self.perform(operate.Resize(name=name, lanes=lanes))

    async def pools(self) -> operate.PoolsAnswer:
        """All pools, by name."""
        return await self.perform(operate.Pools())

    async def put_schedule(self, schedule: ScheduleRecord) -> operate.SchedulesAnswer:
        """Write a schedule. A tick is an ordinary enqueue whose id names schedule and time."""
        check.name(schedule.name, "schedule")
        check.name(schedule.queue, "queue")
        return await self.perform(operate.PutSchedule(schedule=schedule))

    async def drop_schedule(self, name: str) -> operate.SchedulesAnswer:
        """Remove a schedule; removing none is fine."""
        check.name(name, "schedule")
        return await self.perform(operate.DropSchedule(name=name))

    async def schedules(self) -> operate.SchedulesAnswer:
        """All schedules, by name."""
        return await self.perform(operate.Schedules())

    # Looking and keeping house

    async def get(self, *jobs: JobKey) -> observe.GetAnswer:
        """The stored records, None where there is none."""
        for job in jobs:
            check.names(job.queue, (job.id,))
        return await self.perform(observe.Get(jobs=jobs))

    async def find(self, find: observe.Find) -> observe.FindAnswer:
        """One page of a queue's jobs in one state, newest first."""
        check.find(find)
        return await self.perform(find)

    async def stats(self, *queues: str) -> observe.StatsAnswer:
        """Counts and ages per queue, from counters and indexes. Without names: every queue."""
        for queue in queues:
            check.name(queue, "queue")
        return await self.perform(observe.Stats(queues=queues or None))

    async def lanes(self, queue: str) -> observe.LanesAnswer:
        """The lanes of a queue with head, depth, pause and totals."""
        check.name(queue, "queue")
        return await self.perform(observe.Lanes(queue=queue))

    async def prune(self, limit: int = 500) -> observe.PruneAnswer:
        """Delete what is past its clocks, in bounded pieces."""
        check.limit(limit)
        return await self.perform(observe.Prune(limit=limit))

    async def audit(self) -> tuple[str, ...]:
        """Check the whole structure; answer what is wrong. Slow: for tests and doctors."""
        return (await self.perform(observe.Audit())).problems

    async def now(self) -> At:
        """The engine's time."""
        return (await self.perform(observe.Now())).at
