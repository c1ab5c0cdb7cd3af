"""The journal of the file engine: processes that append to it, read it and sync it at the same time."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from file_store import SIMULATED, STORE, JournalProcess, added, content, jobs_in, names, opened, simulated_runtime
from intercepted_files import Call, InterceptedFiles
from simulated_disk import SimulatedDisk
from simulated_files import SimulatedFiles

from holdfast.engines.file.changes import QUEUE
from holdfast.engines.file.frames import EMPTY_FRAME_BYTES, Flag, encode_frame, frame_length
from holdfast.engines.file.journal import DamagedJournal, FellBehind, Journal
from holdfast.engines.file.marks import Mark, MarkFile, encode_mark, parse_mark
from holdfast.engines.file.store_folder import StoreFolder
from holdfast.errors import CorruptRecord, EngineUnavailable, SchemaMismatch, StorageFull
from holdfast.runtime import SystemRuntime

FIRST = "0000000000000001.journal"
SECOND = "0000000000000002.journal"


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def a(disk: SimulatedDisk) -> Iterator[JournalProcess]:
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        yield process


@pytest.fixture
def b(a: JournalProcess, disk: SimulatedDisk) -> Iterator[JournalProcess]:
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        yield process


def flags_in(disk: SimulatedDisk, name: str) -> list[int]:
    """Of all frames of a segment."""
    data, begin, found = bytes(content(disk, name)), 0, []
    while begin < len(data):
        length = frame_length(data, begin)
        assert length is not None
        flags = int.from_bytes(data[begin + 20 : begin + 24], "little")
        found.append(flags)
        begin += length
    return found


def jobs_after_kill(disk: SimulatedDisk) -> list[int]:
    return jobs_in(SIMULATED, simulated_runtime(disk.image().after_kill()))


# Reading and appending


def test_a_process_reads_what_another_has_appended(a: JournalProcess, b: JournalProcess) -> None:
    a.add(1, 2)
    b.add(3)
    a.read()
    assert a.numbers() == b.numbers() == [1, 2, 3]


def test_a_process_does_not_read_its_own_frames(a: JournalProcess) -> None:
    a.add(1)
    assert a.journal.read_new(under_gate=False) == []
    assert a.journal.read_new(under_gate=True) == []


def test_a_store_is_the_same_after_it_was_opened_again(tmp_path: Path) -> None:
    for number in range(3):
        with opened(tmp_path, segment_bytes=200) as process:
            process.add(number)
            if process.journal.needs_rotation:
                process.rotate()
    assert jobs_in(tmp_path) == [0, 1, 2]


def test_only_the_user_can_read_the_files(tmp_path: Path) -> None:
    with opened(tmp_path / "new" / "folder") as process:
        process.add(1)
        process.compact()
        modes = {path.name: path.stat().st_mode & 0o777 for path in process.folder.path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert (tmp_path / "new" / "folder" / "holdfast").stat().st_mode & 0o777 == 0o700


def test_a_reader_stops_before_a_frame_that_is_not_complete(
    a: JournalProcess, b: JournalProcess, disk: SimulatedDisk
) -> None:
    """At each length of a frame that is being written."""
    a.add(1)
    b.read()
    complete = len(content(disk, FIRST))
    a.add(2, sync=False)
    frame = bytes(content(disk, FIRST)[complete:])
    del content(disk, FIRST)[complete:]
    for byte in frame[:-1]:
        content(disk, FIRST).append(byte)
        b.read()
        assert b.numbers() == [1]
    content(disk, FIRST).append(frame[-1])
    b.read()
    assert b.numbers() == [1, 2]


@pytest.mark.parametrize("length", [1, 50, 87, 88, 100, 200])
def test_a_writer_removes_the_beginning_of_a_frame_whose_writer_has_died(
    a: JournalProcess, b: JournalProcess, disk: SimulatedDisk, length: int
) -> None:
    a.add(1)
    complete = len(content(disk, FIRST))
    a.add(2, sync=False)
    del content(disk, FIRST)[complete + length :]

    b.add(3)

    assert b.numbers() == [1, 3]
    assert jobs_after_kill(disk) == [1, 3]


def test_a_reader_beside_a_writer_that_removes_and_appends(disk: SimulatedDisk) -> None:
    """The reader has the old beginning of a frame in one part and new bytes in the next one."""
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        process.add(1)
        begin = len(content(disk, FIRST))
        process.add(2, 3, sync=False)
        old = bytes(content(disk, FIRST)[begin:])
        header = process.journal.last
        new = encode_frame(header, [added(7), added(8, b"x" * 50)]) + encode_frame(
            header._replace(sequence=header.sequence + 1), [added(9)]
        )
        with opened(SIMULATED, simulated_runtime(disk.image().after_kill())) as reader:
            reader.records.jobs.clear()
            position, last, file = reader.journal.position, reader.journal.last, reader.journal.file
            for cut in range(1, len(old)):
                mixture = old[:cut] + new[cut:]
                data = content(reader.runtime.fs.disk, FIRST)  # type: ignore[attr-defined]
                data[begin:] = mixture
                reader.journal.stand_at(
                    file, position._replace(offset=begin, sequence=header.sequence), last._replace(flags=0)
                )
                assert bool(reader.journal.read_new(under_gate=False)) is (mixture == new), cut


def test_a_complete_frame_that_was_not_synced_is_kept(a: JournalProcess, b: JournalProcess) -> None:
    a.add(1, sync=False)
    a.runtime.fs.kill()  # type: ignore[attr-defined]
    b.add(2)
    assert b.numbers() == [1, 2]


# Errors of the disk


def test_an_append_that_fails_has_written_nothing(disk: SimulatedDisk) -> None:
    for part in (0, 1, 100):
        runtime = simulated_runtime(disk)
        files = runtime.fs = InterceptedFiles(runtime.fs, SIMULATED)
        with opened(SIMULATED, runtime) as process:
            before = process.numbers()

            def fail(call: Call, part: int = part) -> None:
                if call.verb == "write":
                    call.write_part(part)
                    raise OSError(errno.ENOSPC, "No space left on device")

            files.before = fail
            with pytest.raises(StorageFull, match="Nothing was written"):
                process.add(part)
            files.before = lambda call: None
            position = process.journal.position
            assert len(content(disk, FIRST)) == position.offset
            process.add(1000 + part)
            assert jobs_after_kill(disk) == sorted([*before, 1000 + part])


def test_an_append_that_fails_and_cannot_be_removed_is_removed_later(disk: SimulatedDisk) -> None:
    runtime = simulated_runtime(disk)
    files = runtime.fs = InterceptedFiles(runtime.fs, SIMULATED)
    with opened(SIMULATED, runtime) as process:

        def fail(call: Call) -> None:
            if call.verb == "write":
                call.write_part(120)
            raise OSError(errno.EIO, "Input/output error")

        files.before = fail
        with pytest.raises(EngineUnavailable, match="Nothing was written"):
            process.journal.append([added(1)], process.journal.last.at, 1, 1)
        files.before = lambda call: None
        process.add(2)
        assert process.numbers() == [2]
    assert jobs_after_kill(disk) == [2]


def test_a_failed_sync_stops_every_process(disk: SimulatedDisk) -> None:
    runtime = simulated_runtime(disk)
    files = runtime.fs = InterceptedFiles(runtime.fs, SIMULATED)
    with opened(SIMULATED, runtime) as process, opened(SIMULATED, simulated_runtime(disk)) as other:
        process.add(1)
        other.read()

        def fail(call: Call) -> None:
            if call.verb == "sync" and call.path.endswith(FIRST):
                disk.lose_unsynced(disk.file(call.path), 5)
                raise OSError(errno.EIO, "Input/output error")

        files.before = fail
        with pytest.raises(EngineUnavailable, match="A sync has failed"):
            process.add(2)
        files.before = lambda call: None
        for each in (process, other):
            with pytest.raises(EngineUnavailable, match="A sync has failed"):
                each.add(3)
            with pytest.raises(EngineUnavailable, match="A sync has failed"):
                each.read()
            with pytest.raises(EngineUnavailable, match="A sync has failed"):
                each.journal.sync()
            with pytest.raises(EngineUnavailable, match="A sync has failed"):
                each.load()
        assert b"Input/output error" in content(disk, "suspect")
        # The next process that opens the store writes it anew; the others load it.
        with opened(SIMULATED, simulated_runtime(disk)) as third:
            assert third.numbers() == [1, 2]
            third.add(4)
        assert "suspect" not in names(disk)
        assert jobs_in(SIMULATED, simulated_runtime(disk.image().after_power_cut(1))) == [1, 2, 4]
        with pytest.raises(FellBehind):
            other.read()
        other.load()
        other.add(5)
        assert other.numbers() == [1, 2, 4, 5]


def test_a_suspect_store_that_cannot_be_written_anew_is_refused(disk: SimulatedDisk) -> None:
    with opened(SIMULATED, simulated_runtime(disk)) as process:
        process.add(1)
        process.journal.set_suspect(OSError(errno.EIO, "Input/output error"))
    runtime = simulated_runtime(disk)
    files = runtime.fs = InterceptedFiles(runtime.fs, SIMULATED)

    def fail(call: Call) -> None:
        if call.verb == "sync":
            raise OSError(errno.EIO, "Input/output error")

    files.before = fail
    with pytest.raises(EngineUnavailable):
        JournalProcess(SIMULATED, runtime)
    assert "suspect" in names(disk)
    assert jobs_in(SIMULATED, simulated_runtime(disk)) == [1]
    assert "suspect" not in names(disk)


def test_a_suspect_segment_that_cannot_be_written_is_replaced(disk: SimulatedDisk) -> None:
    """It gets no end. The processes that have it open notice by the mark that another one is in use."""
    with opened(SIMULATED, simulated_runtime(disk)) as other:
        other.add(1)
        other.journal.set_suspect(OSError(errno.EIO, "Input/output error"))
        runtime = simulated_runtime(disk)
        files = runtime.fs = InterceptedFiles(runtime.fs, SIMULATED)

        def fail(call: Call) -> None:
            if call.path.endswith(FIRST) and call.verb in ("write", "sync", "truncate"):
                raise OSError(errno.EIO, "Input/output error")

        files.before = fail
        with opened(SIMULATED, runtime) as process:
            process.add(2)
        for under_gate in (False, True):
            with pytest.raises(FellBehind):
                other.read(under_gate=under_gate)
        other.load()
        assert other.numbers() == [1, 2]


# Syncing


def test_what_was_synced_by_another_process_is_not_synced_again(disk: SimulatedDisk) -> None:
    runtime = simulated_runtime(disk)
    files = runtime.fs = InterceptedFiles(runtime.fs, SIMULATED)
    with opened(SIMULATED, simulated_runtime(disk)) as writer, opened(SIMULATED, runtime) as reader:
        syncs: list[str] = []
        files.before = lambda call: syncs.append(call.path) if call.verb.startswith("sync") else None
        writer.add(1)
        reader.read()
        reader.journal.sync()
        assert syncs == []
        writer.add(2, sync=False)
        reader.read()
        reader.journal.sync()
        reader.journal.sync()
        assert syncs == [str(STORE / FIRST)]


def test_what_a_reader_has_seen_is_durable_after_its_sync(
    a: JournalProcess, b: JournalProcess, disk: SimulatedDisk
) -> None:
    a.add(1, sync=False)
    b.read()
    b.journal.sync()
    for seed in range(20):
        assert jobs_in(SIMULATED, simulated_runtime(disk.image().after_power_cut(seed))) == [1]


def test_another_thread_may_sync_while_segments_change(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=500) as process:
        done = threading.Event()
        errors: list[BaseException] = []

        def sync() -> None:
            try:
                while not done.is_set():
                    process.journal.sync()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=sync)
        thread.start()
        for number in range(60):
            process.add(number, sync=False)
            if process.journal.needs_rotation:
                process.rotate()
        done.set()
        thread.join()
        assert errors == []
        assert process.journal.position.segment > 10
    assert jobs_in(tmp_path) == list(range(60))


# Segments


def test_a_process_follows_over_several_segments(a: JournalProcess, b: JournalProcess) -> None:
    for number in range(5):
        a.add(number)
        a.rotate()
    b.read()
    assert b.numbers() == [0, 1, 2, 3, 4]
    assert b.journal.position == a.journal.position
    b.add(5)
    a.read()
    assert a.numbers() == [0, 1, 2, 3, 4, 5]


def test_a_process_that_is_behind_removed_segments_loads_the_snapshot(a: JournalProcess, b: JournalProcess) -> None:
    for number in range(3):
        a.add(number)
        a.compact()
    with pytest.raises(FellBehind, match="was removed"):
        b.read()
    with pytest.raises(FellBehind):  # it stays so until the store is loaded
        b.read(under_gate=True)
    b.load()
    b.add(3)
    assert b.numbers() == [0, 1, 2, 3]


def test_a_removed_segment_is_read_to_its_end(a: JournalProcess, b: JournalProcess, disk: SimulatedDisk) -> None:
    """A process that has it open needs no snapshot if the next one is there."""
    a.add(1)
    a.compact()
    assert FIRST not in names(disk)
    b.read()
    b.add(2)
    assert b.numbers() == [1, 2]


def test_a_process_that_dies_inside_a_rotation_leaves_it_to_the_next(disk: SimulatedDisk) -> None:
    """It is killed before each of its changes."""
    number = 0
    ended = False
    while not ended:
        number += 1
        before = disk.image()
        runtime = simulated_runtime(before.after_kill())
        inner = runtime.fs
        assert isinstance(inner, SimulatedFiles)
        files = runtime.fs = InterceptedFiles(inner, SIMULATED)
        with opened(SIMULATED, runtime) as process, opened(SIMULATED, simulated_runtime(inner.disk)) as other:
            process.add(1)
            other.read()
            files.calls = 0

            def kill(call: Call, number: int = number) -> None:
                if call.number == number:
                    raise KeyboardInterrupt

            files.before = kill
            try:
                process.rotate()
                ended = True
            except KeyboardInterrupt:
                pass
            inner.kill()
            image = inner.disk.image()
            assert jobs_in(SIMULATED, simulated_runtime(image.after_kill())) == [1]
            for seed in range(10):
                assert jobs_in(SIMULATED, simulated_runtime(image.after_power_cut(seed))) == [1]
            other.add(2)
            assert other.numbers() == [1, 2]
            assert Flag.LAST not in flags_in(inner.disk, FIRST)[:-1]  # nothing follows it
            other.rotate()
            other.add(3)
            image = inner.disk.image()
            for seed in range(10):
                assert jobs_in(SIMULATED, simulated_runtime(image.after_power_cut(seed))) == [1, 2, 3]
    assert number > 8


def test_a_full_disk_leaves_the_old_segment_in_use(disk: SimulatedDisk) -> None:
    runtime = simulated_runtime(disk)
    files = runtime.fs = InterceptedFiles(runtime.fs, SIMULATED)
    with opened(SIMULATED, runtime) as process:
        process.add(1)

        def fail(call: Call) -> None:
            if call.verb in ("create", "write") and call.path.endswith(".tmp"):
                raise OSError(errno.ENOSPC, "No space left on device")

        files.before = fail
        with pytest.raises(StorageFull):
            process.rotate()
        process.add(2)
        assert process.journal.position.segment == 1
        files.before = lambda call: None
        process.rotate()
        process.add(3)
    assert jobs_after_kill(disk) == [1, 2, 3]
    assert not [name for name in names(disk) if name.endswith(".tmp")]


def test_temporary_files_are_removed_after_an_hour(tmp_path: Path) -> None:
    with opened(tmp_path) as process:
        fresh, old = process.folder.temporary_path(), process.folder.temporary_path()
        not_ours = process.folder.path / ".mine.tmp"
        for path in (fresh, old, not_ours):
            path.touch()
        for path in (old, not_ours):
            os.utime(path, (1_000_000, 1_000_000))
        with opened(tmp_path):
            assert (fresh.exists(), old.exists(), not_ours.exists()) == (True, False, True)


def test_processes_that_are_killed_while_they_write_a_snapshot_leave_one_file(disk: SimulatedDisk) -> None:
    images = []

    def keep_image(call: Call) -> None:
        if call.path.endswith(".snapshot"):  # it is about to get its name
            images.append(disk.image())

    for number in range(3):
        runtime = simulated_runtime(disk)
        files = runtime.fs = InterceptedFiles(runtime.fs, SIMULATED)
        files.before = keep_image
        with opened(SIMULATED, runtime) as process:
            process.add(number)
            process.compact()
        disk = images[number].after_kill()
    assert [name.endswith(".tmp") for name in names(disk)].count(True) == 1
    with opened(SIMULATED, simulated_runtime(disk)) as living:
        living.compact()
        assert living.numbers() == [0, 1, 2]
    assert not [name for name in names(disk) if name.endswith(".tmp")]


# Files that are not as they should be


def test_a_segment_that_was_moved_away_is_noticed(tmp_path: Path) -> None:
    with opened(tmp_path) as process:
        process.add(1)
        (tmp_path / "holdfast" / FIRST).rename(tmp_path / "away")
        with pytest.raises(EngineUnavailable, match=r"journal was moved or removed while it was in use"):
            process.add(2)


def test_a_gate_or_a_folder_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    with opened(tmp_path) as process:
        process.folder.remember()
        process.folder.check_identity()
        process.folder.gate_path.rename(tmp_path / "gate")
        with pytest.raises(EngineUnavailable, match="gate was moved or removed"):
            process.folder.check_identity()
        process.folder.path.rename(tmp_path / "old")
        process.folder.path.mkdir()
        with pytest.raises(EngineUnavailable, match="holdfast was replaced"):
            process.folder.check_identity()


def test_a_store_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    path = tmp_path / "holdfast" / "format"
    text = path.read_text()
    assert text.startswith("holdfast file store, format 1\nid ")
    path.write_text(text.replace("format 1", "format 2"))
    with pytest.raises(SchemaMismatch, match="newer release") as caught:
        JournalProcess(tmp_path)
    assert (caught.value.found, caught.value.wanted) == ("2", "1")
    path.write_text("holdfast file store, format 12\nanything else")
    with pytest.raises(SchemaMismatch, match="newer release"):
        JournalProcess(tmp_path)


@pytest.mark.parametrize("text", ["", "\xff", "holdfast file store, format 1\n", "holdfast file store, format 0\nid 1"])
def test_a_damaged_format_is_refused(tmp_path: Path, text: str) -> None:
    with opened(tmp_path):
        pass
    (tmp_path / "holdfast" / "format").write_text(text)
    with pytest.raises(CorruptRecord, match="is damaged"):
        JournalProcess(tmp_path)


def test_a_journal_without_a_format_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    (tmp_path / "holdfast" / "format").unlink()
    with pytest.raises(CorruptRecord, match="no file 'format'"):
        JournalProcess(tmp_path)


def test_a_segment_of_another_store_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with opened(tmp_path / name) as process:
            process.add(1)
    (tmp_path / "one" / "holdfast" / FIRST).replace(tmp_path / "two" / "holdfast" / FIRST)
    with pytest.raises(CorruptRecord, match="belongs to the store with the id"):
        JournalProcess(tmp_path / "two")


def test_a_change_of_a_later_release_is_refused(disk: SimulatedDisk) -> None:
    with opened(SIMULATED, simulated_runtime(disk)) as old, opened(SIMULATED, simulated_runtime(disk)) as new:
        new.gate.try_lock()
        new.journal.append([b"\x20later"], new.journal.last.at, 0, 0)
        new.gate.unlock()
        with pytest.raises(SchemaMismatch, match="newer release"):
            old.read()
        with pytest.raises(SchemaMismatch, match="newer release"):
            JournalProcess(SIMULATED, simulated_runtime(disk))


def test_an_older_process_works_beside_a_newer_one(a: JournalProcess, b: JournalProcess, disk: SimulatedDisk) -> None:
    """The newer one writes records with one more field."""
    values = msgspec.msgpack.decode(added(1)[1:])
    queue = msgspec.msgpack.encode({"queue": "q", "later": 1})
    a.write(added(1)[:1] + msgspec.msgpack.encode([*values, "later"]), bytes([QUEUE]) + queue)
    b.read()
    assert (b.numbers(), list(b.records.queues)) == ([1], ["q"])
    b.add(2)
    b.compact()
    a.read()
    a.add(3)
    assert a.numbers() == [1, 2, 3]
    assert jobs_after_kill(disk) == [1, 2, 3]


def test_damage_below_the_mark_is_noticed_while_the_store_is_in_use(
    a: JournalProcess, b: JournalProcess, disk: SimulatedDisk
) -> None:
    begin = len(content(disk, FIRST))
    a.add(1, 2)
    content(disk, FIRST)[begin + 130] ^= 1
    with pytest.raises(DamagedJournal):
        b.read()
    b.load()
    assert len(b.numbers()) == 1
    with pytest.raises(FellBehind):  # the copy of the first process has a job that the store has lost
        a.add(3)
    a.load()
    a.add(3)
    assert a.numbers() == sorted([*b.numbers(), 3])


# The mark


def test_a_mark_is_read_as_it_was_written() -> None:
    assert parse_mark(encode_mark(3, 2**40)) == Mark(3, 2**40)


def test_a_damaged_mark_says_nothing() -> None:
    data = encode_mark(3, 500)
    for offset in range(len(data)):
        damaged = bytearray(data)
        damaged[offset] ^= 4
        assert parse_mark(bytes(damaged)) == Mark(0, 0)
    for length in range(len(data)):
        assert parse_mark(data[:length]) == Mark(0, 0)


def test_a_mark_does_not_clear_the_flag_of_a_failed_sync(tmp_path: Path) -> None:
    runtime = SystemRuntime()
    one, two = MarkFile(tmp_path / "mark", runtime), MarkFile(tmp_path / "mark", runtime)
    assert one.read() == Mark(0, 0)
    one.set_suspect(True)
    two.write(4, 100)
    assert one.read() == Mark(4, 100, is_suspect=True)
    one.set_suspect(False)
    assert two.read() == Mark(4, 100)
    one.close()
    two.close()


def test_bytes_of_one_frame_are_counted() -> None:
    assert EMPTY_FRAME_BYTES == 176


def test_a_closed_journal_says_so(disk: SimulatedDisk) -> None:
    runtime = simulated_runtime(disk)
    assert isinstance(runtime.fs, SimulatedFiles)
    folder = StoreFolder(SIMULATED, "holdfast", runtime)
    folder.prepare(1)
    journal = Journal(folder, runtime, segment_bytes=100)
    with pytest.raises(EngineUnavailable, match="is closed"):
        journal.read_new(under_gate=False)
    journal.close()
