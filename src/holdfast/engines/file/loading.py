"""Reading a store from its files: the newest snapshot, the segments after it, and bytes that are not sound.

**A torn tail.** A power failure may keep any part of what was not synced. The first frame of the last segment that is
not sound, at or above the highest offset known to be synced, is the end of the journal, also if later frames are sound.
The bytes from there on are kept in a file `.torn`. Known to be synced is what the mark says, and what any sound header
says.

**Damage.** Below that offset, and in every other file, all bytes were on the disk once. A damaged change is skipped,
and all others are used. If a frame has lost its header and the copy of it, reading goes on at the next header that is
sound.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.engines.file.changes import describe_lost
from holdfast.engines.file.frames import (
    EMPTY_FRAME_BYTES,
    Flag,
    Frame,
    Header,
    find_header,
    frame_length,
    read_sound,
    salvage,
    store_of,
    synced_by_later_frames,
)
from holdfast.engines.file.journal import Journal, Position, is_unfinished, read_all
from holdfast.engines.file.marks import Mark
from holdfast.engines.file.records import Records
from holdfast.errors import CorruptRecord
from holdfast.files import ReadFile, WriteFile
from holdfast.model.text import shown

log = logging.getLogger("holdfast")

WINDOW_BYTES = 4 * 1024 * 1024
"""How much of a file is read at once."""


class Damage(NamedTuple):
    """Bytes that are not as they were written."""

    path: Path
    offset: int
    text: str
    is_loss: bool = True
    """False: all changes could be read, because the copy of the damaged bytes is sound."""

    def __str__(self) -> str:
        return f"{self.path.name}, offset {self.offset}: {shown(self.text)}"


class Loader:
    """Reads the files of a store once, under the gate. Afterwards the journal stands at their end."""

    def __init__(self, journal: Journal, mark: Mark) -> None:
        self._journal = journal
        self._folder = journal.folder
        self._fs = journal.runtime.fs
        self._mark = mark if mark.covers(journal.synced.segment, journal.synced.offset) else journal.synced
        self._sequence: int | None = 1
        """The number of the next frame. None: unknown."""
        self._last: Header = journal.last
        self._torn_at: int | None = None
        self.records = Records()
        self.damages: list[Damage] = []
        self.has_torn_frames = False
        """More than the beginning of a frame was removed from the end of the journal."""

    def load(self, segments: list[int], snapshots: list[int]) -> None:
        """Read the store with these files."""
        base = self._choose(segments, snapshots)
        last = max(segments, default=0)
        if self._mark.segment > max(base, last):
            raise missing_segment(self._journal, self._mark.segment)
        if base:
            self._read_snapshot(base)
        for segment in range(max(base, 1), last + 1):
            if segment < last:
                self._read_complete_segment(segment)
            else:
                self._read_last_segment(segment)
        if base > last:  # a process has died after it wrote the snapshot, and before it made the segment
            self._journal.last = self._last
            self._journal.begin(base, self._sequence or 1, Flag.RELOAD)

    def _choose(self, segments: list[int], snapshots: list[int]) -> int:
        """The number of the snapshot to begin with; 0: begin with segment 1, and without records."""
        last = max(segments, default=0)
        first = last  # of the segments that follow each other to the last one
        while first - 1 in segments:
            first -= 1
        usable = [number for number in snapshots if number > last or first <= number]
        if first == 1:
            usable.insert(0, 0)
        if not usable:
            raise missing_segment(self._journal, first - 1)
        for base in reversed(usable[1:]):
            if self._is_sound(base):
                return base
            log.error("%s is damaged. An older one is used.", self._folder.snapshot_path(base))
        return usable[0]

    def _is_sound(self, snapshot: int) -> bool:
        flags = 0
        with self._fs.open_read(self._folder.snapshot_path(snapshot)) as file:
            for _, frame in self._sound_frames(file, 0):
                flags = frame.header.flags
        return bool(flags & Flag.LAST)

    # Files

    def _read_snapshot(self, snapshot: int) -> None:
        path = self._folder.snapshot_path(snapshot)
        self._sequence = None
        with self._fs.open_read(path) as file:
            first = self._use_frames(file, path)
            if not self._last.flags & Flag.LAST:
                self._damaged(path, file.size(), "the end of the snapshot is missing")
        self._sequence = first

    def _read_complete_segment(self, segment: int) -> None:
        path = self._folder.segment_path(segment)
        with self._fs.open_read(path) as file:
            self._use_frames(file, path)

    def _read_last_segment(self, segment: int) -> None:
        path = self._folder.segment_path(segment)
        file = self._fs.open_write(path)
        try:
            synced = self._mark.offset if self._mark.segment == segment else EMPTY_FRAME_BYTES
            self._use_frames(file, path, synced)
            if self._torn_at is not None:
                self._cut(file, segment, self._torn_at)
            size = file.size()
            if size < synced:
                self._damaged(path, size, f"the bytes up to offset {synced} are missing")
        except BaseException:
            file.close()
            raise
        self._journal.stand_at(file, Position(segment, size, self._sequence or 1), self._last)

    def _use_frames(self, file: ReadFile, path: Path, synced: int | None = None) -> int | None:
        """Use all frames of a file; the answer is the number of the first one. A file without frames is refused."""
        first: int | None = None
        is_readable = False
        for offset, frame in self._frames(file, path, synced):
            self._use(frame)
            is_readable = True
            if offset == 0:
                first = frame.header.sequence
        if not is_readable:
            raise CorruptRecord(
                f"Nothing in {path} can be read. Restore the folder {self._folder.path} from a backup.",
                where=str(path),
                engine="file",
            )
        return first

    def _cut(self, file: WriteFile, segment: int, offset: int) -> None:
        """Remove a torn tail."""
        tail = read_all(file, offset, file.size() - offset)
        if not is_unfinished(tail):
            self.has_torn_frames = True
            path = self._folder.torn_path(segment)
            log.warning(
                "Segment %s of %s ended with %s bytes that were not synced when the host stopped. No answer had "
                "promised them. They are kept in %s.",
                segment,
                self._folder.path,
                len(tail),
                path.name,
            )
            try:
                self._fs.write_atomic(path, tail)
            except OSError as error:
                log.warning("%s could not be written: %s", path, error)
        try:
            file.truncate(offset)
            # Before anything is appended: else a second power failure could bring the old frames back behind new ones.
            file.sync()
        except OSError as error:
            self._journal.set_suspect(error)
            raise self._journal.suspect_error() from error

    # Frames

    def _use(self, frame: Frame) -> None:
        header = frame.header
        records = self.records
        records.at = header.at
        records.arrival = max(records.arrival, header.arrival)
        records.boot_hash = header.boot_hash
        records.apply(frame.changes)
        self._last = header

    def _frames(self, file: ReadFile, path: Path, synced: int | None = None) -> Iterator[tuple[int, Frame]]:
        """The frames of a file, with their offsets.

        `synced` is given for the last segment: so many bytes of it are known to have been on the disk. If a frame above
        them is not sound, it is the end.
        """
        offset = 0
        while True:
            for begin, frame in self._sound_frames(file, offset):
                if frame.header.sequence != self._sequence and self._sequence is not None:
                    if synced is not None and begin >= synced:
                        self._torn_at = begin
                        return
                    self._damaged(
                        path, begin, f"the frames {self._sequence} to {frame.header.sequence - 1} are missing"
                    )
                self._sequence = frame.header.sequence + 1
                yield begin, frame
                offset = begin + frame.length
                if synced is not None:
                    synced = max(synced, frame.header.synced)
            size = file.size()
            if offset >= size:
                return
            rest = read_all(file, offset, size - offset)
            if (other := store_of(rest)) not in (None, self._folder.id):
                raise CorruptRecord(
                    f"{path} belongs to the store with the id {other:016x}, and {self._folder.format_path} has the id "
                    f"{self._folder.id:016x}. Put the right file there.",
                    where=str(path),
                    engine="file",
                )
            if synced is not None:
                synced = max(synced, synced_by_later_frames(rest, 1, self._folder.id))
                if offset >= synced:
                    self._torn_at = offset
                    return
            # The frames of a segment are whole or not there: each has the changes of one batch. The first one has none.
            is_cut_off = offset > 0 and path.suffix == ".journal" and is_unfinished(rest)
            salvaged = None if is_cut_off else salvage(rest, 0, self._sequence, self._folder.id)
            if salvaged is not None:
                self._report(path, offset, salvaged)
                self._sequence = salvaged.header.sequence + 1
                yield offset, salvaged
                offset += salvaged.length
            else:
                found = find_header(rest, 1, self._sequence or 0, self._folder.id)
                until = len(rest) if found is None else found
                number = "an unknown number" if self._sequence is None else f"the number {self._sequence}"
                self._damaged(path, offset, f"the frame with {number} cannot be read")
                offset += until
                self._sequence = None

    def _sound_frames(self, file: ReadFile, offset: int) -> Iterator[tuple[int, Frame]]:
        """Sound frames from this offset on, until the first one that is not sound."""
        window = WINDOW_BYTES
        while data := read_all(file, offset, window):
            begin = 0
            while (frame := read_sound(data, begin, self._folder.id)) is not None:
                yield offset + begin, frame
                begin += frame.length
            if begin == 0:
                length = frame_length(data)
                if length is None or length <= len(data) or len(data) < window:
                    return
                window = length
            else:
                window = WINDOW_BYTES
            offset += begin

    def _report(self, path: Path, offset: int, frame: Frame) -> None:
        number = frame.header.sequence
        for lost in frame.lost:
            text = f"frame {number}, change {lost.number}: {describe_lost(lost.data)}"
            self._damaged(path, offset, text)
        if not frame.lost:
            text = f"frame {number}: its header, table or end is damaged; the copy was used"
            self.damages.append(Damage(path, offset, text, is_loss=False))

    def _damaged(self, path: Path, offset: int, text: str) -> None:
        self.damages.append(Damage(path, offset, text))


def missing_segment(journal: Journal, segment: int) -> CorruptRecord:
    path = journal.folder.segment_path(segment)
    return CorruptRecord(
        f"{path} is missing, and with it the changes in it. Restore the folder {journal.folder.path} from a backup.",
        where=str(path),
        engine="file",
    )
