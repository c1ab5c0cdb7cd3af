"""The journal of a store, as one process uses it.

**Appending.** Writers take the gate in turn. Each one reads what is new, then appends one frame with one write. A
writer that dies in between leaves the beginning of a frame; the next one removes it. A living process never removes a
complete frame.

**Segments.** A segment begins with an empty frame FIRST and ends with an empty frame LAST; nothing is appended after
LAST. The order of a rotation: write the next segment under a temporary name and sync it; append LAST; sync the segment;
rename the next one; sync the folder. So segment N + 1 exists only if segment N is complete and synced. If a process
dies after LAST, the next writer finishes the rotation.

**Syncing.** The gate is not needed. The mark says how far the journal is synced, by any process.

**Reading** without the gate accepts only frames of which every byte is sound: a writer may be in the middle of one.
What is below the mark is never changed again; if it is not sound, it is damaged.
"""

import errno
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.engines.file.frames import (
    EMPTY_FRAME_BYTES,
    HEADER_BYTES,
    Flag,
    Frame,
    Header,
    encode_frame,
    frame_length,
    read_sound,
)
from holdfast.engines.file.marks import Mark, MarkFile
from holdfast.engines.file.snapshots import (
    remove_quietly,
    rename_new_file,
    snapshot_frames,
    write_new_snapshot,
    write_temporary_file,
)
from holdfast.engines.file.store_folder import StoreFolder, disk_error
from holdfast.errors import EngineError, EngineUnavailable
from holdfast.files import Identity, ReadFile, WriteFile
from holdfast.model.instants import At
from holdfast.runtime import Runtime

NO_FREE_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})


class Position(NamedTuple):
    """The place of the next frame."""

    segment: int
    offset: int
    sequence: int


class FellBehind(Exception):
    """The copy of this process cannot be brought up to date from the journal: take the gate and load the store."""


class DamagedJournal(FellBehind):
    """Bytes that were complete are not sound: take the gate and load the store, which repairs it."""


class Journal:
    """One per engine, used by one thread at a time, except `sync`."""

    def __init__(self, folder: StoreFolder, runtime: Runtime, *, segment_bytes: int) -> None:
        self.folder = folder
        self.runtime = runtime
        self.segment_bytes = segment_bytes
        self.marks = MarkFile(folder.mark_path, runtime)
        self.position = Position(0, 0, 0)
        """Before the store is loaded: segment 0."""
        self.last = Header(0, At(0, 0), 0, 0, 0, folder.id)
        """The header of the last frame that was read or written."""
        self._file: WriteFile | None = None
        self._identity: Identity = (0, 0)
        self.synced = Mark(0, 0)
        """What this process knows to be synced."""
        self._must_load = False
        """`read_new` has failed: frames that were read may not have been applied."""
        self._files = runtime.lock()
        """Held while a sync uses the file of the segment, and while another segment is opened."""

    # Where it stands

    def stand_at(self, file: WriteFile, position: Position, last: Header) -> None:
        """Go on from here, with this segment."""
        identity = file.identity()
        with self._files:
            old, self._file = self._file, file
            self._identity = identity
            self.position = position
            self.last = last
            if old is not None and old is not file:
                old.close()

    @property
    def file(self) -> WriteFile:
        if self._file is None:
            raise EngineUnavailable("The journal is closed. Open the engine first.", engine="file")
        return self._file

    def close(self) -> None:
        with self._files:
            file, self._file = self._file, None
            if file is not None:
                file.close()
            self.marks.close()

    # Reading

    def read_new(self, *, under_gate: bool) -> list[Frame]:
        """The frames that other processes have appended since. The position is behind them afterwards.

        After an error the store must be loaded: some of the frames may have been passed over.
        """
        try:
            mark = self.marks.read()  # before the bytes: what is below it does not change any more
            if mark.is_suspect:
                raise self.suspect_error()
            if self._must_load:
                raise FellBehind("An earlier call was interrupted.")
            if mark.covers(self.synced.segment, self.synced.offset):
                self.synced = mark
            self._must_load = True
            frames: list[Frame] = []
            while self._read_segment(mark, frames, under_gate=under_gate) and self._open_next(frames):
                pass
        except EngineError:
            raise
        except OSError as error:
            raise EngineUnavailable(f"{self.folder.path} could not be read: {error}", engine="file") from error
        self._must_load = False
        return frames

    def was_loaded(self) -> None:
        """The store has been loaded, and the copy of this process is that of the position."""
        self._must_load = False

    def _read_segment(self, mark: Mark, frames: list[Frame], *, under_gate: bool) -> bool:
        """Read the current segment to its end. True: it is complete, and the next one follows."""
        file, (segment, offset, sequence) = self.file, self.position
        if self.last.flags & Flag.LAST:
            return True
        size = file.size()
        if size != offset:
            if size < offset:
                raise FellBehind(f"Segment {segment} is shorter than what this process has read of it.")
            data = read_all(file, offset, size - offset)
            begin = 0
            while begin < len(data):
                frame = read_sound(data, begin, self.folder.id)
                if frame is None:
                    break
                if frame.header.sequence != sequence:
                    raise FellBehind(f"Segment {segment} has another frame at offset {offset + begin} than before.")
                frames.append(frame)
                begin += frame.length
                sequence += 1
                self.position = Position(segment, offset + begin, sequence)
                self.last = frame.header
            if self.last.flags & Flag.LAST:
                return True
            if begin < len(data):
                self._judge_rest(mark, data[begin:], under_gate=under_gate)
        if mark.segment > segment:
            raise FellBehind(f"Segment {mark.segment} is in use, and segment {segment} has no end.")
        if under_gate and not self._is_at_its_path():
            raise self.folder.moved(self.folder.segment_path(segment))
        return False

    def _judge_rest(self, mark: Mark, rest: bytes, *, under_gate: bool) -> None:
        """There are bytes at the position that are no sound frame."""
        segment, offset, _ = self.position
        if mark.covers(segment, offset + 1):
            raise DamagedJournal(f"Segment {segment} is damaged at offset {offset}, which was synced.")
        if under_gate:
            if self.runtime.fs.exists(self.folder.segment_path(segment + 1)):
                raise FellBehind(f"Segment {segment} was closed at another place than offset {offset}.")
            if not is_unfinished(rest):
                raise DamagedJournal(f"Segment {segment} has a damaged frame at offset {offset}.")
            self.file.truncate(offset)  # its writer has died

    def _open_next(self, frames: list[Frame]) -> bool:
        """Go on with the next segment. False: there is none yet."""
        segment, _, sequence = self.position
        if self.last.flags & Flag.RELOAD:
            raise FellBehind(f"The segments after {segment} begin with another state.")
        path = self.folder.segment_path(segment + 1)
        try:
            file = self.runtime.fs.open_write(path)
        except FileNotFoundError:
            if not self._is_at_its_path():
                raise FellBehind(f"Segment {segment + 1} was removed before this process has read it.") from None
            return False
        frame = read_sound(file.read_at(0, EMPTY_FRAME_BYTES), 0, self.folder.id)
        if frame is None or frame.header.sequence != sequence or frame.header.flags & Flag.RELOAD:
            file.close()
            raise FellBehind(f"Segment {segment + 1} does not begin with the state after segment {segment}.")
        frames.append(frame)
        self.stand_at(file, Position(segment + 1, frame.length, sequence + 1), frame.header)
        return True

    def _is_at_its_path(self) -> bool:
        status = self.runtime.fs.status(self.folder.segment_path(self.position.segment))
        return status is not None and status.identity == self._identity

    # Appending, under the gate, after `read_new(under_gate=True)`

    def append(self, changes: Sequence[bytes], at: At, arrival: int, boot_hash: int, flags: int = 0) -> None:
        """Append one frame. After an error nothing was written."""
        self.finish_rotation()
        segment, offset, sequence = self.position
        synced = self.synced.offset if self.synced.segment == segment else 0
        header = Header(sequence, at, arrival, boot_hash, synced, self.folder.id, flags)
        data = encode_frame(header, changes)
        file = self.file
        try:
            file.write_at(offset, data)
        except OSError as error:
            try:
                file.truncate(offset)
            except OSError as second:  # the next writer removes what is there
                error.add_note(f"The rest of the write could not be removed: {second}")
            raise self.write_error(error) from error
        self.position = Position(segment, offset + len(data), sequence + 1)
        self.last = header

    def write_error(self, error: OSError) -> EngineError:
        """The error of a write that has failed: nothing of it can be read."""
        return disk_error(f"{self.folder.path} could not be written: {error}. Nothing was written.", error)

    # Syncing

    def sync(self) -> None:
        """When this returns, everything that was read or appended before the call is on the disk. Any thread."""
        target = self.position
        with self._files:
            mark = self.marks.read()
            if mark.is_suspect:
                raise self.suspect_error()
            if self.synced.covers(target.segment, target.offset):
                return
            if mark.covers(target.segment, target.offset):
                self.synced = mark
                return
            file, (segment, offset, _) = self.file, self.position  # no other segment can be opened now
            try:
                file.sync()
                if mark.segment < segment:  # the process that made it may have died before it synced the folder
                    self.runtime.fs.sync_folder(self.folder.path)
            except OSError as error:
                raise self._sync_error(error) from error
            self._note_synced(segment, offset)

    def _note_synced(self, segment: int, offset: int) -> None:
        self.synced = Mark(segment, offset)
        self.marks.write(segment, offset)

    def _sync_error(self, error: OSError) -> EngineUnavailable:
        if error.errno in NO_FREE_DESCRIPTOR:  # the folder was not opened; the next sync tries it again
            return EngineUnavailable(f"{self.folder.path} could not be synced: {error}.", engine="file")
        self.set_suspect(error)
        return self.suspect_error()

    def set_suspect(self, error: OSError) -> None:
        """A sync has failed: the kernel may have dropped the data, and a second sync would not report it."""
        text = f"{self.runtime.wall()} µs since 1970: a sync failed: {error}\n"
        try:
            self.marks.set_suspect(True)
        finally:
            try:
                self.runtime.fs.write_atomic(self.folder.suspect_path, text.encode())
            except OSError as second:
                error.add_note(f"{self.folder.suspect_path} could not be written: {second}")

    def suspect_error(self) -> EngineUnavailable:
        return EngineUnavailable(
            f"A sync has failed in {self.folder.path}, so it is unknown what is on the disk: see the file "
            f"{self.folder.suspect_path.name!r}. Check the disk, then start the processes that use the folder again: "
            "the first one writes the store anew.",
            engine="file",
        )

    # Rotating, under the gate

    @property
    def needs_rotation(self) -> bool:
        return self.position.offset > self.segment_bytes

    def rotate(self, flags: int = 0) -> int:
        """Go on in a new segment; the answer is its number."""
        self.finish_rotation()
        segment, _, sequence = self.position
        temporary = self._write_first_frame(sequence + 1, flags)
        try:
            self.append((), self.last.at, self.last.arrival, self.last.boot_hash, Flag.LAST)
            self.sync()
        except BaseException:
            remove_quietly(self.runtime, temporary)
            raise
        self.begin_segment(segment + 1, temporary)
        return segment + 1

    def finish_rotation(self) -> None:
        """If the process that rotated has died after it closed the segment, make the next one."""
        if self.last.flags & Flag.LAST:
            self.sync()
            self.begin(self.position.segment + 1, self.position.sequence)

    def _write_first_frame(self, sequence: int, flags: int = 0) -> Path:
        """A new segment, under a temporary name."""
        header = self.last._replace(sequence=sequence, synced=0, flags=Flag.FIRST | flags)
        try:
            return write_temporary_file(self.runtime, self.folder.temporary_path(), [encode_frame(header, ())])
        except OSError as error:
            raise self.write_error(error) from error

    def begin_segment(self, segment: int, temporary: Path) -> None:
        """Give a new segment its name, and go on in it. The segment before it is complete and synced."""
        path = self.folder.segment_path(segment)
        try:
            rename_new_file(self.runtime, temporary, path)
        except OSError as error:
            raise self.write_error(error) from error
        try:
            self.runtime.fs.sync_folder(self.folder.path)
        except OSError as error:
            raise self._sync_error(error) from error
        file = self.runtime.fs.open_write(path)
        frame = read_sound(file.read_at(0, EMPTY_FRAME_BYTES), 0, self.folder.id)
        assert frame is not None
        self.stand_at(file, Position(segment, frame.length, frame.header.sequence + 1), frame.header)
        self._note_synced(segment, frame.length)

    def begin(self, segment: int, sequence: int, flags: int = 0) -> None:
        """Make a segment that follows no other: the first one, or that of a snapshot."""
        self.begin_segment(segment, self._write_first_frame(sequence, flags))

    # Snapshots, without the gate

    def write_snapshot(
        self, segment: int, changes: Iterable[bytes], at: At, arrival: int, boot_hash: int, sequence: int
    ) -> int:
        """Write the state before the first frame of a segment, which has this number (`sequence`). Any thread.

        The answer is its size in bytes.
        """
        first = Header(sequence, at, arrival, boot_hash, 0, self.folder.id)
        try:
            return write_new_snapshot(
                self.folder, self.runtime, self.folder.snapshot_path(segment), snapshot_frames(first, changes)
            )
        except OSError as error:
            raise self.write_error(error) from error

    def remove_before(self, segment: int) -> None:
        """Remove the segments and snapshots before this one, whose snapshot is durable."""
        segments, snapshots = self.folder.numbers()
        for number in snapshots:
            if number < segment:
                self.runtime.fs.remove(self.folder.snapshot_path(number))
        for number in segments:
            if number < segment:
                self.runtime.fs.remove(self.folder.segment_path(number))


def is_unfinished(rest: bytes) -> bool:
    """True if these bytes can be the beginning of a frame whose writer has died. Else a complete frame is damaged."""
    length = frame_length(rest)
    return len(rest) < HEADER_BYTES if length is None else length > len(rest)


def read_all(file: ReadFile, offset: int, count: int) -> bytes:
    """These bytes, or fewer where the file ends; also more than one system call reads."""
    data = file.read_at(offset, count)
    if len(data) == count or not data:
        return data
    parts = [data]
    while data and (count := count - len(data)):
        offset += len(data)
        data = file.read_at(offset, count)
        parts.append(data)
    return b"".join(parts)
