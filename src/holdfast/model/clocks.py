"""The three clocks of a finished job: who may still see what, and until when.

Retention (`visible_until`), the answer to a caller or a duplicate (`result_until`) and the id or key
(`key_until`) run apart. When all three have passed the record goes, in the finishing write if they already
have. What was given at enqueue wins over what the settling worker says, and that over the defaults.
"""

from holdfast.model.instants import DAY, FOREVER, HOUR
from holdfast.model.job import JobRecord, KeyScope
from holdfast.model.states import JobState

RESULT_TTL = HOUR
RETENTION = DAY
FAILED_RETENTION = 30 * DAY


def later(start: int, duration: int) -> int:
    return min(start + duration, FOREVER)


def untils(
    job: JobRecord, state: JobState, now: int, result_ttl: int | None, retention: int | None
) -> tuple[int, int, int]:
    """The clocks of a job that ends in `state` at `now`: visible, result, key."""
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


def key_until(job: JobRecord, state: JobState, finished: int, result_until: int) -> int:
    """How long the id or key stays taken. A failed or cancelled job frees it at once."""
    if state is not JobState.SUCCEEDED:
        return finished
    match job.key_scope:
        case KeyScope.INCOMPLETE:
            return finished
        case KeyScope.RESULT:
            return result_until
        case KeyScope.WINDOW:
            return max(finished, later(job.created, job.key_window))
        case KeyScope.FOREVER:
            return FOREVER
