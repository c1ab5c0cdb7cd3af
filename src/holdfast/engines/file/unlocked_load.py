"""Loading a sound store without the gate, while other processes write.

A large store takes seconds to load, and no process should wait for that. So a store is first read without the gate: up
to the first frame that is not sound, which a writer may just be appending. If anything else is out of order, if files
are removed meanwhile, or if leases of an earlier boot must expire, the store is loaded under the gate (`recovery.py`).
"""

from pathlib import Path

from holdfast.engines.file.frames import HEADER_BYTES, Flag, header_at
from holdfast.engines.file.journal import Journal, Position
from holdfast.engines.file.loading import Loader
from holdfast.engines.file.records import Records
from holdfast.files import ReadFile


def load_without_gate(journal: Journal) -> Records | None:
    """The records, and the journal stands behind them. None: load the store under the gate."""
    mark = journal.marks.read()
    if mark.is_suspect or journal.runtime.fs.exists(journal.folder.suspect_path):
        return None
    loader = UnlockedLoader(journal, mark)
    try:
        is_loaded = loader.load_sound(*journal.folder.numbers())
    except FileNotFoundError:  # another process compacts
        return None
    if not is_loaded or loader.records.without_payload:
        return None
    journal.was_loaded()
    return loader.records


class UnlockedLoader(Loader):
    """Reads sound frames, and changes nothing."""

    def load_sound(self, segments: list[int], snapshots: list[int]) -> bool:
        """False: it is not sound, or not complete."""
        base = max((number for number in snapshots if number in segments), default=0)
        needed = [segment for segment in segments if segment >= max(base, 1)]
        if not needed or needed != list(range(max(base, 1), needed[-1] + 1)):
            return False
        if base and not self._read_snapshot_file(self._folder.snapshot_path(base)):
            return False
        if not all(self._read_complete_file(self._folder.segment_path(segment)) for segment in needed[:-1]):
            return False
        return self._read_last_file(needed[-1])

    def _read_snapshot_file(self, path: Path) -> bool:
        with self._fs.open_read(path) as file:
            first = header_at(file.read_at(0, HEADER_BYTES), 0)
            if first is None:
                return False
            self._sequence = first.sequence
        if not self._read_complete_file(path):
            return False
        self._sequence = first.sequence  # the first frame of its segment has the same number
        return True

    def _read_complete_file(self, path: Path) -> bool:
        """Read a file to its end. False: it has another end than it should have."""
        with self._fs.open_read(path) as file:
            return self._read_frames(file) == file.size() and bool(self._last.flags & Flag.LAST)

    def _read_last_file(self, segment: int) -> bool:
        file = self._fs.open_write(self._folder.segment_path(segment))
        try:
            end = self._read_frames(file)
            is_complete = end > 0 and not (self._mark.covers(segment, end + 1) or self._last.flags & Flag.LAST)
        except BaseException:
            file.close()
            raise
        if is_complete:
            self._journal.stand_at(file, Position(segment, end, self._sequence or 1), self._last)
        else:
            file.close()
        return is_complete

    def _read_frames(self, file: ReadFile) -> int:
        """Use the sound frames of a file up to the first one that is not, or has another number. Answers its offset."""
        end = 0
        for begin, frame in self._sound_frames(file, 0):
            if frame.header.sequence != self._sequence:
                break
            self._use(frame)
            self._sequence += 1
            end = begin + frame.length
        return end
