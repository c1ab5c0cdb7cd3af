"""The contract: what an engine is. Its implementations are in `engines/`; users call them stores.

An engine keeps records and applies decisions; it makes none. Each verb is atomic. Its effect is as durable as the
engine's durability class says before the answer is returned.

To write an engine: subclass `Engine`, implement the abstract methods, and run the conformance suite
(`pytest --pyargs holdfast.testing.contract --holdfast-engine=URL`). `perform` receives every verb as a command and
returns its answer; the methods below name the verbs and check their arguments. `docs/contract.md` has the rules.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Protocol, Self

from msgspec import Struct

from holdfast.errors import Unsupported
from holdfast.model import check, observe, operate, produce, work
from holdfast.model.address import AddressSupport
from holdfast.model.command import A, Command
from holdfast.model.findings import DoctorSupport
from holdfast.model.instants import At, Instant, Micros
from holdfast.model.job import JobKey
from holdfast.model.records import WorkerRecord
from holdfast.model.text import ErrorInfo
from holdfast.telemetry.contract import EventSupport
from holdfast.transactions.contract import TransactionSupport


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an engine can do. Code branches on these, never on an engine's name."""

    durable: bool
    """Acknowledged writes survive the process."""
    shared_between_processes: bool
    shared_between_hosts: bool
    push: bool
    """Notifications reach subscribers without polling."""
    user_transactions: bool
    """An enqueue and a settlement can take part in a user's transaction: `in_transaction`."""
    cross_queue_atomic: bool
    """One verb over several queues is one atomic step; edges between queues are possible."""
    blocking_calls: bool = False
    """Every verb also works in a thread without an event loop: `perform` then blocks the thread and never suspends."""
    order_slack: Micros = 0
    """For this long a claim may take a later job before an earlier one that became ready meanwhile."""
    concurrent_writers: bool = True
    """Other writers go on while a user's transaction is open."""


class EngineSettings(Protocol):
    """A table of settings of one engine: a frozen dataclass whose fields say how they are read (`holdfast.readers`)."""

    table: ClassVar[str]
    """Its name in `holdfast.toml` and in variables: `[postgres]`, `HOLDFAST_POSTGRES_POOL_SIZE`."""


class Subscription(ABC):
    """Notifications of some topics. A notification says that there may be something to do; it may be lost."""

    @abstractmethod
    async def wait(self, timeout: float | None = None) -> frozenset[str]:
        """Wait until a topic was notified since the last call; return which. Empty: `timeout` seconds have passed."""

    @abstractmethod
    def close(self) -> None:
        """End the subscription. A waiting caller is woken and gets an empty answer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class RenewalConnection(ABC):
    """A blocking connection of its own, used only by the thread that renews leases."""

    @abstractmethod
    def renew(self, jobs: Iterable[work.Renewal]) -> work.RenewAnswer: ...

    @abstractmethod
    def heartbeat(self, worker: WorkerRecord) -> work.HeartbeatAnswer: ...

    @abstractmethod
    def close(self) -> None: ...


class Engine(AddressSupport, TransactionSupport, EventSupport, DoctorSupport, ABC):
    """Storage for jobs, leases and what belongs to them.

    `AddressSupport` says how it reads addresses, `TransactionSupport` is its part in users' transactions,
    `EventSupport` in events, `DoctorSupport` in `doctor`.
    """

    scheme: ClassVar[str]
    """The first part of its address, and its name in messages."""
    capabilities: Capabilities  # one value for all engines of a class, or each engine's own
    settings: ClassVar[type[EngineSettings] | None] = None
    """Its table of settings. The fields are keyword arguments of its constructor."""
    store_file: str = ""
    """A file that is there, and not empty, once the store has been made; empty if a server has the store."""

    # What an engine implements

    @abstractmethod
    async def perform(self, command: Command[A]) -> A:
        """Carry out one command, atomically, and return its answer. Also without an event loop: see `blocking_calls`.

        Raises EngineUnavailable if certainly nothing happened, OutcomeUnknown if it may have.
        """

    @abstractmethod
    async def open(self) -> None:
        """Connect, and refuse a server or a schema that is too old. A second call does nothing."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections and wake every waiting subscriber. A second call does nothing."""

    def close_now(self) -> None:
        """`close` without an event loop: the App was collected, or the interpreter exits. For engines with threads."""

    @abstractmethod
    async def migrate(self) -> tuple[str, ...]:
        """Bring the schema up to date; return the names of the steps taken. Safe if two run at once."""

    def refuse_migration(self) -> None:
        """Called before `open`: a store whose schema is not that of this release is then refused, never migrated."""

    async def migration_script(self, *, after: int | None = None, roles: Iterable[str] = ()) -> str:
        """A script that does what `migrate` and `grant` would do, starting from version `after`. Empty: nothing."""
        message = f"The {self.scheme} engine has no migrations as SQL; PostgreSQL has. Migrate it without a script."
        raise Unsupported(message, capability="migration_script", engine=self.scheme)

    async def grant(self, role: str) -> None:
        """Give a database role the rights that a client needs, and no more."""
        message = f"The {self.scheme} engine gives no rights to roles; PostgreSQL does. Leave out `grant`."
        raise Unsupported(message, capability="grant", engine=self.scheme)

    @abstractmethod
    def subscribe(self, *topics: str) -> Subscription:
        """Listen for `queue:Q`, `room:Q`, `worker:W`, `reply:P`."""

    @abstractmethod
    def renewal_connection(self) -> RenewalConnection:
        """A connection for renewals and heartbeats. See `RenewalConnection`."""

    @property
    @abstractmethod
    def clock_offset(self) -> Micros:
        """Added to the engine's clocks: 0 in production, moved forward by tests."""

    @clock_offset.setter
    @abstractmethod
    def clock_offset(self, value: Micros) -> None: ...

    @property
    def process_name(self) -> str:
        """The name under which other processes of this host can check that this one lives; empty: they cannot."""
        return ""

    async def ended_workers(self) -> tuple[str, ...]:
        """Workers on this host whose process has certainly ended. Always empty on an engine that cannot check."""
        return ()

    def keep_process_record(self) -> None:
        """A worker of this process ends with leases: others may see its end (`ended_workers`) also after `close`."""

    async def disown_silent(self, watched_us: Micros) -> dict[str, int] | None:
        """Disown workers whose session has ended (WK3); the number of leases of each. None: no sessions are known."""
        return None

    async def blocked_by(self) -> str:
        """What keeps every write of every process waiting, in words for an operator. Empty: nothing that is known."""
        return ""

    @property
    def found_durability(self) -> tuple[str, str] | None:
        """The durability class that the open store was found to have, and how. None: the class of the settings."""
        return None

    # Producing

    async def enqueue(self, *groups: produce.Group) -> produce.EnqueueAnswer:
        """Insert groups of jobs.

        Does: decides each group whole (created, duplicate, completed; or full, conflict, orphan) in the order
        given. Guarantees: a refused group wrote nothing; an accepted one is durable; of any number of concurrent
        callers with one id or key exactly one creates. Raises: Busy if a user's transaction holds a key for too long.
        """
        for group in groups:
            check.group(group)
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
        twice at a time; leases are returned in claim order, never more than `limit` + `prefetch`; jobs that the
        settlements freed can be claimed in the same call. Raises: nothing of its own; a stale owner
        gets the answer `lost`.
        """
        command = work.Exchange(settlements=tuple(settlements), starts=tuple(starts), claim=claim)
        check.exchange(command)
        return await self.perform(command)

    async def claim(self, claim: work.Claim) -> work.ExchangeAnswer:
        """`exchange` with nothing but a claim."""
        return await self.exchange(claim=claim)

    async def settle(self, *settlements: work.Settlement) -> work.ExchangeAnswer:
        """`exchange` with nothing but settlements."""
        return await self.exchange(settlements)

    async def renew(self, *jobs: work.Renewal) -> work.RenewAnswer:
        """Extend leases by their own length from now; the answer says which are lost or have a cancel request.

        Guarantees: accepted while the token is current, expired or not; never shortens a lease.
        """
        for job in jobs:
            if job.progress is not None:
                check.storable(job.progress.note, "note")
        return await self.perform(work.Renew(jobs=jobs))

    async def expired(self, worker: str, *, limit: int = 500, tasks: Iterable[str] | None = None) -> work.ExpiredAnswer:
        """List leases past their expiry; changes nothing. Callers get different orders, so that reapers spread."""
        check.limit(limit)
        task_names = None if tasks is None else tuple(tasks)
        return await self.perform(work.Expired(worker=worker, limit=limit, tasks=task_names))

    async def disown(self, *workers: str, error: ErrorInfo | None = None) -> work.DisownAnswer:
        """Let the leases of dead workers expire now. A wrong call costs a run, never a second outcome."""
        check.disown(command := work.Disown(workers=workers, error=error))
        return await self.perform(command)

    async def heartbeat(self, worker: WorkerRecord) -> work.HeartbeatAnswer:
        """Write a worker's record; the answer says whether it should stop."""
        check.name(worker.worker, "worker")
        check.storable(worker.host, "host")
        return await self.perform(work.Heartbeat(worker=worker))

    async def workers(self) -> work.WorkersAnswer:
        """All worker records, by name."""
        return await self.perform(work.Workers())

    async def stop_worker(self, worker: str) -> work.WorkerAnswer:
        """Request a worker to stop gently: the answer to its next heartbeat says so, and its topic is notified now."""
        check.name(worker, "worker")
        return await self.perform(work.StopWorker(worker=worker))

    async def forget_worker(self, worker: str) -> work.WorkerAnswer:
        """Remove the record of a worker that ends."""
        check.name(worker, "worker")
        return await self.perform(work.ForgetWorker(worker=worker))

    # Operating

    async def cancel(self, queue: str, *ids: str, note: str = "") -> operate.CancelJobsAnswer:
        """Cancel: waiting jobs at once, leased ones by request (the topic of their worker is notified)."""
        check.names(queue, ids)
        return await self.perform(operate.Cancel(queue=queue, ids=ids, note=check.note(note)))

    async def requeue(self, queue: str, *ids: str, limits: Iterable[produce.DepthLimit] = ()) -> operate.OperateAnswer:
        """Bring failed or cancelled jobs back at the tail; every older lease stays fenced."""
        check.names(queue, ids)
        command = operate.Requeue(queue=queue, ids=ids, limits=tuple(limits))
        check.limits(command.limits)
        return await self.perform(command)

    async def trigger(self, queue: str, *ids: str) -> operate.OperateAnswer:
        """Make scheduled or retrying jobs due now. A blocked, leased or ended one is `wrong_state`."""
        check.names(queue, ids)
        return await self.perform(operate.Trigger(queue=queue, ids=ids))

    async def delete(self, queue: str, *ids: str) -> operate.OperateAnswer:
        """Remove ended jobs. A live one is `wrong_state`: cancel it first."""
        check.names(queue, ids)
        return await self.perform(operate.Delete(queue=queue, ids=ids))

    async def amend(
        self,
        queue: str,
        *ids: str,
        result_ttl: Micros | None = None,
        retention: Micros | None = None,
        priority: int | None = None,
        due: Instant | None = None,
        reply: str | None = None,
    ) -> operate.OperateAnswer:
        """Change lifetimes, priority or due time of existing jobs. See `operate.Amend`."""
        command = operate.Amend(
            queue=queue, ids=ids, result_ttl=result_ttl, retention=retention, priority=priority, due=due, reply=reply
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

    async def remove_queue(self, queue: str) -> operate.RemoveQueueAnswer:
        """Remove a queue in which nothing is, ended jobs included. Guarantees: a job enqueued meanwhile is not lost."""
        check.name(queue, "queue")
        return await self.perform(operate.RemoveQueue(queue=queue))

    async def put_pool(self, name: str, lanes: int) -> operate.PoolAnswer:
        """Declare a pool, or read its stored size."""
        check.pool(name, lanes)
        return await self.perform(operate.PutPool(name=name, lanes=lanes))

    async def resize(self, name: str, lanes: int) -> operate.PoolAnswer:
        """Change a pool's number of lanes."""
        check.pool(name, lanes)
        return await self.perform(operate.Resize(name=name, lanes=lanes))

    async def pools(self, name: str | None = None) -> operate.PoolsAnswer:
        """The pool with this name, if there is one. Without a name: all pools, by name."""
        return await self.perform(operate.Pools(name=None if name is None else check.name(name, "pool")))

    # Observing and maintenance

    async def get(self, *jobs: JobKey) -> observe.GetAnswer:
        """The stored records; None for a job that does not exist."""
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

    async def lanes(self, queue: str, *lanes: str) -> observe.LanesAnswer:
        """Lanes of a queue with head, depth, pause and totals. Without names: every lane, which can be slow."""
        check.name(queue, "queue")
        for lane in lanes:
            check.name(lane, "lane")
        return await self.perform(observe.Lanes(queue=queue, lanes=lanes or None))

    async def prune(self, limit: int = 500) -> observe.PruneAnswer:
        """Delete ended jobs whose lifetimes have passed, at most `limit`; cancel jobs past `expires`, as many."""
        check.limit(limit)
        return await self.perform(observe.Prune(limit=limit))

    async def audit(self) -> tuple[str, ...]:
        """Check the whole structure; return what is wrong. Slow: for tests and diagnosis."""
        return (await self.perform(observe.Audit())).problems

    async def now(self) -> At:
        """The engine's time."""
        return (await self.perform(observe.Now())).at
