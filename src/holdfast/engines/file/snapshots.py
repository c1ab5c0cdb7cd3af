"""Files that appear complete or not at all: snapshots, and new segments.

Each is written under a temporary name, synced, renamed, and the folder is synced. A snapshot is a list of frames like a
segment. The number of its first frame is that of the first frame of its segment.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.engines.file.frames import Flag, Header, encode_frame
from holdfast.engines.file.store_folder import StoreFolder
from holdfast.runtime import Runtime

SNAPSHOT_FRAME_BYTES = 256 * 1024
"""A frame of a snapshot ends after the change that passes this size."""


def write_new_snapshot(folder: StoreFolder, runtime: Runtime, path: Path, parts: Iterable[bytes]) -> int:
    """Write a snapshot and put it at its path, durably; the answer is its size. With the lock `compaction`."""
    runtime.fs.remove(folder.unfinished_snapshot_path)
    temporary = write_temporary_file(runtime, folder.unfinished_snapshot_path, parts)
    size = runtime.fs.size(temporary)
    rename_new_file(runtime, temporary, path)
    runtime.fs.sync_folder(folder.path)
    return size


def write_temporary_file(runtime: Runtime, temporary: Path, parts: Iterable[bytes]) -> Path:
    """Write a file under a temporary name, and sync it."""
    try:
        with runtime.fs.create(temporary) as file:
            offset = 0
            for part in parts:
                file.write_at(offset, part)
                offset += len(part)
            file.sync()
    except BaseException:
        remove_quietly(runtime, temporary)
        raise
    return temporary


def rename_new_file(runtime: Runtime, temporary: Path, path: Path) -> None:
    try:
        runtime.fs.rename(temporary, path)
    except BaseException:
        remove_quietly(runtime, temporary)
        raise


def remove_quietly(runtime: Runtime, path: Path) -> None:
    with suppress(OSError):
        runtime.fs.remove(path)


def snapshot_frames(first: Header, changes: Iterable[bytes]) -> Iterator[bytes]:
    """The frames of a snapshot; `first` is the header of the first one."""
    sequence, flags = first.sequence, Flag.FIRST | Flag.SNAPSHOT
    gathered: list[bytes] = []
    size = 0
    for change in changes:
        gathered.append(change)
        size += len(change)
        if size >= SNAPSHOT_FRAME_BYTES:
            yield encode_frame(first._replace(sequence=sequence, flags=flags), gathered)
            sequence, flags = sequence + 1, Flag.SNAPSHOT
            gathered, size = [], 0
    yield encode_frame(first._replace(sequence=sequence, flags=flags | Flag.LAST), gathered)
