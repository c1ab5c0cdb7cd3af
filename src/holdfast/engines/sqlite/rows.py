"""How records become rows: the columns that are searched for, and the whole record packed beside them."""

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model.job import JobRecord
from holdfast.model.records import Edge, LaneRecord, PoolRecord, QueueRecord, ScheduleRecord, WorkerRecord
from holdfast.model.states import TERMINAL, WAITING, Hold, JobState

CODES = {
    JobState.SCHEDULED: 1,
    JobState.BLOCKED: 2,
    JobState.QUEUED: 3,
    JobState.ASSIGNED: 4,
    JobState.RUNNING: 5,
    JobState.RETRYING: 6,
    JobState.SUCCEEDED: 7,
    JobState.FAILED: 8,
    JobState.CANCELLED: 9,
}
STATES = {code: state for state, code in CODES.items()}
FREE = Hold.NONE

pack: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
unpack_job = msgspec.msgpack.Decoder(JobRecord).decode
unpack_queue = msgspec.msgpack.Decoder(QueueRecord).decode
unpack_lane = msgspec.msgpack.Decoder(LaneRecord).decode
unpack_edge = msgspec.msgpack.Decoder(Edge).decode
unpack_pool = msgspec.msgpack.Decoder(PoolRecord).decode
unpack_worker = msgspec.msgpack.Decoder(WorkerRecord).decode
unpack_schedule = msgspec.msgpack.Decoder(ScheduleRecord).decode


def row_of(job: JobRecord, q: int, t: int) -> tuple[Any, ...]:
    """A job as `add_job` takes it."""
    state = job.state
    return (
        job.arrival,
        q,
        job.id,
        t,
        CODES[state],
        -job.priority,
        job.due,
        job.lane if job.hold is not FREE and job.hold & Hold.LANE else None,
        job.unique_key,
        job.token,
        job.lease_expires,
        job.expires if state in WAITING else None,
        job.kept_until if state in TERMINAL else None,
        pack(job),
    )


def move_of(job: JobRecord) -> tuple[Any, ...]:
    """A job as `move_job` takes it."""
    return (
        CODES[job.state],
        job.token,
        job.lease_expires,
        job.expires if job.state in WAITING else None,
        job.kept_until if job.state in TERMINAL else None,
        pack(job),
        job.arrival,
    )


def same_order(old: JobRecord, new: JobRecord) -> bool:
    """Whether nothing changed that orders the job or names it."""
    return (
        old.arrival == new.arrival
        and old.due == new.due
        and old.priority == new.priority
        and old.hold is FREE
        and new.hold is FREE
        and old.generation == new.generation
    )


class DamagedRow(Exception):
    """The record of the row with this arrival cannot be read."""

    def __init__(self, arrival: int) -> None:
        self.arrival = arrival
        super().__init__(f"row {arrival} is damaged")


class BrokenLane(Exception):
    """Somebody has deleted rows of this lane: its head is not there, or not as many jobs as it counts."""

    def __init__(self, queue: str, lane: str) -> None:
        self.queue, self.lane = queue, lane
        super().__init__(f"lane {lane!r} of queue {queue!r} misses jobs")


def unpacked(row: Any) -> JobRecord:
    """The record of a row (arrival, …, body)."""
    try:
        return unpack_job(row[-1])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedRow(row[0]) from error
