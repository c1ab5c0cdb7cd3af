"""Fast path: plain jobs are inserted without the general path.

A job is plain if no other record can hold it back or stand for it: a generated id, no key, lane, pool or parents, due
at once, and no limit on its group. Nothing is looked up for it. `record_of` still makes the record: of the first job,
and of each that differs from the one before in more than its id and payload. If an id is stored already, the unique
index refuses the row, and the command runs again on the general path (`with_look_ups`).

The columns that a plain job does not use are left out, and many rows are inserted by one statement: a statement has a
fixed cost, and so has each value. Twenty short rows in one statement take 1.7 µs each, a whole row by itself 4.4 µs.
"""

from itertools import chain, pairwise
from typing import Any

import msgspec

from holdfast.engines.ledger import Decision
from holdfast.engines.ledger.enqueue import record_of
from holdfast.engines.ledger.step import Step
from holdfast.engines.sqlite.rows import NO_HOLD, ROWS_PER_INSERT, pack_job
from holdfast.engines.sqlite.state import SqliteState
from holdfast.model.instants import At
from holdfast.model.job import JobRecord
from holdfast.model.produce import Accepted, Enqueue, EnqueueAnswer, EnqueueStatus, GroupAccepted, NewJob, is_like
from holdfast.model.states import JobState

FIELDS = JobRecord.__struct_fields__
ID, PAYLOAD, ARRIVAL = (FIELDS.index(name) for name in ("id", "payload", "arrival"))
CREATED = EnqueueStatus.CREATED
QUEUED = JobState.QUEUED


class PlainEnqueues(SqliteState):
    def enqueue_plain(self, command: Enqueue, at: At) -> Decision[EnqueueAnswer] | None:
        """Insert the jobs of all groups. None: one of them is not plain, and nothing was done."""
        if not self.trusts_fresh_ids or self._any_edge():
            return None
        alike: list[NewJob] = []
        last: NewJob | None = None
        for group in command.groups:
            if group.limits:
                return None
            for new in group.jobs:
                if last is None or not is_like(new, last):
                    if not is_plain(new) or self.queue(new.queue) is None:
                        return None
                    last = new
                alike.append(last)
        return self._insert(command, at, alike)

    def _insert(self, command: Enqueue, at: At, alike: list[NewJob]) -> Decision[EnqueueAnswer]:
        """`alike` has for every job the first one of its run of jobs that differ only in id and payload."""
        self.flush()
        step = Step(self, at)
        arrival, now = self.arrival, at.wall
        rows: list[tuple[Any, ...]] = []
        answers: list[GroupAccepted] = []
        runs: list[tuple[str, int]] = []  # the queue, and the last arrival before it
        first: NewJob | None = None
        firsts = iter(alike)
        for group in command.groups:
            accepted: list[Accepted] = []
            for new in group.jobs:
                arrival += 1
                job_id, payload = new.id, new.payload
                if (other := next(firsts)) is not first:
                    first = other
                    # E4: queued, and due now.
                    fields = msgspec.structs.astuple(record_of(step, first, None, arrival, NO_HOLD, 0))
                    before, between = fields[:ID], fields[ID + 1 : PAYLOAD]
                    middle, after = fields[PAYLOAD + 1 : ARRIVAL], fields[ARRIVAL + 1 :]
                    q, t = self.db.add_queue_number(first.queue), self.db.add_task_number(first.task)
                    rank = -first.priority
                    runs.append((first.queue, arrival - 1))
                    step.topics.add("queue:" + first.queue)  # N1
                body = pack_job((*before, job_id, *between, payload, *middle, arrival, *after))
                rows.append((arrival, q, job_id, t, rank, now, body))
                accepted.append(Accepted(status=CREATED, id=job_id, state=QUEUED, arrival=arrival, generation=0))
            answers.append(GroupAccepted(tuple(accepted)))
        self.arrival = arrival
        for (queue, begin), (_, end) in pairwise([*runs, ("", arrival)]):
            self.count_moves(queue, None, QUEUED, end - begin)
        self._add_queued(rows)
        if self._jobs:  # a look-up of this transaction may have found that there is no such job
            for new, row in zip(alike, rows, strict=True):
                self._jobs.pop((new.queue, row[2]), None)
        return Decision(EnqueueAnswer(at=at, groups=tuple(answers)), (), frozenset(step.topics))

    def _add_queued(self, rows: list[tuple[Any, ...]]) -> None:
        """Insert rows of the parameters of `add_queued_job`."""
        whole = len(rows) - len(rows) % ROWS_PER_INSERT
        starts = range(0, whole, ROWS_PER_INSERT)
        many = [tuple(chain.from_iterable(rows[start : start + ROWS_PER_INSERT])) for start in starts]
        self.db.many("add_queued_jobs", many)
        self.db.many("add_queued_job", rows[whole:])


def is_plain(new: NewJob) -> bool:
    return (
        new.fresh_id
        and new.unique_key is None
        and new.lane is None
        and new.pool is None
        and new.delay == 0
        and new.due is None
        and new.expires is None
        and not new.parents
    )
