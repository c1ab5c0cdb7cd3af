"""The jobs that a claim looks for: those that are ready, and those that fall due."""

from abc import ABC
from collections.abc import Iterator, Mapping

from holdfast.engines.ledger.state import Name
from holdfast.engines.sqlite.database import NO_NUMBER
from holdfast.engines.sqlite.rows import STATE_NUMBERS, UNREADABLE, DamagedIndex, DamagedRow, unpack_job
from holdfast.engines.sqlite.unfinished import UnfinishedRecords
from holdfast.model.instants import FOREVER
from holdfast.model.job import JobRecord
from holdfast.model.states import BY_DUE, JobState

MAX_READY_ROWS = 256
"""Rows that one query of ready jobs reads, however many jobs the claim asks for."""

QUEUED = JobState.QUEUED

Move = tuple[str, JobState | None, JobState | None]
"""A queue, and the states of a job of it before and after a change. None: there is no job."""


class ReadyJobs(UnfinishedRecords, ABC):
    """The part of the state that answers claims."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[Name, JobRecord | None] = {}
        self._moves: dict[Move, int] = {}
        """How many jobs have changed from one state to another in this transaction."""
        self._next_due: dict[str, int | None] = {}
        """The answers of `next_due`, until a job that waits for its due time is changed."""
        self._last_taken: dict[Name, int] = {}
        """By queue and task: how many ready jobs the last claim has read. The next one reads as many in one query."""

    def ready(self, queue: str, task: str, about: int) -> Iterator[JobRecord]:
        self.flush()
        cleared = self.lanes_being_cleared(queue)
        q, t = self.db.queue_number(queue), self.db.task_number(task)
        if None in cleared or NO_NUMBER in (q, t):
            return
        name = (queue, task)
        count = min(max(about, self._last_taken.get(name, 0) + 1), MAX_READY_ROWS)
        after = (-FOREVER, 0, 0)
        taken = 0
        try:
            while True:
                rows = self.db.rows("ready", q, t, *after, count)
                for row in rows:  # a row is decoded when the claim has come to it: it may stop before
                    arrival, rank, due, body = row
                    try:
                        job = unpack_job(body)
                    except UNREADABLE as error:
                        raise DamagedRow(arrival) from error
                    if job.task != task or job.queue != queue:
                        raise DamagedRow(arrival)
                    if job.due != due or rank != -job.priority or job.state is not QUEUED:
                        raise DamagedIndex(queue)
                    if job.lane is None or job.lane not in cleared:
                        self._jobs[queue, job.id] = job
                        taken += 1
                        yield job
                if len(rows) < count:
                    return
                after = (rank, due, arrival)
        finally:
            self._last_taken[name] = taken

    def due(self, queue: str, now: int, limit: int) -> Iterator[JobRecord]:
        first = self.next_due(queue)
        if first is None or first > now:
            return iter(())
        return iter(self._read(self.db.rows("due", self.db.queue_number(queue), now, limit)))

    def next_due(self, queue: str) -> int | None:
        changed = any(name == queue and {before, after} & BY_DUE for name, before, after in self._moves)
        if not changed and queue in self._next_due:
            return self._next_due[queue]
        self.flush()
        row = self.db.one("next_due", self.db.queue_number(queue))
        self._next_due[queue] = due = None if row is None else row[0]
        return due

    # Numbers of jobs

    def _count_changes(self) -> dict[tuple[str, JobState], int]:
        """How much the number of jobs per queue and state has changed in this transaction."""
        changes: dict[tuple[str, JobState], int] = {}
        for (queue, before, after), count in self._moves.items():
            for state, change in ((before, -count), (after, count)):
                if state is not None:
                    changes[queue, state] = changes.get((queue, state), 0) + change
        return changes

    def _write_counts(self) -> None:
        """Write these changes, at the end of the transaction."""
        counts = []
        for (queue, state), change in self._count_changes().items():
            if state in BY_DUE:
                self._next_due.pop(queue, None)
            if change:
                counts.append((self.db.add_queue_number(queue), STATE_NUMBERS[state], change))
        self.db.many("count", counts)
        self._moves.clear()

    def first_ready(self, queue: str) -> Mapping[str, int]:
        self.flush()
        q, t = self.db.queue_number(queue), 0
        dues: dict[str, int] = {}
        while (row := self.db.one("next_ready_task", q, t)) is not None:
            t, dues[row[1]] = row[0], row[2]
        return dues

    def count_due(self, queue: str, now: int) -> tuple[int, int | None]:
        self.flush()
        row = self.db.one("count_due", self.db.queue_number(queue), now)
        return (0, None) if row is None else (row[0], row[1])
