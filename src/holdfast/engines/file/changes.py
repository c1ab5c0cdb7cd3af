"""Changes as bytes: what a frame of the journal holds.

A change is a byte for its kind and a record as MessagePack. `before` is not stored: a process finds it in its own copy.
A job whose payload has not changed is written without it.

Records of jobs are packed by position, the others by the names of their fields. A new field has a default and, in a
job, the last position. So an older process reads the records of a newer one, and the other way round.
"""

from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.engines.ledger.state import Change, Record
from holdfast.errors import CorruptRecord, SchemaMismatch
from holdfast.model.job import JobRecord
from holdfast.model.records import Edge, LaneRecord, PoolRecord, QueueRecord, WorkerRecord

JOB = 1
JOB_WITHOUT_PAYLOAD = 2
"""The payload is that of the copy, which has the same arrival and generation."""
QUEUE = 3
LANE = 4
POOL = 5
WORKER = 6
EDGE = 7
REMOVED = 0x80
"""Added to a kind: the record is removed. Of a job only its name is written."""

_KINDS: dict[type[Any], int] = {
    JobRecord: JOB,
    QueueRecord: QUEUE,
    LaneRecord: LANE,
    PoolRecord: POOL,
    WorkerRecord: WORKER,
    Edge: EDGE,
}
_PREFIXES = {record_type: bytes([kind]) for record_type, kind in _KINDS.items()}
_REMOVED_PREFIXES = {record_type: bytes([kind | REMOVED]) for record_type, kind in _KINDS.items()}
_JOB_PREFIX = bytes([JOB])
_WITHOUT_PAYLOAD_PREFIX = bytes([JOB_WITHOUT_PAYLOAD])
_REMOVED_JOB_PREFIX = bytes([JOB | REMOVED])

LEAST_PAYLOAD_TO_OMIT = 128
"""Bytes. To write the record without a shorter payload costs more than to write the payload again."""

_encode = msgspec.msgpack.Encoder().encode
_decode_job = msgspec.msgpack.Decoder(JobRecord).decode
_decode_name = msgspec.msgpack.Decoder(tuple[str, str]).decode
_DECODERS: dict[int, Any] = {
    kind: msgspec.msgpack.Decoder(record_type).decode for record_type, kind in _KINDS.items() if kind != JOB
}

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, IndexError)


class Decoded(NamedTuple):
    """A change as it was read."""

    record: Record
    """The record after the change. If it is removed: the record before it, or for a job one with its name alone."""
    there: bool
    """False: the record is removed."""
    needs_payload: bool = False
    """The record is a job, and its payload is that of the copy: see `with_payload`."""


def encode(change: Change) -> bytes:
    """The bytes of a change."""
    before, after = change.before, change.after
    if type(after) is JobRecord:
        if (
            len(after.payload) >= LEAST_PAYLOAD_TO_OMIT
            and type(before) is JobRecord
            and before.payload is after.payload
            and before.generation == after.generation
            and before.arrival == after.arrival
        ):
            return _WITHOUT_PAYLOAD_PREFIX + _encode(replace(after, payload=b""))
        return _JOB_PREFIX + _encode(after)
    if after is not None:
        return _PREFIXES[type(after)] + _encode(after)
    if type(before) is JobRecord:
        return _REMOVED_JOB_PREFIX + _encode((before.queue, before.id))
    return _REMOVED_PREFIXES[type(before)] + _encode(before)


def encode_record(record: Record) -> bytes:
    """The bytes of the change that writes this record, complete: for a snapshot."""
    return _PREFIXES[type(record)] + _encode(record)


def decode(data: bytes) -> Decoded:
    """The change in these bytes, whose checksum has been compared."""
    kind, body = data[0], data[1:]
    try:
        if kind == JOB:
            return Decoded(_decode_job(body), True)
        if kind == JOB_WITHOUT_PAYLOAD:
            return Decoded(_decode_job(body), True, True)
        if kind == JOB | REMOVED:
            queue, job_id = _decode_name(body)
            return Decoded(JobRecord(queue=queue, id=job_id), False)
        decoder = _DECODERS.get(kind & ~REMOVED)
        if decoder is not None:
            return Decoded(decoder(body), not kind & REMOVED)
    except UNREADABLE as error:
        raise _not_readable(f"a change of kind {kind} has contents", f"change kind {kind}") from error
    raise _not_readable(f"a change has the kind {kind}", f"change kind {kind}")


def _not_readable(what: str, found: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"In the journal, {what} that this release of Holdfast cannot read, although the checksum is right. A newer "
        "release has written it: use that release in all processes.",
        found=found,
        wanted=f"change kinds up to {EDGE}",
        engine="file",
    )


def with_payload(job: JobRecord, copy: JobRecord | None) -> JobRecord:
    """A job that was written without its payload, with the payload of the copy."""
    if copy is None or (copy.generation, copy.arrival) != (job.generation, job.arrival):
        raise CorruptRecord(
            f"The payload of job {job.id!r} of queue {job.queue!r} is missing: the change that wrote it is lost.",
            where="journal",
            job_id=job.id,
            engine="file",
        )
    return replace(job, payload=copy.payload)


def describe_lost(data: bytes) -> str:
    """What can be read of a damaged change, for the log: its kind, and the queue and id of a job if they are there."""
    if not data:
        return "an empty change"
    kind = data[0]
    removal = " removal" if kind & REMOVED else ""
    names = {number: record_type.__name__ for record_type, number in _KINDS.items()} | {
        JOB_WITHOUT_PAYLOAD: "JobRecord"
    }
    what = names.get(kind & ~REMOVED, f"kind {kind}") + removal
    texts = _leading_texts(data[1:], 2)
    return f"{what} {' / '.join(map(repr, texts))}" if texts else what


def _leading_texts(body: bytes, most: int) -> list[str]:
    """The first texts of an array, as far as they can be read."""
    texts: list[str] = []
    at = {0xDC: 3, 0xDD: 5}.get(body[0], 1) if body else 0
    while len(texts) < most and at < len(body):
        first = body[at]
        if 0xA0 <= first <= 0xBF:
            begin, length = at + 1, first & 0x1F
        elif first == 0xD9 and at + 1 < len(body):
            begin, length = at + 2, body[at + 1]
        elif first == 0xDA and at + 2 < len(body):
            begin, length = at + 3, int.from_bytes(body[at + 1 : at + 3], "big")
        else:
            break
        at = begin + length
        if at > len(body):
            break
        try:
            texts.append(body[begin:at].decode())
        except UnicodeDecodeError:  # its length is damaged: what follows may be a part of the payload
            break
    return texts
