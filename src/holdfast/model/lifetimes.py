"""The three lifetimes of an ended job: how long its record, its result and its key are kept.

They are independent: the record can be looked at until `visible_until`, a caller or a duplicate is answered with the
result until `result_until`, and the id or key stays taken until `key_until`. When all three have passed, the record is
deleted; if they have already passed when the job ends, it is deleted in the same write. A value given at enqueue wins
over the settling worker's, and that wins over the defaults.
"""

from holdfast.model.instants import DAY, FOREVER, HOUR, Instant, Micros
from holdfast.model.job import JobRecord, KeyScope
from holdfast.model.states import JobState

RESULT_TTL: Micros = HOUR
"""Default: a result is answered for this long."""
RETENTION: Micros = DAY
"""Default: a succeeded or cancelled job can be looked at for this long."""
FAILED_RETENTION: Micros = 30 * DAY
"""Default for failed jobs: long enough to notice and to requeue them."""
RESULT_SCOPE = KeyScope.RESULT


def later(start: Instant, duration: Micros) -> Instant:
    """`start` plus `duration`, at most `FOREVER`."""
    end = start + duration
    return end if end < FOREVER else FOREVER


def untils(
    job: JobRecord, state: JobState, now: Instant, result_ttl: Micros | None, retention: Micros | None
) -> tuple[Instant, Instant, Instant]:
    """The end of each lifetime of a job that ends in `state` at `now`: visible, result, key."""
    given = job.given
    if given.retention is not None:
        retention = given.retention
    elif retention is None:
        retention = FAILED_RETENTION if state is JobState.FAILED else RETENTION
    if given.result_ttl is not None:
        result_ttl = given.result_ttl
    elif result_ttl is None:
        result_ttl = RESULT_TTL
    result = later(now, result_ttl)
    return later(now, retention), result, key_until(job, state, now, result)


def key_until(job: JobRecord, state: JobState, finished: Instant, result_until: Instant) -> Instant:
    """How long the id or key stays taken. A failed or cancelled job frees it at once."""
    if state is not JobState.SUCCEEDED:
        return finished
    scope = job.key_scope
    if scope is RESULT_SCOPE:  # the default
        return result_until
    if scope is KeyScope.WINDOW:
        return max(finished, later(job.created, job.key_window))
    return finished if scope is KeyScope.INCOMPLETE else FOREVER
