"""Frames of the file engine: bytes in, bytes out."""

import os
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engines.file.frames import (
    EMPTY_FRAME_BYTES,
    HEADER_BYTES,
    Flag,
    Header,
    encode_frame,
    find_header,
    frame_length,
    read_sound,
    salvage,
    synced_by_later_frames,
)
from holdfast.errors import SchemaMismatch
from holdfast.model.instants import At

STORE = 0x1122334455667788


def header(sequence: int = 1, **fields: int) -> Header:
    values = {"arrival": 7, "boot_hash": 8, "synced": 9, "store": STORE, "flags": 0} | fields
    return Header(sequence=sequence, at=At(10, 11), **values)


u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)


@given(
    sequence=u64,
    wall=i64,
    lease=i64,
    arrival=u64,
    boot_hash=u64,
    synced=u64,
    store=u64,
    flags=st.integers(0, 15),
    changes=st.lists(st.binary(max_size=50), max_size=8),
    around=st.tuples(st.binary(max_size=30), st.binary(max_size=30)),
)
def test_a_frame_is_read_as_it_was_written(
    sequence: int,
    wall: int,
    lease: int,
    arrival: int,
    boot_hash: int,
    synced: int,
    store: int,
    flags: int,
    changes: list[bytes],
    around: tuple[bytes, bytes],
) -> None:
    head = Header(sequence, At(wall, lease), arrival, boot_hash, synced, store, flags)
    data = encode_frame(head, changes)

    frame = read_sound(around[0] + data + around[1], len(around[0]), store)

    assert frame is not None
    assert (frame.header, frame.changes, frame.length) == (head, changes, len(data))
    assert not frame.was_damaged


def test_a_frame_without_changes_is_two_headers() -> None:
    assert len(encode_frame(header(), [])) == EMPTY_FRAME_BYTES == 2 * HEADER_BYTES


def test_a_large_change_is_kept_whole() -> None:
    change = os.urandom(1024 * 1024)
    frame = read_sound(encode_frame(header(), [change, b"x"]), 0, STORE)
    assert frame is not None
    assert frame.changes == [change, b"x"]


def test_a_frame_that_is_cut_at_any_length_is_no_frame() -> None:
    data = encode_frame(header(), [b"first", b"second"])
    assert [length for length in range(len(data)) if read_sound(data[:length], 0, STORE) is not None] == []


def test_a_frame_with_any_flipped_bit_is_not_sound() -> None:
    data = encode_frame(header(), [b"first", b"second"])
    for offset in range(len(data)):
        for bit in range(8):
            assert read_sound(flip(data, offset, bit), 0, STORE) is None


def flip(data: bytes, offset: int, bit: int = 0) -> bytes:
    damaged = bytearray(data)
    damaged[offset] ^= 1 << bit
    return bytes(damaged)


def test_any_flipped_byte_costs_at_most_one_change() -> None:
    changes = [b"first", b"second", b"third"]
    before, frame, after = (
        encode_frame(header(1), [b"x"]),
        encode_frame(header(2), changes),
        encode_frame(header(3), [b"y"]),
    )
    body_begin = HEADER_BYTES + 8 * len(changes)
    body_end = body_begin + sum(map(len, changes))
    for offset in range(len(frame)):
        data = before + flip(frame, offset, 3) + after
        found = salvage(data, len(before), 2, STORE)
        assert found is not None
        assert (found.header, found.length, found.was_damaged) == (header(2), len(frame), True)
        lost = [number for number, change in enumerate(changes) if change not in found.changes]
        if body_begin <= offset < body_end:
            assert len(lost) == 1
            assert [one.number for one in found.lost] == lost
        else:
            assert (lost, found.lost) == ([], ())


def test_a_damaged_header_and_a_damaged_copy_leave_no_frame() -> None:
    data = encode_frame(header(), [b"first"])
    assert salvage(flip(flip(data, 20), len(data) - 20), 0, 1, STORE) is None


def test_damaged_tables_cost_the_changes_of_their_frame() -> None:
    data = encode_frame(header(), [b"first", b"second"])
    found = salvage(flip(flip(data, HEADER_BYTES), len(data) - HEADER_BYTES - 1), 0, 1, STORE)
    assert found is not None
    assert (found.changes, [one.data for one in found.lost]) == ([], [b"firstsecond"])


def test_a_frame_of_another_store_is_no_frame() -> None:
    data = encode_frame(header(store=STORE + 1), [b"first"])
    assert read_sound(data, 0, STORE) is None
    assert salvage(data, 0, 1, STORE) is None
    assert find_header(data, 0, 0, STORE) is None


def test_a_frame_in_a_payload_is_not_taken_for_one() -> None:
    """A payload that has the bytes of a frame, such as a copy of another journal."""
    inner = encode_frame(header(2, store=5), [b"inner"])
    data = encode_frame(header(1), [inner])
    assert find_header(data, 1, 0, STORE) is None
    assert salvage(flip(data, 9), 0, 1, STORE) is not None


def test_the_next_header_is_found_behind_unreadable_bytes() -> None:
    frames = [encode_frame(header(number, synced=number * 100), [b"x"]) for number in (1, 2, 3)]
    data = b"\x00garbage HFj\x01 " + flip(frames[0], 10) + frames[1] + frames[2]
    second = len(data) - len(frames[1]) - len(frames[2])
    assert find_header(data, 0, 0, STORE) == second
    assert find_header(data, 0, 2, STORE) == second + len(frames[1])
    assert find_header(data, 0, 3, STORE) is None
    assert synced_by_later_frames(data, 0, STORE) == 300
    assert synced_by_later_frames(b"", 0, STORE) == 0


def test_the_length_of_a_frame_is_in_its_header() -> None:
    data = encode_frame(header(), [b"first"])
    assert frame_length(data[:HEADER_BYTES]) == len(data)
    assert frame_length(flip(data, 10)) is None
    assert frame_length(b"") is None


def test_an_unknown_flag_is_refused() -> None:
    data = encode_frame(header(flags=Flag.FIRST | 0x100), [b"x"])
    with pytest.raises(SchemaMismatch, match="newer"):
        read_sound(data, 0, STORE)
    with pytest.raises(SchemaMismatch, match="newer"):
        salvage(flip(data, 4), 0, 1, STORE)


def test_the_bytes_of_a_frame_stay_as_they_are() -> None:
    """Stored journals are read by later releases: these bytes change only with the number of the format."""
    data = encode_frame(header(flags=Flag.FIRST), [b"ab", b"c"])
    table = b"".join(len(part).to_bytes(4, "little") + crc32(part).to_bytes(4, "little") for part in (b"ab", b"c"))
    fields = b"".join(
        number.to_bytes(size, "little")
        for number, size in (
            (3, 8),  # bytes of changes
            (2, 4),  # changes
            (1, 4),  # flags
            (1, 8),  # sequence
            (10, 8),  # wall
            (11, 8),  # lease
            (7, 8),  # arrival
            (8, 8),  # boot
            (9, 8),  # synced
            (STORE, 8),
            (crc32(table), 4),
            (crc32(b"abc"), 4),
        )
    )
    checked = crc32(fields).to_bytes(4, "little") + fields
    assert data == b"HFj\x01" + checked + table + b"abc" + table + b"HFe\x01" + checked
