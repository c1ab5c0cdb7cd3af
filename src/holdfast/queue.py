"""A queue of payloads: values rather than calls, which your own code pulls.

    scans = jobs.queue("scans", Scan)

    scans.enqueue(Scan("/etc/hosts"), id="hosts")
    for lease in scans.leases(until_empty=True):
        with lease:
            lease.complete(scan(lease.payload))

Payloads and options are checked before anything is written.
"""

from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from holdfast.blocking import blocking
from holdfast.core.connection import StoreConnection
from holdfast.core.enqueue import enqueue
from holdfast.declare.payload import PayloadTask, QueueOptions, chosen, declare_depth_limits
from holdfast.declare.policy import MIN_LEASE_US
from holdfast.draft import Draft
from holdfast.durations import Duration
from holdfast.errors import InvalidOption, duration_us
from holdfast.handle import Handle
from holdfast.lanes import QueueOrLane
from holdfast.model.text import check_name
from holdfast.pull.workers import PullWorkers
from holdfast.views import QueueStatus

if TYPE_CHECKING:
    from holdfast.lease import Lease
    from holdfast.pull.leases import ClaimOptions, Leases

T = TypeVar("T")

MAX_LEASES = 1_000
"""In one claim."""


class Queue(QueueOrLane, Generic[T]):
    """Made by `jobs.queue(name, payload)`. It may be shared between threads."""

    def __init__(
        self,
        store: StoreConnection,
        pull_workers: PullWorkers,
        name: str,
        payload: type[T],
        /,
        *,
        max_depth: int | None = None,
        lane_max_depth: int | None = None,
    ) -> None:
        super().__init__(store, check_name(name, "queue"))
        self._pull_workers = pull_workers
        self._task = PayloadTask(store, f"Queue {name!r}", "", name, payload)
        declare_depth_limits(store, name, max_depth, lane_max_depth)
        self.name: str = name
        """As it is stored with each job."""

    # Producing

    def draft(self, payload: T, /, **options: Unpack[QueueOptions]) -> Draft[Any]:
        """A job, checked but not enqueued: for `jobs.client.enqueue_many`. It has its id already."""
        return self._task.using(**chosen(options, QueueOptions)).draft(payload)

    async def aenqueue(
        self, payload: T, /, *, transaction: Any | None = None, **options: Unpack[QueueOptions]
    ) -> Handle[Any]:
        """Make a job of this payload. Before this returns, it is as durable as the durability setting says.

        `transaction`: your own; the job exists if, and only if, it commits.
        """
        draft = self.draft(payload, **options)
        (accepted,) = await enqueue(
            self._store, (draft.job,), wait_for_room_us=draft.wait_for_room_us, transaction=transaction
        )
        return self._task.handle_of(self.name, accepted, in_transaction=transaction is not None)

    enqueue = blocking(aenqueue)

    # Pulling

    async def aclaim(
        self, limit: int = 1, /, *, lease: Duration | None = None, wait: Duration = 0.0
    ) -> "list[Lease[T]]":
        """Up to `limit` payloads, each to be settled before its lease expires. If there is none, wait up to `wait`.

        `lease`: its length; without it, the setting `lease` of the queue or of `[task]`.
        """
        from holdfast.pull.leases import PayloadClaims

        request = _request(limit, lease, "limit")
        wait_s = duration_us(wait, "wait") / 1_000_000
        return await PayloadClaims(self._store, self._pull_workers, self._task).claim_within(request, wait_s)

    claim = blocking(aclaim)

    def leases(self, *, batch: int = 10, lease: Duration | None = None, until_empty: bool = False) -> "Leases[T]":
        """A stream of leases, renewed in the background: `for` or `async for`. It waits for more, unless `until_empty`.

        Jobs are claimed in batches. When your loop ends, the unused rest of a batch is released.
        """
        from holdfast.pull.leases import Leases, PayloadClaims

        request = _request(batch, lease, "batch")._replace(limit=1, prefetch=batch - 1)
        claims = PayloadClaims(self._store, self._pull_workers, self._task)
        return Leases(claims, self._store, self._pull_workers, request, until_empty=until_empty)

    # Observing

    async def astatus(self, /) -> QueueStatus:
        """The depth and the counters of the queue. An unused queue is empty."""
        (stats,) = (await (await self._store.engine()).stats(self.name)).queues
        return QueueStatus.of(stats)

    status = blocking(astatus)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"


def _request(count: int, lease: Duration | None, option: str) -> "ClaimOptions":
    from holdfast.pull.leases import ClaimOptions

    if type(count) is not int or not 1 <= count <= MAX_LEASES:
        raise InvalidOption(f"`{option}` must be a whole number from 1 to {MAX_LEASES}.", option=option)
    lease_us = None if lease is None else duration_us(lease, "lease")
    if lease_us is not None and lease_us < MIN_LEASE_US:
        raise InvalidOption(f"`lease` must be at least {MIN_LEASE_US / 1_000_000:g} seconds.", option="lease")
    return ClaimOptions(count, lease_us)
