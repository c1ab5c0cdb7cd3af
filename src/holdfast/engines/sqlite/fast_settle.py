"""Fast path: the plain successes of an exchange are settled together.

A success is plain if it changes nothing but its own job: no lane, no pool, no earlier error, no expiry date, and a
record that is kept. The changes of all of them are counted and written together. Every other settlement takes the
general path, at its place in the order.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.engines.ledger.ends import ended_record
from holdfast.engines.ledger.settle import settle
from holdfast.engines.ledger.step import Step
from holdfast.engines.sqlite.rows import STATE_NUMBERS, pack_job
from holdfast.engines.sqlite.state import SqliteState
from holdfast.model.job import JobRecord
from holdfast.model.lifetimes import untils
from holdfast.model.states import JobState
from holdfast.model.work import Settlement, SettleStatus

RUNNING = JobState.RUNNING
SUCCEEDED = JobState.SUCCEEDED
SUCCEEDED_NUMBER = STATE_NUMBERS[SUCCEEDED]
APPLIED = SettleStatus.APPLIED


class PlainSettlements(SqliteState):
    def settle_all(self, step: Step, settlements: Sequence[Settlement]) -> list[SettleStatus]:
        self.flush()
        statuses: list[SettleStatus] = []
        rows: list[Any] = []
        queues: list[str] = []  # of the rows
        now = step.now
        for settlement in settlements:
            queue = settlement.queue
            job = self.job(queue, settlement.id)
            if job is not None and job.token == settlement.token and is_plain(job, settlement):  # G2
                lifetimes = untils(job, SUCCEEDED, now, settlement.result_ttl, settlement.retention)
                kept_until = max(lifetimes)
                if kept_until > now:  # K6: the record stays
                    self._jobs[queue, job.id] = after = ended_record(
                        job,
                        SUCCEEDED,
                        now,
                        reason=settlement.reason,
                        note=settlement.note,
                        settled_token=settlement.token,  # G7
                        result=settlement.result,
                        lifetimes=lifetimes,
                    )
                    rows.append((SUCCEEDED_NUMBER, kept_until, pack_job(after), job.arrival))  # as `end_row`
                    queues.append(queue)
                    for process in job.reply:
                        step.topics.add("reply:" + process)  # N3
                    statuses.append(APPLIED)
                    continue
            self._write_ends(step, rows, queues)
            statuses.append(settle(step, settlement))
        self._write_ends(step, rows, queues)
        return statuses

    def _write_ends(self, step: Step, rows: list[Any], queues: list[str]) -> None:
        """Write these successes and count them. The lists are empty afterwards."""
        self.db.many("update_job_end", rows)
        for queue, count in Counter(queues).items():
            self.count_moves(queue, RUNNING, SUCCEEDED, count)
            step.count_end(queue, SUCCEEDED, count)
            step.topics.add("room:" + queue)  # N2
        rows.clear()
        queues.clear()


def is_plain(job: JobRecord, settlement: Settlement) -> bool:
    return (
        settlement.target is SUCCEEDED
        and job.state is RUNNING
        and job.last_error is None
        and job.lane is None
        and not job.epoch
        and job.expires is None
        and settlement.progress is None
        and settlement.listed_expiry is None
        and not settlement.refund
        and not settlement.loss
    )
