"""The folder of a store: which files it has, and whether they are still the ones that this process has opened.

    format              the number of the storage format, and the id of the store
    gate                the file lock of all writers
    compaction          the file lock of the process that writes a snapshot
    <16 hex>.journal    segment N of the journal: 1, 2, …
    <16 hex>.snapshot   the state before the first frame of segment N
    mark                how far the journal is known to be synced
    suspect             a sync has failed here: when, and why
    reserve             space for settling jobs when the disk is full
    <16 hex>.torn       the end of segment N, which a power failure has left incomplete
    <name>.damaged      a segment or snapshot of which changes could not be read
    .<16 hex>.tmp       a file that is being written

Other names are not ours, and are left alone.
"""

import errno
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from holdfast.engines.file.folder_checks import check_folders
from holdfast.errors import ConfigError, CorruptRecord, EngineError, EngineUnavailable, SchemaMismatch, StorageFull
from holdfast.file_locks import Gate
from holdfast.files import Identity
from holdfast.runtime import Runtime

FORMAT = 1
_FORMAT_LINE = "holdfast file store, format"
_FORMAT_TEXT = re.compile(rf"{_FORMAT_LINE} (\d+)\nid ([0-9a-f]{{16}})\n")
_NUMBERED = re.compile(r"([0-9a-f]{16})\.(journal|snapshot)")
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_OTHERS = re.compile(r"gate|compaction|mark|suspect|reserve|[0-9a-f]{16}\.(torn|damaged)")
UNUSED_TEMPORARY_US = 3600 * 1_000_000
"""A temporary file that was last changed before this time belongs to no living process."""

ADVICE = (
    "This process still has the old files open and cannot use the new ones. Stop all processes that use the folder, "
    "put the right one there, and start them again."
)


class StoreFormat(NamedTuple):
    number: int
    id: int


def parse_format(data: bytes) -> StoreFormat | None:
    """The content of the file `format`; None if it is damaged."""
    match = _FORMAT_TEXT.fullmatch(data.decode("ascii", "replace"))
    return None if match is None else StoreFormat(int(match[1]), int(match[2], 16))


DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No space, no free inode, a quota, or a limit of the size of files."""


def disk_error(text: str, error: OSError) -> EngineError:
    """The error of a store whose disk has refused a call; nothing was written."""
    if error.errno in DISK_IS_FULL:
        return StorageFull(f"{text} Free some space.", engine="file")
    return EngineUnavailable(text, engine="file")


class StoreFolder:
    """The folder of one namespace."""

    def __init__(self, root: str | Path, namespace: str, runtime: Runtime) -> None:
        self.root = Path(root)
        self.path = self.root / namespace
        self._runtime = runtime
        self.id = 0
        """The random id of the store, in every frame. Known after `prepare`."""
        self._identities: list[tuple[Path, Identity | None]] = []

    # Names

    @property
    def gate_path(self) -> Path:
        return self.path / "gate"

    @property
    def compaction_path(self) -> Path:
        return self.path / "compaction"

    @property
    def mark_path(self) -> Path:
        return self.path / "mark"

    @property
    def suspect_path(self) -> Path:
        return self.path / "suspect"

    @property
    def reserve_path(self) -> Path:
        return self.path / "reserve"

    @property
    def format_path(self) -> Path:
        return self.path / "format"

    def segment_path(self, segment: int) -> Path:
        return self.path / f"{segment:016x}.journal"

    def snapshot_path(self, segment: int) -> Path:
        return self.path / f"{segment:016x}.snapshot"

    def torn_path(self, segment: int) -> Path:
        return self.path / f"{segment:016x}.torn"

    @property
    def unfinished_snapshot_path(self) -> Path:
        """What the process with the lock `compaction` writes. If it dies, the next one writes it anew."""
        return self.path / f".{0:016x}.tmp"

    def temporary_path(self) -> Path:
        return self.path / f".{self._runtime.token_bytes(8).hex()}.tmp"

    def numbers(self) -> tuple[list[int], list[int]]:
        """The numbers of all segments and of all snapshots, in order."""
        found: dict[str, list[int]] = {"journal": [], "snapshot": []}
        for name in self._runtime.fs.listdir(self.path):
            if match := _NUMBERED.fullmatch(name):
                found[match[2]].append(int(match[1], 16))
        return sorted(found["journal"]), sorted(found["snapshot"])

    # Opening

    def prepare(self, lock_timeout_s: float) -> None:
        """Make the folder and its `format`, if they are missing. Refuse one that is not safe or has another format."""
        check_folders(self.root, self.path, self._runtime)
        if not self._runtime.fs.exists(self.format_path):
            self._make_folders()
        check_folders(self.root, self.path, self._runtime)  # again: another process may have made or replaced them
        if not self._runtime.fs.exists(self.format_path):
            self._refuse_files_of_others()
            with self.open_gate(lock_timeout_s) as gate:
                try:
                    self._make_format()
                finally:
                    gate.close()
        self._read_format()
        self._remove_unused_temporary_files()

    def _make_folders(self) -> None:
        """Make the folders, each one durable before anything is made in it.

        The lowest one that exists may have been made by a process that died before that.
        """
        fs = self._runtime.fs
        missing = [folder for folder in (self.path, *self.path.parents) if not fs.exists(folder)]
        lowest = missing[-1].parent if missing else self.path
        if lowest != lowest.parent:
            with suppress(PermissionError):  # this user cannot have made it
                fs.sync_folder(lowest.parent)
        for folder in reversed(missing):
            fs.mkdir(folder)
            fs.sync_folder(folder.parent)

    def _refuse_files_of_others(self) -> None:
        for name in self._runtime.fs.listdir(self.path):
            if not any(pattern.fullmatch(name) for pattern in (_NUMBERED, _TEMPORARY, _OTHERS)) and name != "format":
                raise ConfigError(
                    f"{self.path} is not empty and is no store: it has {name!r}. Use another folder or namespace.",
                    key="url",
                )

    def _make_format(self) -> None:
        """Under the gate."""
        fs = self._runtime.fs
        if fs.exists(self.format_path):
            return
        if any(self.numbers()):
            raise CorruptRecord(
                f"{self.path} has a journal and no file {self.format_path.name!r}. Restore it from a backup.",
                where=str(self.format_path),
                engine="file",
            )
        text = f"{_FORMAT_LINE} {FORMAT}\nid {self._runtime.token_bytes(8).hex()}\n"
        try:
            fs.write_atomic(self.format_path, text.encode())
        except OSError:
            with suppress(OSError):
                fs.remove(self.format_path)  # its name may not be on the disk, and a later sync would not write it
            raise

    def _read_format(self) -> None:
        data = self._runtime.fs.read_bytes(self.format_path)
        first_line = data.split(b"\n")[0].decode("ascii", "replace")
        found = parse_format(data)
        if found is None or found.number != FORMAT:
            newer = re.fullmatch(rf"{_FORMAT_LINE} (\d+)", first_line)
            if newer is None or int(newer[1]) <= FORMAT:
                raise CorruptRecord(
                    f"{self.format_path} is damaged: it must have the line {_FORMAT_LINE + f' {FORMAT}'!r}, and a line "
                    f"with the id of the store. `holdfast file inspect` shows the id of a segment.",
                    where=str(self.format_path),
                    engine="file",
                )
            raise SchemaMismatch(
                f"{self.path} has the storage format {newer[1]}, and this release of Holdfast reads format {FORMAT}. "
                "Use the newer release.",
                found=newer[1],
                wanted=str(FORMAT),
                engine="file",
            )
        self.id = found.id

    def open_gate(self, timeout_s: float) -> Gate:
        return self._runtime.fs.gate(self.gate_path, timeout_s, guarded=self.format_path)

    def _remove_unused_temporary_files(self) -> None:
        fs = self._runtime.fs
        oldest_us = self._runtime.wall() - UNUSED_TEMPORARY_US
        for name in fs.listdir(self.path):
            if _TEMPORARY.fullmatch(name):
                status = fs.status(self.path / name)
                if status is not None and status.modified_us < oldest_us:
                    fs.remove(self.path / name)

    # Are the files still in their place?

    def remember(self) -> None:
        """This process uses the store: `check_identity` compares the folder and the gate from now on."""
        self._identities = [(path, self._identity_of(path)) for path in (self.path, self.gate_path)]

    def _identity_of(self, path: Path) -> Identity | None:
        status = self._runtime.fs.status(path)
        return None if status is None else status.identity

    def check_identity(self) -> None:
        """Raise an error if the folder or the gate is not the one at its path."""
        for path, identity in self._identities:
            if self._identity_of(path) != identity:
                raise self.moved(path)

    def moved(self, path: Path) -> EngineUnavailable:
        what = "replaced" if self._runtime.fs.exists(path) else "moved or removed"
        return EngineUnavailable(f"{path} was {what} while it was in use. Nothing was written. {ADVICE}", engine="file")
