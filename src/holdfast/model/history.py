"""The history of a job: its failed attempts, at most 20 of them, packed into bytes.

Only counted attempts that did not succeed have an entry; the running or succeeded attempt is in the record's own
fields. A release, a snooze and a loss before the start add none. A requeue keeps the entries (each has its generation);
a replacement starts with an empty history.
"""

import msgspec

from holdfast.model.job import AttemptRecord

KEEP_FIRST = 1
KEEP_LAST = 19
"""Entries kept from the start and from the end: the first error often shows the cause."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[AttemptRecord, ...])


def extend(history: tuple[AttemptRecord, ...], entry: AttemptRecord) -> tuple[AttemptRecord, ...]:
    """The history with one more entry. If it gets too long, entries in the middle are dropped."""
    longer = (*history, entry)
    if len(longer) <= KEEP_FIRST + KEEP_LAST:
        return longer
    return longer[:KEEP_FIRST] + longer[-KEEP_LAST:]


def pack(history: tuple[AttemptRecord, ...]) -> bytes:
    """The bytes that an engine stores. An empty history is empty bytes."""
    return _encoder.encode(history) if history else b""


def unpack(data: bytes) -> tuple[AttemptRecord, ...]:
    return _decoder.decode(data) if data else ()
