"""How records become rows: the columns that statements search, and the whole record packed beside them."""

from collections.abc import Callable
from typing import Any
from zlib import crc32

import msgspec

from holdfast.model.job import JobRecord
from holdfast.model.records import Edge, LaneRecord, PoolRecord, QueueRecord, WorkerRecord
from holdfast.model.states import TERMINAL, WAITING, Hold, JobState

MAX_INTEGER = 2**63 - 1
"""The largest integer of SQLite: above every arrival and every instant."""
CHECKSUM_BYTES = 4
"""At the end of `body`: CRC-32 of the packed record, the lowest byte first."""
SOUND = crc32(crc32(b"").to_bytes(CHECKSUM_BYTES, "little"))
"""The CRC-32 of any bytes with their own CRC-32 behind them, so one call checks a body."""
NO_LIMIT = -1
"""The parameter of `LIMIT ?` for all rows."""

STATE_NUMBERS = {state: number for number, state in enumerate(JobState, start=1)}
"""The column `state`. A number is smaller than a name and stored in three indexes."""
STATES_BY_NUMBER = {number: state for state, number in STATE_NUMBERS.items()}
COLUMNS = (
    "arrival",
    "q",
    "id",
    "t",
    "state",
    "rank",
    "due",
    "lane",
    "unique_key",
    "token",
    "lease_expires",
    "expires",
    "kept_until",
    "body",
)
"""The columns of the table `job`, in the order of `job_row`. Every field of a job is in `body`; only a field that a
statement searches or sorts by has a column, too."""
ID_COLUMNS = ("q", "id")
"""The columns that an update never changes."""
LEASE_COLUMNS = ("state", "token", "lease_expires", "body")
END_COLUMNS = ("state", "token", "lease_expires", "kept_until", "body")
NARROW_COLUMNS = ("state", "token", "lease_expires", "expires", "kept_until", "body")
"""The columns of `update_job_lease`, `update_job_end` and `update_job_narrow`, in the order of the functions of
`fast_updates.py`."""
NULL_AT_END = ("token", "lease_expires")
"""Columns that `update_job_end` sets to NULL, without a parameter."""
QUEUED_COLUMNS = ("arrival", "q", "id", "t", "rank", "due", "body")
"""The columns of `add_queued_job` besides the state; the others are NULL for such a job."""
ROWS_PER_INSERT = 20
"""Rows of `add_queued_jobs`. More save nothing."""

NO_HOLD = Hold.NONE
"""A module's name is read faster than a member of an enum, and every written job needs it."""

_encoder = msgspec.msgpack.Encoder()
pack: Callable[[object], bytes] = _encoder.encode
_encode_job: Callable[[object, bytearray], None] = _encoder.encode_into
_decode_job = msgspec.msgpack.Decoder(JobRecord).decode
unpack_queue = msgspec.msgpack.Decoder(QueueRecord).decode
unpack_lane = msgspec.msgpack.Decoder(LaneRecord).decode
unpack_edge = msgspec.msgpack.Decoder(Edge).decode
unpack_pool = msgspec.msgpack.Decoder(PoolRecord).decode
unpack_worker = msgspec.msgpack.Decoder(WorkerRecord).decode


def job_row(job: JobRecord, q: int, t: int) -> tuple[Any, ...]:
    """The values of `COLUMNS`. `q` and `t` are the numbers of the job's queue and task."""
    state = job.state
    return (
        job.arrival,
        q,
        job.id,
        t,
        STATE_NUMBERS[state],
        -job.priority,
        job.due,
        job.lane if job.hold is not NO_HOLD and job.hold & Hold.LANE else None,
        job.unique_key,
        job.token,
        job.lease_expires,
        job.expires if state in WAITING else None,
        job.kept_until if state in TERMINAL else None,
        pack_job(job),
    )


def pack_job(job: JobRecord | tuple[Any, ...]) -> bytearray:
    """The record, and its checksum at the end: a damaged payload would decode, and run.

    A bytearray, because `sqlite3` looks for an adapter of each parameter of type bytes.
    """
    body = bytearray()
    _encode_job(job, body)
    body += crc32(body).to_bytes(CHECKSUM_BYTES, "little")
    return body


def unpack_job(body: bytes | bytearray | None) -> JobRecord:
    if body is None:  # a damaged row may have lost it, although the column is NOT NULL
        raise msgspec.DecodeError("the record is missing")
    if crc32(body) != SOUND:
        raise msgspec.DecodeError("the checksum does not match")
    return _decode_job(body[:-CHECKSUM_BYTES])


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""What `unpack_job` raises for a damaged body."""


class DamagedRow(Exception):
    """The record of the row with this arrival cannot be decoded."""

    def __init__(self, arrival: int) -> None:
        self.arrival = arrival
        super().__init__(f"row {arrival} is damaged")


class DamagedIndex(Exception):
    """An index does not match the jobs of this queue, or of any queue if it is empty: some would never be claimed."""

    def __init__(self, queue: str = "") -> None:
        self.queue = queue
        super().__init__(f"an index of the jobs of queue {queue!r} is damaged")


class BrokenLane(Exception):
    """Rows of this lane were deleted by hand: its head does not exist, or the lane counts more jobs than there are."""

    def __init__(self, queue: str, lane: str) -> None:
        self.queue, self.lane = queue, lane
        super().__init__(f"lane {lane!r} of queue {queue!r} has missing jobs")


def read_job(row: Any) -> JobRecord:
    """The record of a row (arrival, …, body)."""
    try:
        return unpack_job(row[-1])
    except UNREADABLE as error:
        raise DamagedRow(row[0]) from error
