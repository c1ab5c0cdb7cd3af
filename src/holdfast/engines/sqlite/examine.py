"""What `holdfast doctor` checks on a SQLite file. Reads only; also, as far as it can, a file that cannot be opened."""

import sqlite3
import sys
from pathlib import Path

from holdfast.engines.disk_checks import (
    MEBIBYTE,
    check_disk_space,
    check_file_system,
    check_permissions,
    existing_folder,
    readable,
)
from holdfast.engines.engine_clock import MAX_LEAD_US
from holdfast.engines.sqlite.connection import MIN_VERSION, connect, translate
from holdfast.engines.sqlite.connections_at_fork import CONNECTIONS
from holdfast.engines.sqlite.migrations import VERSION as SCHEMA_VERSION
from holdfast.engines.sqlite.migrations import version_of
from holdfast.engines.sqlite.store import StoreOptions
from holdfast.errors import EngineUnavailable
from holdfast.model.findings import ADDRESS, CLOCK, DURABILITY, LOG_SIZE, SCHEMA, VERSION, Finding, Report
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

SOUND_SINCE = (3, 51, 3)
"""Versions from 3.7.0 on can lose data when two connections checkpoint at once (the WAL-reset race)."""
SOUND_RELEASES = ((3, 44, 6), (3, 50, 7))
"""Releases of older lines that have the correction, and so have later ones of their lines."""
LONG_LOG_BYTES = 256 * MEBIBYTE
"""The writer checkpoints after 16 MiB. A much longer log means that a reader keeps it from doing so."""
SYNCHRONOUS_NAMES = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
SURVIVES = {
    "durable": "every commit is synced, and survives a loss of power",
    "fast": "a commit survives a crash of the process; a loss of power may take back the last ones",
    "none": "nothing is synced: a loss of power may take back commits and damage the file",
}


def examine_sqlite(store: StoreOptions, runtime: Runtime, report: Report, *, is_relative: bool) -> None:
    """Blocks the calling thread. Raises an error of the package if the file cannot be read."""
    path = Path(store.path)
    with readable(path):
        _examine_files(path, runtime, report, is_relative=is_relative)
    db = connect(store, read_only=True)
    with CONNECTIONS.in_use(db):
        try:
            _examine_database(db, store, runtime, report)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translate(error, store.path) from error
        finally:
            db.close()


def _examine_files(path: Path, runtime: Runtime, report: Report, *, is_relative: bool) -> None:
    folder = existing_folder(path.parent)
    if is_relative:
        report(
            ADDRESS.note(
                f"The address is relative to the current folder, and means {path} here. A process that is started in "
                "another folder uses another file.",
                f"Write the whole path: sqlite:///{path}",
            )
        )
    report(check_file_system(folder, runtime))
    for finding in check_permissions(folder, [path, Path(f"{path}-wal"), Path(f"{path}-shm")], runtime):
        report(finding)
    report(check_disk_space(folder, Path(f"{path}-reserve"), runtime))
    log_bytes = runtime.fs.size(f"{path}-wal")
    if log_bytes > LONG_LOG_BYTES:
        report(
            LOG_SIZE.warning(
                f"The write-ahead log {path}-wal has {log_bytes // MEBIBYTE:,} MiB. A connection that reads for a long "
                "time keeps it from being emptied; readers become slow, and the disk fills.",
                "End the program that has the file open in a long transaction, such as a shell or a backup.",
            )
        )
    else:
        report(LOG_SIZE.ok(f"The write-ahead log has {log_bytes / MEBIBYTE:.1f} MiB."))
    if not runtime.fs.size(path):
        report(check_version(sqlite3.sqlite_version_info, has_other_tables=False))
        raise EngineUnavailable(
            f"There is no store at {path}: none was made yet, or its file was moved or removed. The first enqueue or "
            "worker makes one.",
            engine="sqlite",
        )


def _examine_database(db: sqlite3.Connection, store: StoreOptions, runtime: Runtime, report: Report) -> None:
    version = version_of(db, store.namespace)
    (others,) = db.execute(
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
        "AND substr(name, 1, ?) <> ?",
        (len(store.namespace) + 1, f"{store.namespace}_"),
    ).fetchone()
    report(check_version(sqlite3.sqlite_version_info, has_other_tables=others > 0))
    (journal_mode,) = db.execute("PRAGMA journal_mode").fetchone()
    (synchronous,) = db.execute("PRAGMA synchronous").fetchone()
    report(_durability(store.durability, journal_mode, SYNCHRONOUS_NAMES.get(synchronous, str(synchronous))))
    report(_schema(version, store.namespace))
    if version == SCHEMA_VERSION:
        (wall,) = db.execute(f"SELECT wall FROM {store.namespace}_meta").fetchone()
        lead_us = wall - runtime.wall()
        if lead_us > MAX_LEAD_US:
            report(
                CLOCK.warning(
                    f"The last write has a time that is {lead_us / SECOND:.0f} s ahead of this host's clock: the "
                    "clock was set back. Due times follow the clock as it is now.",
                    "Let NTP set the clock, in small steps.",
                )
            )


def check_version(version: tuple[int, int, int], *, has_other_tables: bool) -> Finding:
    """`has_other_tables`: other programs use the file, too, and do not pass the gate of our writers."""
    text = ".".join(map(str, version))
    if version < MIN_VERSION:
        return VERSION.problem(
            f"This Python has SQLite {text}. Holdfast needs 3.37 or newer.",
            "Use a Python with a newer SQLite.",
        )
    if version >= SOUND_SINCE or any(version[:2] == sound[:2] and version >= sound for sound in SOUND_RELEASES):
        return VERSION.ok(f"SQLite {text}.")
    race = f"SQLite {text} can lose data when two connections checkpoint at the same moment (corrected in 3.51.3)."
    if sys.platform == "win32":
        return VERSION.warning(
            f"{race} On Windows nothing keeps two processes from that.",
            "Use a Python with SQLite 3.51.3 or newer, or one process only.",
        )
    race += " Holdfast's own writers never do: they pass one gate."
    if has_other_tables:
        return VERSION.warning(
            f"{race} But the file has other tables too, and a program that writes them does not pass the gate.",
            "Use a Python with SQLite 3.51.3 or newer, let that program run PRAGMA wal_autocheckpoint = 0, or give "
            "Holdfast a file of its own.",
        )
    return VERSION.note(race, "Let no other program write to the file, or use a Python with SQLite 3.51.3 or newer.")


def _durability(durability: str, journal_mode: str, synchronous: str) -> Finding:
    found = f"{durability}: {SURVIVES[durability]} (journal_mode {journal_mode}, synchronous {synchronous})."
    if journal_mode != "wal":
        return DURABILITY.warning(
            f"The file has journal_mode {journal_mode}, so another program has changed it. Readers wait for writers, "
            "and the promise of the class does not hold for processes that run now.",
            "Start the workers again: each start switches the file to its write-ahead log.",
        )
    match durability:
        case "durable":
            return DURABILITY.ok(found)
        case "fast":
            return DURABILITY.note(found, "Set durability = durable if no acknowledged job may be lost.")
        case _:
            return DURABILITY.warning(found, "Set durability = durable or fast, unless the jobs may be lost.")


def _schema(version: int, namespace: str) -> Finding:
    if version == SCHEMA_VERSION:
        return SCHEMA.ok(f"The tables of namespace {namespace} have version {version}.")
    if version > SCHEMA_VERSION:
        return SCHEMA.problem(
            f"The tables have version {version}, and this release reads version {SCHEMA_VERSION}.", "Upgrade Holdfast."
        )
    return SCHEMA.problem(
        f"The file has no tables of namespace {namespace}.",
        "Run: holdfast migrate. The first enqueue or worker makes them, too, unless auto_migrate is off. If jobs "
        "should be there, check the namespace.",
    )
