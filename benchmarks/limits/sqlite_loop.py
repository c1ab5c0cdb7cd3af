"""The bare SQLite loop: a minimal table, one partial index, fused claim and mark-done in batches of 100.

Rows are kept, `synchronous=FULL`, one connection, one thread.
"""

import sqlite3
import time
from pathlib import Path

BATCH = 100


def connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(
        "CREATE TABLE IF NOT EXISTS job (arrival INTEGER PRIMARY KEY, queue TEXT, task TEXT, priority INTEGER,"
        " due INTEGER, state INTEGER, payload BLOB)"
    )
    db.execute("CREATE INDEX IF NOT EXISTS ready ON job (queue, task, priority DESC, due, arrival) WHERE state = 0")
    return db


def insert(db: sqlite3.Connection, count: int, payload: bytes) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.executemany(
        "INSERT INTO job (queue, task, priority, due, state, payload) VALUES ('q', 't', 0, ?, 0, ?)",
        [(number, payload) for number in range(count)],
    )
    db.execute("COMMIT")


def drain(path: Path, jobs: int, payload: bytes) -> float:
    """Jobs per second through claim and mark-done."""
    db = connect(path)
    for _ in range(0, jobs, 1_000):
        insert(db, 1_000, payload)
    done: list[tuple[int]] = []
    began = time.perf_counter()
    while True:
        db.execute("BEGIN IMMEDIATE")
        db.executemany("UPDATE job SET state = 2 WHERE arrival = ?", done)
        rows = db.execute(
            "UPDATE job SET state = 1 WHERE arrival IN (SELECT arrival FROM job WHERE queue = 'q' AND task = 't'"
            " AND state = 0 ORDER BY priority DESC, due, arrival LIMIT ?) RETURNING arrival, payload",
            (BATCH,),
        ).fetchall()
        db.execute("COMMIT")
        if not rows:
            break
        done = [(row[0],) for row in rows]
    took = time.perf_counter() - began
    db.close()
    return jobs / took


def inserts(path: Path, calls: int, batch: int, payload: bytes) -> float:
    """Rows per second in batches of this size, each committed."""
    db = connect(path)
    began = time.perf_counter()
    for _ in range(calls):
        insert(db, batch, payload)
    took = time.perf_counter() - began
    db.close()
    return calls * batch / took
