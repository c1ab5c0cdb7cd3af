"""Connections: how they are opened, and what SQLite's errors mean.

Write-ahead log, so that readers never wait for the writer; no automatic checkpoints, since those happen behind the
gate; `synchronous` by the durability class. A connection is used by one thread at a time, in one process.
"""

import os
import sqlite3

from holdfast.errors import CorruptRecord, EngineError, EngineUnavailable, SchemaMismatch, StorageFull, UsageError

OLDEST = (3, 37, 0)
BUSY_TIMEOUT = 10.0
"""Seconds to wait for a stranger who has locked the file."""

SYNCHRONOUS = {"durable": "FULL", "fast": "NORMAL", "none": "OFF"}


def connect(
    path: str,
    durability: str,
    *,
    read_only: bool = False,
    busy_timeout: float = BUSY_TIMEOUT,
    kind: type[sqlite3.Connection] = sqlite3.Connection,
) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < OLDEST:
        raise SchemaMismatch(
            f"Holdfast needs SQLite 3.37 or newer; this Python has {sqlite3.sqlite_version}.",
            found=sqlite3.sqlite_version,
            wanted="3.37",
            engine="sqlite",
        )
    try:
        db = sqlite3.connect(
            path,
            timeout=busy_timeout,
            isolation_level=None,
            cached_statements=256,
            check_same_thread=False,
            factory=kind,
        )
        db.execute("PRAGMA journal_mode = WAL").fetchone()
        db.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("PRAGMA journal_size_limit = 1048576")
        db.execute("PRAGMA cache_size = -8000")  # 8 MB at most, per connection
        db.execute("PRAGMA temp_store = MEMORY")
        if read_only:
            db.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        raise translate(error, path) from error
    return db


def translate(error: sqlite3.Error, path: str) -> EngineError | UsageError:
    """What an error of the driver means to a caller. Nothing was written, unless it says otherwise."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    shown = os.path.abspath(path)
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return EngineUnavailable(
                f"{shown} has been locked by someone else for too long. Nothing was written. "
                "Find who holds a transaction open."
            )
        case sqlite3.SQLITE_FULL:
            return StorageFull(f"No room is left for {shown}. Nothing was written. Free some disk space.")
        case sqlite3.SQLITE_READONLY:
            return EngineUnavailable(f"{shown} cannot be written to: it, or its folder, is read-only.")
        case sqlite3.SQLITE_CANTOPEN:
            return EngineUnavailable(
                f"{shown} cannot be opened. Does its folder exist, and may this process write there?"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return CorruptRecord(
                f"{shown} is damaged or no SQLite database ({error}). Nothing was changed. Keep a copy; "
                "`sqlite3 FILE .recover` may save what is left.",
                where=shown,
                engine="sqlite",
            )
        case _:
            return EngineUnavailable(f"SQLite says of {shown}: {error}. Nothing was written.")
