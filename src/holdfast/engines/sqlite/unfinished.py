"""Work that is too large for one transaction: done in chunks of a thousand jobs, and other writers run in between.

There are two kinds: `clear` of a queue or lane, and the release of the epoch hold after a pool's `resize`. The
transaction that begins such work does the first chunk. If jobs are left, it stores a record of the **unfinished work**,
and the writer does chunk after chunk before it answers the command. While the record of a clear exists, no job of its
queue or lane can be claimed. The last chunk deletes the record.

If a process dies between two chunks, another one continues: every claim or prune that reads a record which has not
changed for ten seconds does the next chunk.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.engines.ledger import pools, scopes
from holdfast.engines.ledger.step import Step
from holdfast.engines.sqlite.rows import MAX_INTEGER, NO_LIMIT, pack
from holdfast.engines.sqlite.small_records import SmallRecords
from holdfast.model.instants import SECOND, At
from holdfast.model.job import JobRecord
from holdfast.model.states import Hold

CHUNK_JOBS = 1_000  # CL2
"""Jobs of one chunk: some 50 ms of work, for which other writers wait."""
ABANDONED_AFTER_US = 10 * SECOND
"""A process that is alive does a chunk far more often, so its work is not done twice for nothing."""


class UnfinishedWork(msgspec.Struct, frozen=True, gc=False):
    """The stored record: what is left to do, and when the last chunk was done."""

    kind: Literal["clear", "resize"]
    queue: str
    lane: str | None
    number: int
    """Distinguishes records of one kind and queue. Clear: its highest arrival. Resize: the epoch whose hold ends."""
    next: int
    """An arrival. A clear continues below it, a resize above it."""
    changed_us: int

    @property
    def name(self) -> str:
        return msgspec.json.encode((self.kind, self.queue, self.lane, self.number)).decode()


unpack_unfinished = msgspec.msgpack.Decoder(UnfinishedWork).decode


class UnfinishedRecords(SmallRecords, ABC):
    """The part of the state that reads jobs in chunks, and stores which work is unfinished."""

    def __init__(self) -> None:
        self._unfinished: dict[str, UnfinishedWork] | None = None
        self.begun: list[UnfinishedWork] = []
        """Work that the current transaction has begun and left unfinished."""
        self.now_us = 0
        """The wall clock of the current command."""

    @abstractmethod
    def flush(self) -> None: ...

    @abstractmethod
    def _read(self, rows: Iterable[Any]) -> list[JobRecord]: ...

    # Records

    def unfinished(self) -> dict[str, UnfinishedWork]:
        if self._unfinished is None:
            self._unfinished = {work.name: work for work in self._small_records("unfinished", unpack_unfinished)}
        return self._unfinished

    def put_unfinished(self, work: UnfinishedWork) -> None:
        self.unfinished()[work.name] = work
        self.db.write("put_small_record", "unfinished", work.name, pack(work))

    def drop_unfinished(self, work: UnfinishedWork) -> None:
        self.unfinished().pop(work.name, None)
        self.db.write("drop_small_record", "unfinished", work.name)

    def abandoned(self, now_us: int) -> list[UnfinishedWork]:
        """The records that this transaction has read and that have not changed for a while."""
        records = self._unfinished or {}
        return [work for work in records.values() if abs(now_us - work.changed_us) > ABANDONED_AFTER_US]

    def lanes_being_cleared(self, queue: str) -> frozenset[str | None]:
        """The lanes of a queue that a clear is in progress for; None stands for the whole queue."""
        works = self.unfinished().values()
        return frozenset(work.lane for work in works if work.kind == "clear" and work.queue == queue)

    def is_clearing(self, queue: str) -> bool:
        return None in self.lanes_being_cleared(queue)

    def _begin(self, work: UnfinishedWork) -> None:
        self.put_unfinished(work)
        self.begun.append(work)

    # Chunks

    def live_chunk(self, queue: str, lane: str | None, below: int) -> tuple[list[JobRecord], int]:
        """Live jobs of a queue or lane below an arrival, latest first; and the arrival to continue below (0: end)."""
        rows = self._live_rows(queue, lane, below, CHUNK_JOBS)
        return self._read(rows), rows[-1][0] if len(rows) == CHUNK_JOBS else 0

    def _live_rows(self, queue: str, lane: str | None, below: int, limit: int) -> list[Any]:
        self.flush()
        record = None if lane is None else self.lane(queue, lane)
        head = None if record is None else record.head
        return self.db.rows("live_jobs", self.db.queue_number(queue), below, lane, lane, head, limit)

    def epoch_chunk(self, queue: str, epoch: int, above: int) -> tuple[list[JobRecord], int]:
        """Of the next blocked jobs, those with an epoch hold up to this epoch; and the arrival to continue above."""
        self.flush()
        rows = self.db.rows("blocked_jobs", self.db.queue_number(queue), above, CHUNK_JOBS)
        jobs = [job for job in self._read(rows) if job.hold & Hold.EPOCH and job.epoch <= epoch]
        return jobs, rows[-1][0] if len(rows) == CHUNK_JOBS else 0

    def live_jobs(self, queue: str, lane: str | None) -> list[JobRecord]:
        return self._read(self._live_rows(queue, lane, MAX_INTEGER, NO_LIMIT))

    def to_clear(self, queue: str, lane: str | None) -> list[JobRecord]:
        jobs, below = self.live_chunk(queue, lane, MAX_INTEGER)
        if below:
            self._begin(UnfinishedWork("clear", queue, lane, jobs[0].arrival, below, self.now_us))
        return jobs

    def held_by_epoch(self, queue: str) -> list[JobRecord]:
        pool = self.pool(queue)
        epoch = 0 if pool is None else pool.epoch
        jobs, above = self.epoch_chunk(queue, epoch, 0)
        if above:
            self._begin(UnfinishedWork("resize", queue, None, epoch, above, self.now_us))
        return jobs


class ChunkResult(msgspec.Struct, frozen=True, gc=False):
    """The result of one chunk: the number of jobs, the work that is left, the topics to notify."""

    count: int
    left: UnfinishedWork | None
    topics: frozenset[str]


def do_chunk(state: UnfinishedRecords, work: UnfinishedWork, at: At, *, keep_time: bool = False) -> ChunkResult:
    """Do the next chunk, inside the caller's write transaction.

    `keep_time` leaves the time of the last change: then every further claim or prune continues abandoned work, too.
    """
    step = Step(state, at)
    if work.kind == "clear":
        jobs, following = state.live_chunk(work.queue, work.lane, work.next)
        scopes.clear_some(step, jobs)
    else:
        jobs, following = state.epoch_chunk(work.queue, work.number, work.next)
        pools.release_held(step, jobs)
    step.close()
    if not following:
        state.drop_unfinished(work)
        step.topics.add("queue:" + work.queue)  # jobs that arrived during the clear can be claimed from now on
        return ChunkResult(len(jobs), None, frozenset(step.topics))
    left = replace(work, next=following, changed_us=work.changed_us if keep_time else at.wall)
    state.put_unfinished(left)
    return ChunkResult(len(jobs), left, frozenset(step.topics))
