"""How connections are opened, and what SQLite's errors mean.

The journal is a write-ahead log (`use_wal`), so that readers never wait for the writer. Automatic checkpoints are off,
because the writer checkpoints while it holds the gate. `synchronous` follows from the durability class. A connection is
used by one thread at a time, in one process, while its lock is held (`connections_at_fork.py`).
"""

import logging
import os
import sqlite3

from holdfast import forks
from holdfast.engines.sqlite.connections_at_fork import CONNECTIONS, EngineConnection
from holdfast.engines.sqlite.lock_holder import locked_for_too_long
from holdfast.engines.sqlite.store import StoreOptions
from holdfast.engines.sqlite.store_file import identity_of
from holdfast.errors import CorruptRecord, EngineError, EngineUnavailable, SchemaMismatch, StorageFull, UsageError
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

log = logging.getLogger("holdfast")

MIN_VERSION = (3, 37, 0)
"""The first version with STRICT tables."""
SYNCHRONOUS = {"durable": "FULL", "fast": "NORMAL", "none": "OFF"}
"""The value of the pragma for each durability class."""
CACHED_STATEMENTS = 256
"""Prepared statements per connection: more than `statements.sql` has, so that none is prepared twice."""
MAX_WAL_BYTES = 32 * 1024 * 1024
"""After a checkpoint SQLite truncates the log file to this size, so that one large transaction does not keep disk. It
is above the size at which the writer checkpoints: a log that is truncated has to grow again, which slows a commit."""
WAL_RETRY_S = 0.005
"""Pause between two tries to switch a new file to the write-ahead log. A switch takes about a millisecond."""
CACHE_KIB = 8_000
"""Page cache per connection, at most."""


def connect(
    store: StoreOptions, *, read_only: bool = False, factory: type[sqlite3.Connection] = EngineConnection
) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < MIN_VERSION:
        raise SchemaMismatch(
            f"Holdfast needs SQLite 3.37 or newer; this Python has {sqlite3.sqlite_version}.",
            found=sqlite3.sqlite_version,
            wanted="3.37",
            engine="sqlite",
        )
    CONNECTIONS.check(store.path)
    store.file.check()  # otherwise SQLite would make a new, empty file
    before = identity_of(store.path)
    try:
        with forks.no_fork:
            db = sqlite3.connect(
                store.path,
                timeout=store.busy_timeout_s,
                isolation_level=None,
                cached_statements=CACHED_STATEMENTS,
                check_same_thread=False,
                factory=factory,
            )
            CONNECTIONS.add(db, store.path)
    except sqlite3.Error as error:
        raise translate(error, store.path) from error
    try:
        db.execute(f"PRAGMA synchronous = {SYNCHRONOUS[store.durability]}")
        # On macOS a sync does not empty the cache of the disk; this one does. Other systems ignore the pragma.
        db.execute(f"PRAGMA fullfsync = {'ON' if store.durability == 'durable' else 'OFF'}")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
        db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")  # negative: KiB, not pages
        db.execute("PRAGMA temp_store = MEMORY")
        if read_only:
            db.execute("PRAGMA query_only = ON")
        store.file.remember(before)
    except (sqlite3.Error, UnicodeDecodeError, EngineUnavailable) as error:
        sqlite3.Connection.close(db)  # `factory` may have another `close`
        CONNECTIONS.remove(db)
        raise error if isinstance(error, EngineUnavailable) else translate(error, store.path) from error
    if isinstance(db, EngineConnection):
        CONNECTIONS.in_use(db).release()
    return db


def use_wal(db: sqlite3.Connection, store: StoreOptions, runtime: Runtime) -> None:
    """Switch the file to the write-ahead log. It stays switched, so one connection of an engine does it.

    SQLite does not wait here for other connections that open the file at the same time, so the switch is tried again.
    """
    pause = runtime.event()  # never set
    ends_at_us = runtime.monotonic() + round(store.busy_timeout_s * SECOND)
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.Error as error:
            if not _is_busy(error) or runtime.monotonic() >= ends_at_us:
                raise translate(error, store.path) from error
        pause.wait(WAL_RETRY_S)


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def roll_back(db: sqlite3.Connection) -> None:
    """End the transaction, if there is one. Raises nothing: the caller reports the error that came before."""
    if db.in_transaction:
        try:
            db.execute("ROLLBACK")
        except sqlite3.Error as error:
            log.debug("A rollback failed: %s", error)


def is_not_committed(error: sqlite3.Error) -> bool:
    """True if a COMMIT that failed with this error has certainly written nothing.

    A write into the log has failed, so the last page of the transaction, which commits it, is not there. After other
    errors it may be: a failed sync, for example, leaves the page in the log, and SQLite may find it after a crash.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    return code == sqlite3.SQLITE_IOERR_WRITE or code & 0xFF == sqlite3.SQLITE_FULL


def storage_full(path: str) -> StorageFull:
    return StorageFull(
        f"The disk has no space left for {os.path.abspath(path)}. Nothing was written. Free some disk space. Meanwhile "
        "no job is accepted, and stored jobs can still be settled."
    )


def translate(error: Exception, path: str) -> EngineError | UsageError:
    """The error that a caller gets for an error of the driver. Nothing was written, unless the text says otherwise."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if not isinstance(error, sqlite3.Error):  # a record cannot be decoded, or SQLite's message quotes a damaged schema
        code = sqlite3.SQLITE_CORRUPT
    file = os.path.abspath(path)
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return locked_for_too_long(file)
        case sqlite3.SQLITE_FULL:
            return storage_full(path)
        case sqlite3.SQLITE_READONLY:
            return EngineUnavailable(f"{file} cannot be written to: the file or its folder is read-only.")
        case sqlite3.SQLITE_CANTOPEN:
            return EngineUnavailable(
                f"{file} cannot be opened. Check that its folder exists and that this process may write to it."
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return CorruptRecord(
                f"{file} is damaged or no SQLite database ({error}). Nothing was changed. Keep a copy. "
                "The guide to SQLite, section Recover a damaged file, says what can be saved.",
                where=file,
                engine="sqlite",
            )
        case _:
            return EngineUnavailable(f"SQLite reports for {file}: {error}. Nothing was written.")
