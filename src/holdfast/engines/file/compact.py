"""Compact a store on request: an operator wants the space now, or a small copy of the folder.

The processes that use the store go on. They do the same by themselves when the journal is long (`compaction.py`).
"""

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from holdfast.engines.engine_clock import EngineClock
from holdfast.engines.file.folder_checks import check_platform
from holdfast.engines.file.journal import Journal
from holdfast.engines.file.recovery import load
from holdfast.engines.file.runner import FileOptions, FileRunner
from holdfast.engines.file.settings import FileSettings
from holdfast.engines.file.store_folder import StoreFolder
from holdfast.engines.reserve import SpaceReserve
from holdfast.runtime import Runtime


class CompactedStore(NamedTuple):
    """The size of the journal and its snapshots, in bytes."""

    bytes_before: int
    bytes_after: int


def compact_store(path: Path, namespace: str, runtime: Runtime, *, drop_ended: bool = False) -> CompactedStore:
    """Write a snapshot of all records and remove the journal before it. FileNotFoundError: there is no store.

    `drop_ended`: without the jobs that have ended, and in the space of the reserve if the disk is full.
    """
    check_platform()
    folder = StoreFolder(str(path.absolute()), namespace, runtime)
    if not runtime.fs.exists(folder.format_path):
        raise FileNotFoundError(str(folder.format_path))
    settings = FileSettings()
    folder.prepare(settings.lock_timeout)
    before = _size(folder, runtime)
    if drop_ended:
        journal = Journal(folder, runtime, segment_bytes=settings.segment_bytes)
        with closing(journal), closing(folder.open_gate(settings.lock_timeout)) as gate, gate:
            SpaceReserve(str(folder.reserve_path), runtime).release()
            load(journal, drop_ended=True)
        return CompactedStore(before, _size(folder, runtime))
    options = FileOptions("durable", settings.segment_bytes, settings.sync_interval, settings.lock_timeout)
    runner = FileRunner(folder, runtime, EngineClock(runtime, str(folder.path)), options)
    try:
        runner.compact()
    finally:
        runner.close()
    return CompactedStore(before, _size(folder, runtime))


def _size(folder: StoreFolder, runtime: Runtime) -> int:
    segments, snapshots = folder.numbers()
    paths = [*map(folder.segment_path, segments), *map(folder.snapshot_path, snapshots)]
    return sum(runtime.fs.size(path) for path in paths)
