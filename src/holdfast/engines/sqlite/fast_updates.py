"""Fast path: a change that neither moves a job in an order nor renames it updates six columns instead of twelve.

SQLite rewrites an entry in every index that contains an updated column. A claim and a settlement change the state and
the lease only, so the indexes on order, lane and key stay as they are.
"""

from typing import Any

from holdfast.engines.sqlite.rows import NO_HOLD, STATE_NUMBERS, pack_job
from holdfast.engines.sqlite.state import JobChange, SqliteState
from holdfast.model.job import JobRecord
from holdfast.model.states import TERMINAL, WAITING


class NarrowUpdates(SqliteState):
    def _update_jobs(self, changes: list[JobChange]) -> None:
        others: list[JobChange] = []
        narrow: list[Any] = []
        for change in changes:
            if keeps_order(*change):
                narrow.append(narrow_row(change[1]))
            else:
                others.append(change)
        super()._update_jobs(others)
        self.db.many("update_job_narrow", narrow)


def keeps_order(old: JobRecord, new: JobRecord) -> bool:
    """True if no column has changed that is not in `NARROW_COLUMNS`."""
    return (
        old.arrival == new.arrival
        and old.due == new.due
        and old.priority == new.priority
        and old.hold is NO_HOLD
        and new.hold is NO_HOLD
        and old.generation == new.generation
    )


def narrow_row(job: JobRecord) -> tuple[Any, ...]:
    """The values of `NARROW_COLUMNS`, and the arrival."""
    return (
        STATE_NUMBERS[job.state],
        job.token,
        job.lease_expires,
        job.expires if job.state in WAITING else None,
        job.kept_until if job.state in TERMINAL else None,
        pack_job(job),
        job.arrival,
    )
