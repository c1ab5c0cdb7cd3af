"""A payload for tests of queues and leases, and a lease on one job."""

from dataclasses import dataclass

from holdfast.lease import Lease
from holdfast.queue import Queue


@dataclass(frozen=True)
class Scan:
    path: str
    depth: int = 1


def lease_one(scans: Queue[Scan], id: str = "a") -> Lease[Scan]:
    """Enqueue a job and claim it."""
    scans.enqueue(Scan("x"), id=id)
    (lease,) = scans.claim()
    return lease
