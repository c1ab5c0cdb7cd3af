"""Frames: how changes become the bytes of a journal, and back.

    header | table | changes | table again | header again

The table has the length and the CRC-32 of each change. Header and table are there twice, so a single damaged byte costs
at most one change: a damaged header or table is replaced by its copy, and a damaged change is one change.

A frame is **sound** if all its bytes are as they were written. `read_sound` accepts nothing else. `salvage` reads what
is left of a damaged frame; it is only for bytes that are known to have been on the disk, because of a frame whose sync
was not finished any part may be missing.
"""

from collections.abc import Sequence
from enum import IntFlag
from struct import Struct, pack, unpack
from typing import NamedTuple
from zlib import crc32

from holdfast.errors import SchemaMismatch
from holdfast.model.instants import At

MAGIC = b"HFj\x01"
END_MAGIC = b"HFe\x01"
"""The first bytes of a header, and of its copy at the end."""

_HEADER = Struct("<4sIQIIQqqQQQQII")
HEADER_BYTES = _HEADER.size
_CHECKED_FROM = 8
"""The bytes before it are the magic and the CRC-32 of the bytes from it on."""
TABLE_ENTRY_BYTES = 8
EMPTY_FRAME_BYTES = 2 * HEADER_BYTES


class Flag(IntFlag):
    """What a frame is, besides its changes."""

    NONE = 0
    FIRST = 1
    """The first frame of a segment or snapshot."""
    LAST = 2
    """The last frame of a segment or snapshot: nothing is appended after it."""
    RELOAD = 4
    """In the first frame of a segment: its snapshot is not the state after the segment before it. A process that has
    read the segment before must load the snapshot."""
    SNAPSHOT = 8
    """A frame of a snapshot."""


_ALL_FLAGS = int(Flag.FIRST | Flag.LAST | Flag.RELOAD | Flag.SNAPSHOT)


class Header(NamedTuple):
    """What a frame says about itself, without lengths and checksums."""

    sequence: int
    """Grows by 1 from frame to frame, over all segments."""
    at: At
    """The engine's time."""
    arrival: int
    """The last arrival number in use."""
    boot_hash: int
    """64 bits of a hash of the boot id: leases of another boot have expired."""
    synced: int
    """Bytes of this segment that were known to be synced when the frame was written."""
    store: int
    """The id of the store. A frame of another store, or one inside a payload, is no frame of this store."""
    flags: int = 0


class LostChange(NamedTuple):
    """A change that cannot be read."""

    number: int
    """Its place in the frame, from 0 on."""
    data: bytes
    """Its bytes as they are now."""


class Frame(NamedTuple):
    """A frame as it was read."""

    header: Header
    changes: list[bytes]
    length: int
    """Bytes, all included."""
    lost: tuple[LostChange, ...] = ()
    """Damaged changes; they are not in `changes`."""
    was_damaged: bool = False
    """True if any byte of it is not as it was written, also where a copy has replaced it."""


def encode_frame(header: Header, changes: Sequence[bytes]) -> bytes:
    body = b"".join(changes)
    numbers = [0] * (2 * len(changes))
    numbers[::2] = map(len, changes)
    numbers[1::2] = map(crc32, changes)
    table = pack(f"<{len(numbers)}I", *numbers)
    fields = _HEADER.pack(
        MAGIC,
        0,
        len(body),
        len(changes),
        header.flags,
        header.sequence,
        header.at.wall,
        header.at.lease,
        header.arrival,
        header.boot_hash,
        header.synced,
        header.store,
        crc32(table),
        crc32(body),
    )[_CHECKED_FROM:]
    checked = crc32(fields).to_bytes(4, "little") + fields
    return b"".join((MAGIC, checked, table, body, table, END_MAGIC, checked))


class _Layout(NamedTuple):
    """A header with its lengths and checksums."""

    header: Header
    change_count: int
    body_bytes: int
    table_crc: int
    body_crc: int

    @property
    def table_bytes(self) -> int:
        return self.change_count * TABLE_ENTRY_BYTES

    @property
    def length(self) -> int:
        return EMPTY_FRAME_BYTES + 2 * self.table_bytes + self.body_bytes


def _read_header(data: bytes, offset: int, magic: bytes) -> _Layout | None:
    """The header at this offset; None if there is none, or a damaged one."""
    raw = data[offset : offset + HEADER_BYTES]
    if len(raw) < HEADER_BYTES or raw[:4] != magic:
        return None
    _, crc, body_bytes, count, flags, sequence, wall, lease, arrival, boot, synced, store, table_crc, body_crc = (
        _HEADER.unpack(raw)
    )
    if crc32(raw[_CHECKED_FROM:]) != crc:
        return None
    header = Header(sequence, At(wall, lease), arrival, boot, synced, store, flags)
    return _Layout(header, count, body_bytes, table_crc, body_crc)


def frame_length(data: bytes, offset: int = 0) -> int | None:
    """The length of the frame whose header is at this offset; None if that is no sound header."""
    layout = _read_header(data, offset, MAGIC)
    return None if layout is None else layout.length


def store_of(data: bytes) -> int | None:
    """The store of the frame at the beginning; None if there is no sound header."""
    layout = _read_header(data, 0, MAGIC)
    return None if layout is None else layout.header.store


def header_at(data: bytes, offset: int) -> Header | None:
    """The header at this offset; None if there is no sound one."""
    layout = _read_header(data, offset, MAGIC)
    return None if layout is None else layout.header


def read_sound(data: bytes, offset: int, store: int) -> Frame | None:
    """The frame that begins at this offset; None unless it is there to its end and every byte of it is sound."""
    layout = _read_header(data, offset, MAGIC)
    if layout is None or layout.header.store != store:
        return None
    end = offset + layout.length
    if end > len(data):
        return None
    table_end = offset + HEADER_BYTES + layout.table_bytes
    body_end = table_end + layout.body_bytes
    table = data[offset + HEADER_BYTES : table_end]
    body = data[table_end:body_end]
    copy = data[body_end:end]
    if (
        copy[: layout.table_bytes] != table
        or copy[layout.table_bytes : layout.table_bytes + 4] != END_MAGIC
        or copy[layout.table_bytes + 4 :] != data[offset + 4 : offset + HEADER_BYTES]
        or crc32(table) != layout.table_crc
        or crc32(body) != layout.body_crc
    ):
        return None
    check_flags(layout.header.flags)
    changes, begin = [], 0
    for length in unpack(f"<{2 * layout.change_count}I", table)[::2]:
        changes.append(body[begin : begin + length])
        begin += length
    return Frame(layout.header, changes, layout.length)


def check_flags(flags: int) -> None:
    """Refuse a frame of a kind that this release does not know."""
    if flags & ~_ALL_FLAGS:
        raise SchemaMismatch(
            f"A frame of the journal has the flags {flags:#x}, which this release of Holdfast does not know. A newer "
            "release has written it: use that release.",
            found=f"frame flags {flags:#x}",
            wanted=f"frame flags {_ALL_FLAGS:#x}",
            engine="file",
        )


def salvage(data: bytes, offset: int, sequence: int | None, store: int) -> Frame | None:
    """What is left of the frame with this number that begins at this offset; None if its length is unknown.

    `sequence` None: with any number. The end of the frame may be missing.
    """
    layout = _read_header(data, offset, MAGIC) or _find_copy(data, offset, sequence, store)
    if layout is None or not _is_frame(layout, sequence, store):
        return None
    check_flags(layout.header.flags)
    table_end = offset + HEADER_BYTES + layout.table_bytes
    body_end = table_end + layout.body_bytes
    tables = (data[offset + HEADER_BYTES : table_end], data[body_end : body_end + layout.table_bytes])
    table = next((table for table in tables if crc32(table) == layout.table_crc), None)
    body = data[table_end:body_end]
    frame_bytes = min(layout.length, len(data) - offset)
    if table is None:  # two places of the frame are damaged: the limits of the changes are unknown
        return Frame(layout.header, [], frame_bytes, (LostChange(0, body),), was_damaged=True)
    changes: list[bytes] = []
    lost: list[LostChange] = []
    numbers = unpack(f"<{2 * layout.change_count}I", table)
    begin = 0
    for number, (length, crc) in enumerate(zip(numbers[::2], numbers[1::2], strict=True)):
        change = body[begin : begin + length]
        begin += length
        if crc32(change) == crc:
            changes.append(change)
        else:
            lost.append(LostChange(number, change))
    return Frame(layout.header, changes, frame_bytes, tuple(lost), was_damaged=True)


def _is_frame(layout: _Layout, sequence: int | None, store: int) -> bool:
    return layout.header.store == store and sequence in (None, layout.header.sequence)


def _find_copy(data: bytes, offset: int, sequence: int | None, store: int) -> _Layout | None:
    """The header of the frame at this offset, from its copy at the end of the frame."""
    found = data.find(END_MAGIC, offset + HEADER_BYTES)
    while found >= 0:
        layout = _read_header(data, found, END_MAGIC)
        if layout is not None and _is_frame(layout, sequence, store) and found + HEADER_BYTES - layout.length == offset:
            return layout
        found = data.find(END_MAGIC, found + 1)
    return None


def find_header(data: bytes, offset: int, after: int, store: int) -> int | None:
    """Where the next sound header of this store with a number above `after` begins, at this offset or behind it."""
    found = data.find(MAGIC, offset)
    while found >= 0:
        layout = _read_header(data, found, MAGIC)
        if layout is not None and layout.header.store == store and layout.header.sequence > after:
            return found
        found = data.find(MAGIC, found + 1)
    return None


def synced_by_later_frames(data: bytes, offset: int, store: int) -> int:
    """The highest `synced` of all sound headers from this offset on; 0 if there is none."""
    highest = 0
    found = find_header(data, offset, -1, store)
    while found is not None:
        layout = _read_header(data, found, MAGIC)
        assert layout is not None
        highest = max(highest, layout.header.synced)
        found = find_header(data, found + 1, -1, store)
    return highest
