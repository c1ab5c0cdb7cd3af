"""Loading a store of the file engine: torn tails, damaged bytes, missing files. On a simulated disk."""

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from file_store import (
    SIMULATED,
    STORE,
    JournalProcess,
    added,
    content,
    damage_synced,
    jobs_in,
    names,
    opened,
    simulated_runtime,
)
from intercepted_files import Call, InterceptedFiles
from simulated_disk import DiskImage, SimulatedDisk
from simulated_files import SimulatedFiles

from holdfast.engines.file.frames import EMPTY_FRAME_BYTES, HEADER_BYTES, encode_frame, frame_length
from holdfast.engines.file.journal import FellBehind
from holdfast.errors import CorruptRecord

FIRST = "0000000000000001.journal"
SECOND = "0000000000000002.journal"
SNAPSHOT = "0000000000000002.snapshot"


def synced_store() -> SimulatedDisk:
    """Two segments, of three frames each with two jobs each; all synced."""
    disk = SimulatedDisk()
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        for number in (0, 2, 4):
            process.add(number, number + 1)
        process.rotate()
        for number in (6, 8, 10):
            process.write(added(number), added(number + 1, b"payload" * 20))
    return disk


def compacted_store() -> SimulatedDisk:
    """A snapshot of several frames, and a segment."""
    disk = SimulatedDisk()
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        process.add(*range(12))
        process.compact()
        process.add(12, 13)
    return disk


def jobs_of(disk: SimulatedDisk) -> list[int]:
    return jobs_in(SIMULATED, simulated_runtime(disk))


class Frames(NamedTuple):
    """The frames of a file: (begin, end)."""

    places: list[tuple[int, int]]

    @classmethod
    def of(cls, data: bytes) -> "Frames":
        places, begin = [], 0
        while begin < len(data):
            length = frame_length(data[begin : begin + HEADER_BYTES])
            assert length is not None
            places.append((begin, begin + length))
            begin += length
        return cls(places)


# One damaged byte


@pytest.mark.parametrize(
    ("make", "name", "step"),
    [
        (synced_store, FIRST, 7),
        (synced_store, SECOND, 7),
        (compacted_store, SNAPSHOT, 11),
        (compacted_store, SECOND, 3),
    ],
)
def test_one_flipped_byte_costs_one_change_and_is_reported(
    make: Callable[[], SimulatedDisk], name: str, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    flip_bytes(make(), name, range(0, 10**9, step), caplog)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "name"),
    [(synced_store, FIRST), (synced_store, SECOND), (compacted_store, SNAPSHOT), (compacted_store, SECOND)],
)
def test_every_flipped_byte_costs_one_change_and_is_reported(
    make: Callable[[], SimulatedDisk], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    flip_bytes(make(), name, range(10**9), caplog)


def flip_bytes(disk: SimulatedDisk, name: str, offsets: range, caplog: pytest.LogCaptureFixture) -> None:
    image = disk.image()
    everything = jobs_of(image.after_kill())
    for offset in offsets:
        if offset >= len(content(disk, name)):
            return
        damaged = image.after_kill()
        content(damaged, name)[offset] ^= 0x41
        caplog.clear()
        found = jobs_of(damaged)
        assert len(set(everything) - set(found)) <= 1, offset
        assert set(found) <= set(everything), offset
        errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert any(name in line for line in errors), offset
        # The store is sound again, and stays as it is.
        caplog.clear()
        assert jobs_of(damaged) == found
        assert caplog.records == []
        assert [each for each in names(damaged) if each.endswith(".damaged")] == (
            [f"{name}.damaged"] if len(found) < len(everything) else []
        )


# A file that is too short


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_a_segment_that_was_cut_loses_the_frames_that_are_not_whole(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At every length. What was synced does not end by itself, so each cut is reported."""
    disk = synced_store()
    image = disk.image()
    whole = bytes(content(disk, name))
    everything = jobs_of(image.after_kill())
    begins = Frames.of(whole).places
    first_job = 0 if name == FIRST else 6
    for length in range(0, len(whole), 5):
        damaged = image.after_kill()
        del content(damaged, name)[length:]
        caplog.clear()
        if length < HEADER_BYTES:
            refuse_unreadable(damaged, name)
            continue
        found = jobs_of(damaged)
        complete = sum(end <= length for _, end in begins[1:]) * 2
        kept = set(range(first_job, min(first_job + complete, first_job + 6)))
        in_other = {number for number in everything if (number < 6) != (name == FIRST)}
        assert set(found) == kept | in_other, length
        assert any(record.levelno >= logging.ERROR for record in caplog.records), length
        caplog.clear()
        assert jobs_of(damaged) == found
        assert caplog.records == []


def refuse_unreadable(disk: SimulatedDisk, name: str) -> None:
    before = {each: bytes(content(disk, each)) for each in names(disk)}
    with pytest.raises(CorruptRecord, match=f"Nothing in {STORE / name} can be read"):
        JournalProcess(SIMULATED, simulated_runtime(disk))
    assert before == {each: bytes(content(disk, each)) for each in names(disk)}


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_a_file_without_a_frame_is_refused_and_left_as_it_is(name: str) -> None:
    for filling in (b"", bytes(5000), b"x" * 5000):
        disk = synced_store()
        content(disk, name)[:] = filling
        refuse_unreadable(disk, name)


def test_a_snapshot_that_was_cut_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    disk = compacted_store()
    image = disk.image()
    for length in range(0, len(content(disk, SNAPSHOT)), 97):
        damaged = image.after_kill()
        del content(damaged, SNAPSHOT)[length:]
        caplog.clear()
        if length < HEADER_BYTES:
            refuse_unreadable(damaged, SNAPSHOT)
            continue
        assert {12, 13} <= set(jobs_of(damaged)) <= set(range(14))
        assert any(SNAPSHOT in record.getMessage() for record in caplog.records), length


def test_bytes_behind_the_end_are_no_frame(caplog: pytest.LogCaptureFixture) -> None:
    for rest in (b"\x00", b"x" * 50, bytes(5000), b"HFj\x01" + bytes(200)):
        disk = synced_store()
        content(disk, SECOND).extend(rest)
        assert jobs_of(disk) == list(range(12))
        disk = synced_store()
        content(disk, FIRST).extend(rest)
        assert jobs_of(disk) == list(range(12))


# Several damaged places


def test_a_zeroed_sector_costs_what_is_in_it(caplog: pytest.LogCaptureFixture) -> None:
    disk = synced_store()
    image = disk.image()
    whole = bytes(content(disk, FIRST))
    places = Frames.of(whole).places
    for begin in range(0, len(whole) - 512, 37):
        damaged = image.after_kill()
        content(damaged, FIRST)[begin : begin + 512] = bytes(512)
        caplog.clear()
        found = jobs_of(damaged)
        untouched = [number for number, (low, high) in enumerate(places) if high <= begin or low >= begin + 512]
        expected = {job for number in untouched if 1 <= number <= 3 for job in (2 * number - 2, 2 * number - 1)}
        assert expected | set(range(6, 12)) <= set(found), begin
        assert caplog.records != []
        caplog.clear()
        assert jobs_of(damaged) == found
        assert caplog.records == []


def test_damage_is_found_by_a_later_header_if_the_mark_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """The last frame was written when the others were known to be synced."""
    disk = synced_store()
    places = Frames.of(bytes(content(disk, SECOND))).places
    for offset in range(places[1][0], places[2][1], 9):
        damaged = disk.image().after_kill()
        content(damaged, "mark")[:] = bytes(len(content(damaged, "mark")))
        content(damaged, SECOND)[offset] ^= 1
        caplog.clear()
        assert len(jobs_of(damaged)) >= 11, offset
        assert any(record.levelno >= logging.ERROR for record in caplog.records)


def test_a_damaged_mark_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    disk = synced_store()
    for offset in range(24):
        damaged = disk.image().after_kill()
        content(damaged, "mark")[offset] ^= 0x80
        assert jobs_of(damaged) == list(range(12))
    assert caplog.records == []


def test_a_snapshot_that_is_damaged_is_not_used_if_an_older_one_is_there(caplog: pytest.LogCaptureFixture) -> None:
    """A process has died after it wrote the snapshot, and before it removed the files before it."""
    disk = SimulatedDisk()
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        process.add(*range(5))
        process.journal.remove_before = lambda segment: None  # type: ignore[method-assign]
        process.compact()
        process.add(5)
    assert {FIRST, SECOND, SNAPSHOT} < set(names(disk))
    assert jobs_of(disk.image().after_kill()) == list(range(6))
    content(disk, SNAPSHOT)[400] ^= 1
    assert jobs_of(disk) == list(range(6))
    assert "An older one is used" in caplog.text


# Missing files


def test_a_missing_segment_is_refused() -> None:
    disk = SimulatedDisk()
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        for number in range(3):
            process.add(number)
            process.rotate()
    image = disk.image()
    for segment in (1, 2, 3, 4):
        damaged = image.after_kill()
        damaged.remove(str(STORE / f"{segment:016x}.journal"))
        with pytest.raises(CorruptRecord, match=rf"{segment:016x}\.journal is missing"):
            JournalProcess(SIMULATED, simulated_runtime(damaged))


def test_a_store_without_segments_is_refused() -> None:
    disk = compacted_store()
    for name in (SECOND, SNAPSHOT):
        disk.remove(str(STORE / name))
    with pytest.raises(CorruptRecord, match="is missing"):
        JournalProcess(SIMULATED, simulated_runtime(disk))


def test_a_missing_snapshot_is_refused() -> None:
    disk = compacted_store()
    disk.remove(str(STORE / SNAPSHOT))
    with pytest.raises(CorruptRecord, match="is missing"):
        JournalProcess(SIMULATED, simulated_runtime(disk))


# Torn tails


def unsynced_images() -> Iterator[tuple[DiskImage, set[int], set[int]]]:
    """Moments at which some frames are synced and some are not, with the numbers of those that are and of all."""
    disk = SimulatedDisk()
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        synced: set[int] = set()
        for number in range(12):
            process.write(added(number, bytes([number]) * 30 * number), sync=False)
            if number % 4 == 3:
                process.journal.sync()
                synced = set(range(number + 1))
            if number == 8:
                process.rotate()
                synced = set(range(number + 1))
            yield disk.image(), synced, set(range(number + 1))


def test_a_power_failure_leaves_a_prefix_with_all_that_was_synced() -> None:
    torn = 0
    for image, synced, written in unsynced_images():
        for seed in range(30):
            disk = image.after_power_cut(seed)
            with opened(SIMULATED, simulated_runtime(disk)) as process:
                found = process.numbers()
                assert synced <= set(found) <= written
                assert found == list(range(len(found)))  # a prefix
                process.add(100)
            torn += any(name.endswith(".torn") for name in names(disk))
            # A second failure brings nothing back.
            for again in range(3):
                second = jobs_of(disk.image().after_power_cut(seed + again))
                assert second == [*found, 100]
    assert torn > 20


def test_frames_behind_a_torn_one_do_not_come_back() -> None:
    """The frame behind the torn one is sound, and a new frame has the length of the torn one."""
    disk = SimulatedDisk()
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        process.add(1)
        begin = len(content(disk, FIRST))
        process.add(2, sync=False)
        process.add(3, sync=False)
    content(disk, FIRST)[begin + 100] ^= 1
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        assert process.numbers() == [1]
        process.add(4, sync=False)
        for seed in range(50):
            found = jobs_of(disk.image().after_power_cut(seed))
            assert found in ([1], [1, 4])


def test_a_frame_with_another_number_is_no_frame_of_the_tail() -> None:
    """It is sound, and comes from a time before the tail was cut off."""
    disk = SimulatedDisk()
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        process.add(1)
        header = process.journal.last
        for number in (header.sequence, header.sequence + 2):
            other = disk.image().after_kill()
            content(other, FIRST).extend(encode_frame(header._replace(sequence=number), [added(9)]))
            assert jobs_of(other) == [1]
            assert "0000000000000001.torn" in names(other)


def test_a_torn_tail_is_kept_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        process.add(1)
        begin = len(content(disk, FIRST))
        process.add(2, sync=False)
        process.add(3, sync=False)
    content(disk, FIRST)[begin + 100] ^= 1
    tail = bytes(content(disk, FIRST)[begin:])
    assert jobs_of(disk) == [1]
    assert bytes(content(disk, "0000000000000001.torn")) == tail
    assert "were not synced when the host stopped" in caplog.text


def test_a_process_that_has_read_a_torn_tail_loads_the_store() -> None:
    """Its disk was taken away for a moment, or the bytes have changed in memory."""
    disk = SimulatedDisk()
    with opened(SIMULATED, simulated_runtime(disk)) as process, opened(SIMULATED, simulated_runtime(disk)) as other:
        process.add(1)
        begin = len(content(disk, FIRST))
        process.add(2, sync=False)
        other.read()
        content(disk, FIRST)[begin + 100] ^= 1
        with opened(SIMULATED, simulated_runtime(disk)) as third:
            assert third.numbers() == [1]
            third.add(3)
        for each in (process, other):
            with pytest.raises(FellBehind, match="Segment 1"):
                each.read(under_gate=True)
            each.load()
            assert each.numbers() == [1, 3]


def test_a_new_store_is_durable_with_its_first_job() -> None:
    """A process dies before each of its changes while it makes the store. The next one makes it, and power fails."""
    root = SIMULATED / "several" / "new" / "folders"
    for number in range(1, 40):
        runtime = simulated_runtime(SimulatedDisk())
        inner = runtime.fs
        assert isinstance(inner, SimulatedFiles)
        files = runtime.fs = InterceptedFiles(inner, SIMULATED)

        def kill(call: Call, number: int = number) -> None:
            if call.number == number:
                raise KeyboardInterrupt

        files.before = kill
        try:
            JournalProcess(root, runtime)
        except KeyboardInterrupt:
            pass
        else:
            break
        inner.kill()
        for seed in range(3):
            jobs_in(root, simulated_runtime(inner.disk.image().after_power_cut(seed)))
        with opened(root, simulated_runtime(inner.disk)) as process:
            process.add(1)
        for seed in range(10):
            assert jobs_in(root, simulated_runtime(inner.disk.image().after_power_cut(seed))) == [1], number
    assert 15 < number < 39


def test_a_power_failure_while_old_files_are_removed_leaves_some_of_them() -> None:
    disk = SimulatedDisk()
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        for number in range(4):
            process.add(number)
            process.rotate()
        process.compact()
        process.add(4)
        for seed in range(40):
            for damaged in (False, True):
                after = disk.image().after_power_cut(seed)
                if damaged:
                    damage_synced(after, "0000000000000006.snapshot", 200)
                assert len(jobs_of(after)) >= 5 - damaged


@pytest.mark.parametrize("is_suspect", [False, True])
def test_a_new_start_that_was_interrupted_is_done_again(*, is_suspect: bool) -> None:
    """After damage, or after a failed sync. The process is killed before each of its changes."""
    disk = synced_store()
    if is_suspect:
        with opened(SIMULATED, simulated_runtime(disk)) as process:
            process.journal.set_suspect(OSError(5, "Input/output error"))
    else:
        damage_synced(disk, SECOND, EMPTY_FRAME_BYTES + HEADER_BYTES + 30)
    image = disk.image()
    expected = jobs_of(image.after_kill())
    assert len(expected) == (12 if is_suspect else 11)
    for number in range(1, 40):
        runtime = simulated_runtime(image.after_kill())
        inner = runtime.fs
        assert isinstance(inner, SimulatedFiles)
        files = runtime.fs = InterceptedFiles(inner, SIMULATED)

        def kill(call: Call, number: int = number) -> None:
            if call.number == number:
                raise KeyboardInterrupt

        files.before = kill
        try:
            JournalProcess(SIMULATED, runtime)
        except KeyboardInterrupt:
            pass
        else:
            break
        inner.kill()
        after = inner.disk.image()
        for seed in range(5):
            assert jobs_of(after.after_power_cut(seed)) == expected, number
        with opened(SIMULATED, simulated_runtime(inner.disk)) as process:
            assert process.numbers() == expected, number
            process.add(100)
        assert jobs_of(inner.disk.image().after_power_cut(number)) == [*expected, 100]
    assert 12 < number < 39


def test_a_process_that_appends_after_an_interrupted_new_start_loads_the_store() -> None:
    """It has the segment open that is about to be replaced."""
    disk = synced_store()
    with opened(SIMULATED, simulated_runtime(disk)) as other:
        damage_synced(disk, SECOND, EMPTY_FRAME_BYTES + HEADER_BYTES + 30)
        runtime = simulated_runtime(disk)
        files = runtime.fs = InterceptedFiles(runtime.fs, SIMULATED)

        def kill(call: Call) -> None:
            if call.verb == "rename":
                raise KeyboardInterrupt

        files.before = kill
        with pytest.raises(KeyboardInterrupt):
            JournalProcess(SIMULATED, runtime)
        with pytest.raises(FellBehind):
            other.add(100)
        other.load()
        other.add(100)
        assert len(other.numbers()) == 12
