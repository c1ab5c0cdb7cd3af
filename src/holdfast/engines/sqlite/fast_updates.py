"""Fast path: a change that neither moves a job in an order nor renames it updates a few columns instead of twelve.

SQLite looks at every index that contains an updated column. A claim and a settlement change the state and the lease
only, so the indexes on order, lane and key stay as they are. Few jobs have an expiry date, and only an end sets how
long the record is kept, so most updates leave these two columns out as well.
"""

from typing import Any

from holdfast.engines.sqlite.rows import (
    COLUMNS,
    END_COLUMNS,
    LEASE_COLUMNS,
    NARROW_COLUMNS,
    NO_HOLD,
    STATE_NUMBERS,
    pack_job,
)
from holdfast.engines.sqlite.state import JobChange, SqliteState
from holdfast.model.job import JobRecord
from holdfast.model.states import TERMINAL, WAITING


class NarrowUpdates(SqliteState):
    def _update_jobs(self, changes: list[JobChange]) -> None:
        others: list[JobChange] = []
        leases: list[Any] = []
        ends: list[Any] = []
        narrow: list[Any] = []
        for old, new in changes:
            columns = columns_to_update(old, new)
            if columns is LEASE_COLUMNS:
                leases.append(lease_row(new))
            elif columns is END_COLUMNS:
                ends.append(end_row(new))
            elif columns is NARROW_COLUMNS:
                narrow.append(narrow_row(new))
            else:
                others.append((old, new))
        super()._update_jobs(others)
        self.db.many("update_job_lease", leases)
        self.db.many("update_job_end", ends)
        self.db.many("update_job_narrow", narrow)


def columns_to_update(old: JobRecord, new: JobRecord) -> tuple[str, ...]:
    """The columns that may have changed, as one of four lists."""
    keeps_order = (
        old.arrival == new.arrival
        and old.due == new.due
        and old.priority == new.priority
        and old.hold is NO_HOLD
        and new.hold is NO_HOLD
        and old.generation == new.generation
    )
    if not keeps_order:
        return COLUMNS
    if old.expires is not None or new.expires is not None or old.state in TERMINAL:
        return NARROW_COLUMNS
    return END_COLUMNS if new.state in TERMINAL else LEASE_COLUMNS  # W4: an ended job has no lease


def lease_row(job: JobRecord) -> tuple[Any, ...]:
    """The values of `LEASE_COLUMNS`, and the arrival."""
    return (STATE_NUMBERS[job.state], job.token, job.lease_expires, pack_job(job), job.arrival)


def end_row(job: JobRecord) -> tuple[Any, ...]:
    """The values of `END_COLUMNS` without `NULL_AT_END`, and the arrival."""
    return (STATE_NUMBERS[job.state], job.kept_until, pack_job(job), job.arrival)


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
