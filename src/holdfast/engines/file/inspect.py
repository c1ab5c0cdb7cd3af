"""Reads the files of a store for people: what is written there, and what of it is damaged. Changes nothing.

It needs no engine and takes no lock, so it works beside processes that use the store, and on a store that no engine can
open. What a process is writing at this moment looks like the end of a write that was cut off: neither is damage.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.engines.file.changes import decode, describe_lost
from holdfast.engines.file.frames import (
    MAGIC,
    Flag,
    Frame,
    find_header,
    header_at,
    read_sound,
    salvage,
    synced_by_later_frames,
)
from holdfast.engines.file.marks import FILE_BYTES, Mark, parse_mark
from holdfast.engines.file.store_folder import StoreFolder, parse_format
from holdfast.engines.ledger.state import Record
from holdfast.errors import HoldfastError
from holdfast.model.instants import Instant
from holdfast.runtime import Runtime, SystemRuntime


@dataclass(frozen=True, slots=True)
class InspectedStore:
    """The small files of a store."""

    folder: str
    format: str
    """The first line of its file; empty if there is none."""
    id: str
    synced_file: str
    """The segment in which the journal is synced up to `synced_offset`; empty if nothing is known."""
    synced_offset: int
    suspect: str
    """What the process wrote whose sync has failed; empty if none has."""
    other_files: dict[str, int] = field(default_factory=dict)
    """Files that are not read here, with their sizes."""


@dataclass(frozen=True, slots=True)
class InspectedFile:
    """A segment or a snapshot."""

    file: str
    size: int


@dataclass(frozen=True, slots=True)
class InspectedFrame:
    file: str
    offset: int
    length: int
    sequence: int
    at: Instant
    arrival: int
    synced: int
    flags: tuple[str, ...]
    changes: int


@dataclass(frozen=True, slots=True)
class InspectedChange:
    file: str
    offset: int
    """Of its frame."""
    record: Record
    """After the change. If it is removed: the record before it, or of a job its name alone."""
    removed: bool
    without_payload: bool
    """The payload is in an earlier change of the job."""


@dataclass(frozen=True, slots=True)
class UnfinishedWrite:
    """The end of a file after its last complete frame: a write that is under way, or that was cut off."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class InspectedDamage:
    """Bytes that are not as they were written, or a file that is missing."""

    file: str
    offset: int
    what: str
    data: bytes = b""
    """The bytes of a damaged change, as they are now."""


Item = InspectedStore | InspectedFile | InspectedFrame | InspectedChange | UnfinishedWrite | InspectedDamage


def inspect_store(root: Path, namespace: str, runtime: Runtime | None = None) -> Iterator[Item]:
    """Everything that is in the files, in order.

    `FileNotFoundError` if there is no such folder, `PermissionError` if this user may not read it.
    """
    runtime = SystemRuntime() if runtime is None else runtime
    return _Inspection(StoreFolder(root, namespace, runtime), runtime).items()


class _Inspection:
    def __init__(self, folder: StoreFolder, runtime: Runtime) -> None:
        self._folder = folder
        self._fs = runtime.fs
        self._store = 0
        self._mark = Mark(0, 0)
        self._next: int | None = None
        """The number of the next frame of the journal, if it is known."""

    def items(self) -> Iterator[Item]:
        self._mark = parse_mark(self._read(self._folder.mark_path)[:FILE_BYTES])
        segments, snapshots = self._folder.numbers()  # after the mark, whose segment is there before it
        yield from self._small_files(segments)
        if self._mark.segment > max((*segments, *snapshots), default=0):
            yield InspectedDamage(self._folder.segment_path(self._mark.segment).name, 0, "this segment is missing")
        for number in snapshots:
            yield from self._file(self._folder.snapshot_path(number), synced_to=None)
        for number in segments:
            if number - 1 not in segments and number - 1 >= max(snapshots, default=1):
                yield InspectedDamage(self._folder.segment_path(number - 1).name, 0, "this segment is missing")
            yield from self._segment(number, is_last=number == segments[-1])

    def _small_files(self, segments: list[int]) -> Iterator[Item]:
        text = self._read(self._folder.format_path)
        damage = None
        if (found := parse_format(text)) is not None:
            self._store = found.id
        else:
            damage = InspectedDamage(
                self._folder.format_path.name, 0, "the file is missing" if not text else "it is damaged"
            )
            ids = (_store_of(self._read(self._folder.segment_path(number))) for number in segments)
            self._store = next((store for store in ids if store is not None), 0)
        yield InspectedStore(
            folder=str(self._folder.path),
            format=text.partition(b"\n")[0].decode("ascii", "replace"),
            id=f"{self._store:016x}",
            synced_file=self._folder.segment_path(self._mark.segment).name if self._mark.segment else "",
            synced_offset=self._mark.offset,
            suspect=self._suspect(),
            other_files=self._other_files(),
        )
        if damage is not None:
            yield damage

    def _suspect(self) -> str:
        text = self._read(self._folder.suspect_path).decode("utf-8", "replace").strip()
        return text or ("a sync has failed" if self._mark.is_suspect else "")

    def _other_files(self) -> dict[str, int]:
        names = [name for name in self._fs.listdir(self._folder.path) if not name.endswith((".journal", ".snapshot"))]
        return {name: self._fs.size(self._folder.path / name) for name in names}

    def _segment(self, number: int, *, is_last: bool) -> Iterator[Item]:
        mark = self._mark
        synced_to = mark.offset if mark.segment == number else 0
        # The next segment is made when this one is complete and synced.
        yield from self._file(self._folder.segment_path(number), None if not is_last else synced_to)

    def _file(self, path: Path, synced_to: int | None) -> Iterator[Item]:
        """`synced_to`: bytes that are known to be synced; None: all."""
        try:
            data = self._fs.read_bytes(path)
        except FileNotFoundError:
            return  # removed since the folder was read: a newer snapshot has its content
        except PermissionError:
            raise
        except OSError as error:
            yield InspectedDamage(path.name, 0, f"it cannot be read: {error}")
            return
        yield InspectedFile(path.name, len(data))
        offset, sequence = 0, self._next if path.suffix == ".journal" else None
        while offset < len(data):
            frame = read_sound(data, offset, self._store)
            if frame is None and synced_to is not None:
                synced_to = max(synced_to, synced_by_later_frames(data, offset, self._store))
                if offset >= synced_to:
                    yield UnfinishedWrite(path.name, offset, len(data) - offset)
                    break
            if frame is None:
                following = find_header(data, offset + 1, -1 if sequence is None else sequence, self._store)
                next_header = None if following is None else header_at(data, following)
                if sequence is None and next_header is not None:
                    sequence = next_header.sequence - 1
                frame = None if sequence is None else salvage(data, offset, sequence, self._store)
            if frame is None:
                end = len(data) if following is None else following
                yield InspectedDamage(path.name, offset, f"{end - offset:,} bytes are not readable as frames")
                offset, sequence = end, None
                continue
            yield from self._frame(path.name, offset, frame)
            offset, sequence = offset + frame.length, frame.header.sequence + 1
        if path.suffix == ".journal":
            self._next = sequence

    def _frame(self, file: str, offset: int, frame: Frame) -> Iterator[Item]:
        header = frame.header
        yield InspectedFrame(
            file=file,
            offset=offset,
            length=frame.length,
            sequence=header.sequence,
            at=header.at.wall,
            arrival=header.arrival,
            synced=header.synced,
            flags=tuple(flag.name for flag in Flag if flag & header.flags and flag.name is not None),
            changes=len(frame.changes) + len(frame.lost),
        )
        for data in frame.changes:
            try:
                change = decode(data)
            except HoldfastError as error:
                yield InspectedDamage(file, offset, str(error), data)
            else:
                yield InspectedChange(file, offset, change.record, not change.there, change.needs_payload)
        for lost in frame.lost:
            yield InspectedDamage(
                file, offset, f"change {lost.number} is damaged: {describe_lost(lost.data)}", lost.data
            )
        if frame.was_damaged and not frame.lost:
            yield InspectedDamage(file, offset, "one copy of the header or table is damaged; no change is lost")

    def _read(self, path: Path) -> bytes:
        try:
            return self._fs.read_bytes(path)
        except PermissionError:
            raise
        except OSError:
            return b""


def _store_of(data: bytes) -> int | None:
    """The id of the store that the first sound header names."""
    found = data.find(MAGIC)
    while found >= 0:
        if (header := header_at(data, found)) is not None:
            return header.store
        found = data.find(MAGIC, found + 1)
    return None
