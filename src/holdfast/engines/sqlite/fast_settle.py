"""Fast path: the plain successes of an exchange are settled together.

A success is plain if it changes nothing but its own job: no lane, no pool, no earlier error, no expiry date, and a
record that is kept. The changes of all of them are counted and written together. Every other settlement takes the
general path, at its place in the order.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.engines.ledger.ends import ended_record
from holdfast.engines.ledger.settle import settle
from holdfast.engines.ledger.step import Step
from holdfast.engines.sqlite.fast_updates import end_row
from holdfast.engines.sqlite.state import SqliteState
from holdfast.model.job import JobRecord
from holdfast.model.lifetimes import untils
from holdfast.model.states import JobState
from holdfast.model.work import Settlement, SettleStatus

RUNNING = JobState.RUNNING
SUCCEEDED = JobState.SUCCEEDED
APPLIED = SettleStatus.APPLIED


class PlainSettlements(SqliteState):
    def settle_all(self, step: Step, settlements: Sequence[Settlement]) -> list[SettleStatus]:
        self.flush()
        statuses: list[SettleStatus] = []
        ended: list[JobRecord] = []
        jobs, now = self._jobs, step.now
        for settlement in settlements:
            queue = settlement.queue
            job = self.job(queue, settlement.id)
            if job is not None and job.token == settlement.token and is_plain(job, settlement):  # G2
                lifetimes = untils(job, SUCCEEDED, now, settlement.result_ttl, settlement.retention)
                if max(lifetimes) > now:  # K6: the record stays
                    jobs[queue, job.id] = after = ended_record(
                        job,
                        SUCCEEDED,
                        now,
                        reason=settlement.reason,
                        note=settlement.note,
                        settled_token=settlement.token,  # G7
                        result=settlement.result,
                        lifetimes=lifetimes,
                    )
                    ended.append(after)
                    statuses.append(APPLIED)
                    continue
            self._write_ended(step, ended)
            statuses.append(settle(step, settlement))
        self._write_ended(step, ended)
        return statuses

    def _write_ended(self, step: Step, ended: list[JobRecord]) -> None:
        """Write these successes and count them. The list is empty afterwards."""
        if not ended:
            return
        counts: dict[str, int] = {}
        rows: list[Any] = []
        for job in ended:
            rows.append(end_row(job))
            counts[job.queue] = counts.get(job.queue, 0) + 1
            for process in job.reply:
                step.topics.add("reply:" + process)  # N3
        ended.clear()
        self.db.many("update_job_end", rows)
        for queue, count in counts.items():
            self.count_moves(queue, RUNNING, SUCCEEDED, count)
            step.count_end(queue, SUCCEEDED, count)
            step.topics.add("room:" + queue)  # N2


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
