"""A queue of payloads: values rather than calls, taken by whoever pulls.

    scans = jobs.queue("scans", Scan)

    scans.enqueue(Scan("/etc/hosts"), id="hosts")
    for lease in scans.leases(until_empty=True):
        with lease:
            lease.complete(scan(lease.payload))

Everything that can be wrong with a payload or an option is found before anything is written.
"""

from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from holdfast.blocking import blocking
from holdfast.core.link import Link
from holdfast.core.producing import enqueue
from holdfast.declare.payload import PayloadTask, QueueOptions, chosen, declare_depth_limits
from holdfast.declare.policy import MIN_LEASE_US
from holdfast.draft import Draft
from holdfast.errors import InvalidOption, duration_us
from holdfast.handle import Handle
from holdfast.lanes import Scope
from holdfast.model.retry import Duration
from holdfast.model.text import check_name
from holdfast.pull.workers import PullWorkers
from holdfast.views import QueueStatus

if TYPE_CHECKING:
    from holdfast.lease import Lease
    from holdfast.pull.leases import ClaimOptions, Leases

T = TypeVar("T")

LEASE = 30.0
MOST = 1_000
"""Leases in one claim."""


class Queue(Scope, Generic[T]):
    """Made by `jobs.queue(name, payload)`. It may be shared between threads."""

    def __init__(
        self,
        link: Link,
        pull_workers: PullWorkers,
        name: str,
        payload: type[T],
        /,
        *,
        max_depth: int | None = None,
        lane_max_depth: int | None = None,
    ) -> None:
        super().__init__(link, check_name(name, "queue"))
        self._pull_workers = pull_workers
        self._task = PayloadTask(link, f"Queue {name!r}", "", name, payload)
        declare_depth_limits(link, name, max_depth, lane_max_depth)
        self.name = name

    # Producing

    def draft(self, payload: T, /, **options: Unpack[QueueOptions]) -> Draft[Any]:
        """A job, checked but not enqueued: for `jobs.client.enqueue_many`. It has its id already."""
        return self._task.using(**chosen(options, QueueOptions)).draft(payload)

    async def aenqueue(
        self, payload: T, /, *, transaction: Any | None = None, **options: Unpack[QueueOptions]
    ) -> Handle[Any]:
        """Make a job of this payload. It is as durable as the store says before this returns.

        `transaction`: inside your own, with whose commit it comes to be.
        """
        draft = self.draft(payload, **options)
        (accepted,) = await enqueue(self._link, (draft.job,), room=draft.room, transaction=transaction)
        return self._task.handle_of(self.name, accepted, joined=transaction is not None)

    enqueue = blocking(aenqueue)

    # PayloadClaims

    async def aclaim(self, limit: int = 1, /, *, lease: Duration = LEASE, wait: Duration = 0.0) -> "list[Lease[T]]":
        """Up to so many payloads, each to be settled before its lease runs out. None there: wait so many seconds."""
        from holdfast.pull.leases import PayloadClaims

        asked = _request(limit, lease, "limit")
        seconds = duration_us(wait, "wait") / 1_000_000
        return await PayloadClaims(self._link, self._pull_workers, self._task).claim_within(asked, seconds)

    claim = blocking(aclaim)

    def leases(self, *, batch: int = 10, lease: Duration = LEASE, until_empty: bool = False) -> "Leases[T]":
        """A stream of leases, renewed in the background: `for` or `async for`. It waits for more, unless `until_empty`.

        A batch is claimed at a time; what is left of it when the loop is left goes back untouched.
        """
        from holdfast.pull.leases import Leases, PayloadClaims

        one = _request(batch, lease, "batch")
        asked = one._replace(limit=1, prefetch=batch - 1)
        claims = PayloadClaims(self._link, self._pull_workers, self._task)
        return Leases(claims, self._link, self._pull_workers, asked, until_empty=until_empty)

    # Looking

    async def astatus(self, /) -> QueueStatus:
        """The queue at a glance. One that nobody has used yet is empty."""
        (stats,) = (await (await self._link.engine()).stats(self.name)).queues
        return QueueStatus.of(stats)

    status = blocking(astatus)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"


def _request(count: int, lease: Duration, option: str) -> "ClaimOptions":
    from holdfast.pull.leases import ClaimOptions

    if type(count) is not int or not 1 <= count <= MOST:
        raise InvalidOption(f"`{option}` must be a whole number from 1 to {MOST}.", option=option)
    length = duration_us(lease, "lease")
    if length < MIN_LEASE_US:
        raise InvalidOption(f"`lease` must be at least {MIN_LEASE_US / 1_000_000:g} seconds.", option="lease")
    return ClaimOptions(count, length)
