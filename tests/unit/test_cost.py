"""What a claim costs does not depend on what it does not take.

Counted is work, not time: every entry pushed on a heap, popped off one or put in order by a rebuild, from the claim
of a job to its settlement.
"""

import heapq
from typing import Any

import pytest

from holdfast.engines.ledger import Ledger, claim
from holdfast.engines.tables import Tables, heap
from holdfast.model.instants import MINUTE, At
from holdfast.model.produce import Enqueue, Group, NewJob
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Exchange, Lease, QueueClaim, Settlement, TaskClaim

START = 1_800_000_000_000_000
BATCH = 1_000
ROUNDS = 50
PER_ROUND = 10


class HeapCounter:
    """Counts the entries that pass through the heaps of a ledger."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for module in (heap, claim):
            for name in ("heappush", "heappop", "heapreplace", "heapify"):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, self._counted(getattr(heapq, name)))

    def _counted(self, function: Any) -> Any:
        def counting(entries: list[Any], *entry: Any) -> Any:
            self.count += len(entries) if function is heapq.heapify else 1
            return function(entries, *entry)

        return counting


class Load:
    """A ledger with a queue full of jobs; time goes on by a microsecond with each command."""

    def __init__(self) -> None:
        self.ledger = Ledger(Tables())
        self.now = START
        self.claims = 0

    def perform(self, command: Any) -> Any:
        self.now += 1
        return self.ledger.decide(command, At(self.now, self.now)).answer

    def fill(self, count: int, prefix: str, **fields: Any) -> None:
        for start in range(0, count, BATCH):
            jobs = tuple(NewJob(queue="q", id=f"{prefix}{n}", **fields) for n in range(start, start + BATCH))
            self.perform(Enqueue(groups=(Group(jobs),)))

    def fill_lanes(self, lanes: int, each: int) -> None:
        """Lanes whose heads are under way, so that all the others are blocked."""
        for lane in range(lanes):
            jobs = tuple(NewJob(queue="q", id=f"lane{lane}-{n}", task="lane", lane=f"{lane}") for n in range(each + 1))
            self.perform(Enqueue(groups=(Group(jobs),)))
        assert len(self.take("lane", lanes + 1)) == lanes

    def take(self, task: str, limit: int, settled: tuple[Lease, ...] = ()) -> tuple[Lease, ...]:
        """Settle the last batch and claim the next, as a worker does."""
        self.claims += 1
        answer = self.perform(
            Exchange(
                settlements=tuple(
                    Settlement(queue="q", id=lease.id, token=lease.token, target=JobState.SUCCEEDED)
                    for lease in settled
                ),
                claim=Claim(
                    claim_id=f"c{self.claims}",
                    worker="w",
                    queues=(QueueClaim("q", (TaskClaim(task=task, lease_len=MINUTE),)),),
                    limit=limit,
                ),
            )
        )
        leases: tuple[Lease, ...] = answer.leases
        return leases

    def work_per_job(self, work: HeapCounter) -> float:
        before = work.count
        leases: tuple[Lease, ...] = ()
        for _ in range(ROUNDS):
            leases = self.take("known", PER_ROUND, leases)
            assert len(leases) == PER_ROUND
        return (work.count - before) / (ROUNDS * PER_ROUND)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> HeapCounter:
    return HeapCounter(monkeypatch)


def test_a_claim_costs_the_same_however_much_is_ready_blocked_or_unknown(work: HeapCounter) -> None:
    small = Load()
    small.fill(1_000, "known", task="known")

    large = Load()
    large.fill(100_000, "unknown", task="unknown", priority=9)
    large.fill_lanes(lanes=100, each=500)
    large.fill(200_000, "known", task="known")

    few, many = small.work_per_job(work), large.work_per_job(work)
    print(f"heap operations per job: {few:.2f} with 1,000 ready, {many:.2f} with 200,000 and 150,000 others")
    assert few > 1
    assert many <= 1.3 * few
