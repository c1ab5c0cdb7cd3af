"""Stored records as values: the counterpart of `lua/records.lua`. `lua/layout.lua` describes the format.

The server sends a job as it is stored, with its queue and id behind it. A lease is made from the same bytes, without a
`JobRecord` in between, since every claimed job passes here.
"""

from struct import Struct as Layout
from typing import Any

import msgspec

from holdfast.model.instants import FOREVER
from holdfast.model.job import (
    NOTHING_GIVEN,
    AttemptOutcome,
    AttemptRecord,
    Given,
    JobRecord,
    KeyScope,
    ProgressRecord,
)
from holdfast.model.produce import NewJob
from holdfast.model.records import LaneRecord, Totals
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import Lease, lease_of

MAX_INLINE_PAYLOAD_BYTES = 8 * 1024
"""A larger payload gets a key of its own: a claim and a settlement write the record again, but not the payload."""

LEASE_FLAG, END_FLAG, RARE_FLAG, CANCEL_FLAG, APART_FLAG = 1, 2, 4, 8, 16

STATES = (None, *JobState)
SCOPES = (None, *KeyScope)
REASONS = (None, *Reason)
CODECS = (None, "json", "msgpack")
HOLDS = tuple(Hold(number) for number in range(32))

_BASE = Layout("<BBhBBBBQQQ")
_LEASE = Layout("<HBBIQQQQQ")
_END = Layout("<QQQQI")
_BASE_AND_LEASE = Layout("<BBhBBBBQQQHBBIQQQQQ")
_LENGTH = Layout("<I")
_METADATA_LENGTH = Layout("<H")
_NAME_LENGTHS = Layout("<HH")

_LOW_6_BYTES = 2**48 - 1
_LOW_7_BYTES = 2**56 - 1
_LAST_INSTANT = 2**55

_encode = msgspec.msgpack.Encoder().encode
_decode_metadata = msgspec.msgpack.Decoder(dict[str, str]).decode
_NO_METADATA = _METADATA_LENGTH.pack(0)


class StoredGiven(msgspec.Struct, frozen=True, gc=False):
    """`Given` by field name: Lua cannot pack a list with holes."""

    max_attempts: int | None = None
    max_losses: int | None = None
    timeout: int | None = None
    lease_len: int | None = None
    result_ttl: int | None = None
    retention: int | None = None


class StoredAttempt(msgspec.Struct, frozen=True, gc=False):
    """`AttemptRecord` by field name."""

    number: int
    generation: int
    worker: str
    started: int
    ended: int
    outcome: AttemptOutcome
    error: ErrorInfo | None = None


class StoredProgress(msgspec.Struct, frozen=True, gc=False):
    """`ProgressRecord` by field name."""

    fraction: float
    note: str = ""


class RareFields(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What most jobs do not have, and any value that does not fit its place in the record."""

    unique_key: str | None = None
    key_window: int | None = None
    expires: int | None = None
    reply: tuple[str, ...] = ()
    given: StoredGiven | None = None
    parents_left: int | None = None
    progress: StoredProgress | None = None
    cancel_note: str | None = None
    note: str | None = None
    last_error: ErrorInfo | None = None
    history: tuple[StoredAttempt, ...] = ()
    epoch: int | None = None
    pool_key: str | None = None
    reaped_token: str | None = None
    loss_error: ErrorInfo | None = None
    # Values that do not fit
    lane: str | None = None
    codec: str | None = None
    generation: int | None = None
    created: int | None = None
    due: int | None = None
    attempt: int | None = None
    losses: int | None = None
    max_losses: int | None = None
    max_attempts: int | None = None
    fence: int | None = None
    lease_expires: int | None = None
    lease_len: int | None = None
    owner: str | None = None
    token: str | None = None
    settled_token: str | None = None
    started: int | None = None
    last_started: int | None = None
    finished: int | None = None
    visible_until: int | None = None
    result_until: int | None = None
    key_until: int | None = None


_decode_rare = msgspec.msgpack.Decoder(RareFields).decode
_PLAIN_OVERRIDES = tuple(
    name for name in RareFields.__struct_fields__ if name not in ("reply", "given", "progress", "history")
)


def pack_tail(job: NewJob) -> tuple[bytes, bytes | None]:
    """The part of a new job that no rule reads, and its payload if that gets a key of its own."""
    if job.metadata:
        metadata = _encode(job.metadata)
        head = _METADATA_LENGTH.pack(len(metadata)) + metadata
    else:
        head = _NO_METADATA
    payload = job.payload
    return (head + payload, None) if len(payload) <= MAX_INLINE_PAYLOAD_BYTES else (head, payload)


def _instant(value: int) -> int:
    value &= _LOW_7_BYTES
    return FOREVER if value == _LAST_INSTANT else value


def _optional(value: int) -> int | None:
    value &= _LOW_7_BYTES
    return FOREVER if value == _LAST_INSTANT else value or None


def _given(stored: StoredGiven | None) -> Given:
    return NOTHING_GIVEN if stored is None else Given(*msgspec.structs.astuple(stored))


def unpack_lease(blob: bytes) -> Lease:
    """The lease on a job that has just been claimed."""
    (
        flags, state, priority, _, _, codec, hash_length, arrival, created, due, attempt, losses, max_losses,
        max_attempts, fence, expires, lease_len, started, _,
    ) = _BASE_AND_LEASE.unpack_from(blob)  # fmt: skip
    if flags & ~(LEASE_FLAG | APART_FLAG) or (expires | due | created | fence | started) & _LAST_INSTANT:  # one bit
        return lease_of(unpack_job(blob))
    queue_length, id_length = _NAME_LENGTHS.unpack_from(blob, len(blob) - 4)
    start = 80
    end = start + (arrival >> 48)
    task = blob[start:end].decode()
    lane = None
    if due >> 56:
        start, end = end, end + (due >> 56)
        lane = blob[start:end].decode()
    start = end + hash_length + (expires >> 56)
    end = start + (lease_len >> 48 & 255)
    token = blob[start:end].decode()
    start = end + (lease_len >> 56)
    payload_start = start + 2
    metadata: dict[str, str] = {}
    if blob[start] or blob[start + 1]:
        start, payload_start = payload_start, payload_start + blob[start] + (blob[start + 1] << 8)
        metadata = _decode_metadata(blob[start:payload_start])
    id_start = len(blob) - 4 - id_length
    queue_start = id_start - queue_length
    return Lease(
        blob[queue_start:id_start].decode(),
        blob[id_start:-4].decode(),
        created >> 56,
        task,
        blob[payload_start:queue_start],
        CODECS[codec],  # type: ignore[arg-type]
        metadata,
        priority,
        lane,
        arrival & _LOW_6_BYTES,
        created & _LOW_7_BYTES,
        due & _LOW_7_BYTES,
        None,
        STATES[state],
        attempt,
        losses,
        token,
        fence & _LOW_7_BYTES,
        expires & _LOW_7_BYTES,
        lease_len & _LOW_6_BYTES,
        max_attempts,
        max_losses,
        started & _LOW_7_BYTES or None,
        NOTHING_GIVEN,
    )


def unpack_job(blob: bytes) -> JobRecord:
    """A job of an answer."""
    queue_length, id_length = _NAME_LENGTHS.unpack_from(blob, len(blob) - 4)
    id_start = len(blob) - 4 - id_length
    queue_start = id_start - queue_length
    return unpack_stored(blob[:queue_start], blob[queue_start:id_start].decode(), blob[id_start:-4].decode())


def unpack_stored(raw: bytes, queue: str, job_id: str) -> JobRecord:
    """A job as it stands in the store. If its payload has a key of its own, `raw` is followed by it or it is empty."""
    (
        flags, state, priority, hold, scope, codec, hash_length, arrival, created, due,
    ) = _BASE.unpack_from(raw)  # fmt: skip
    at = _BASE.size
    fields: dict[str, Any] = {
        "priority": priority,
        "key_scope": SCOPES[scope],
        "codec": CODECS[codec],
        "state": STATES[state],
        "hold": HOLDS[hold],
        "generation": created >> 56,
        "arrival": arrival & _LOW_6_BYTES,
        "created": _instant(created),
        "due": _instant(due),
        "cancel_asked": bool(flags & CANCEL_FLAG),
    }
    lengths = [("task", arrival >> 48), ("lane", due >> 56), ("payload_hash", hash_length)]
    if flags & LEASE_FLAG:
        (
            fields["attempt"], fields["losses"], fields["max_losses"], fields["max_attempts"], fence, expires,
            lease_len, started, last_started,
        ) = _LEASE.unpack_from(raw, at)  # fmt: skip
        at += _LEASE.size
        fields["fence"] = _instant(fence)
        fields["lease_expires"] = _optional(expires)
        fields["lease_len"] = lease_len & _LOW_6_BYTES
        fields["started"] = _optional(started)
        fields["last_started"] = _optional(last_started)
        lengths += [
            ("owner", expires >> 56),
            ("token", lease_len >> 48 & 255),
            ("settled_token", lease_len >> 56),
        ]
    if flags & END_FLAG:
        finished, visible, result, key, result_length = _END.unpack_from(raw, at)
        at += _END.size
        fields["finished"] = _optional(finished)
        fields["reason"] = REASONS[finished >> 56]
        fields["visible_until"] = _instant(visible)
        fields["result_until"] = _instant(result)
        fields["key_until"] = _instant(key)
        if result_length:
            lengths.append(("result", result_length - 1))
            fields["result"] = b""
    rare_length = 0
    if flags & RARE_FLAG:
        (rare_length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
    for name, length in lengths:
        if length:
            value = raw[at : at + length]
            fields[name] = value if name in ("payload_hash", "result") else value.decode()
            at += length
    if rare_length:
        _add_rare(fields, _decode_rare(raw[at : at + rare_length]))
        at += rare_length
    (metadata_length,) = _METADATA_LENGTH.unpack_from(raw, at)
    at += _METADATA_LENGTH.size
    if metadata_length:
        fields["metadata"] = _decode_metadata(raw[at : at + metadata_length])
    return JobRecord(queue=queue, id=job_id, payload=raw[at + metadata_length :], **fields)


def _add_rare(fields: dict[str, Any], rare: RareFields) -> None:
    for name in _PLAIN_OVERRIDES:
        value = getattr(rare, name)
        if value is not None:
            fields[name] = value
    fields["reply"] = rare.reply
    fields["given"] = _given(rare.given)
    if rare.progress is not None:
        fields["progress"] = ProgressRecord(rare.progress.fraction, rare.progress.note)
    fields["history"] = tuple(AttemptRecord(*msgspec.structs.astuple(entry)) for entry in rare.history)


def unpack_lane(raw: bytes, queue: str, lane: str) -> LaneRecord:
    """A lane as it stands in the store: see `lua/state.lua`."""

    def number(first: int, length: int) -> int:
        return int.from_bytes(raw[first : first + length], "little")

    return LaneRecord(
        queue=queue,
        lane=lane,
        head=raw[37:].decode() or None,
        depth=number(1, 4),
        paused=bool(raw[0]),
        totals=Totals(number(5, 6), number(11, 6), number(17, 6)),
        fence=number(23, 7),
        emptied=number(30, 7),
    )
