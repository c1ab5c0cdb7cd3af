"""The per-attempt history: short, bounded, packed.

Only counted attempts that did not succeed leave an entry; the attempt under way or the one that succeeded
is in the record's own columns. A release, a snooze and a loss before the start leave none. A requeue keeps
the entries (each names its generation), a replacement starts empty.
"""

import msgspec

from holdfast.model.job import AttemptRecord

FIRST = 1
LAST = 19

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[AttemptRecord, ...])


def extend(history: tuple[AttemptRecord, ...], entry: AttemptRecord) -> tuple[AttemptRecord, ...]:
    """The history with one more entry: the first and the last nineteen stay, the middle goes."""
    longer = (*history, entry)
    if len(longer) <= FIRST + LAST:
        return longer
    return longer[:FIRST] + longer[-LAST:]


def pack(history: tuple[AttemptRecord, ...]) -> bytes:
    """As an engine stores it. Nothing packs to nothing."""
    return _encoder.encode(history) if history else b""


def unpack(data: bytes) -> tuple[AttemptRecord, ...]:
    return _decoder.decode(data) if data else ()
