"""Numbered, forward-only migrations. Each runs once, in one transaction; two processes may migrate at the same time."""

import sqlite3

from holdfast.engines.sqlite.statements import load
from holdfast.errors import SchemaMismatch

VERSION = 1
"""The version of the schema that this code reads and writes."""


def version_of(db: sqlite3.Connection, namespace: str) -> int:
    """The version of the schema in the file; 0 if there is none."""
    found = db.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (f"{namespace}_meta",)
    ).fetchone()
    if found is None:
        return 0
    row = db.execute(f"SELECT version FROM {namespace}_meta WHERE one = 1").fetchone()
    return 0 if row is None else int(row[0])


def migrate(db: sqlite3.Connection, namespace: str, boot_id: str) -> tuple[str, ...]:
    """Bring the schema up to date, inside the caller's write transaction. Answers the names of the migrations run."""
    version = version_of(db, namespace)
    check(version, namespace, missing_ok=True)
    if version == VERSION:
        return ()
    for statement in _split(load("schema.sql", namespace)["create"]):
        db.execute(statement)
    db.execute(f"INSERT INTO {namespace}_meta VALUES (1, ?, ?, 0, 0, 0)", (VERSION, boot_id))
    return ("001 create",)


def check(version: int, namespace: str, *, missing_ok: bool = False) -> None:
    if version > VERSION:
        raise SchemaMismatch(
            f"The file's schema has version {version}, this Holdfast supports {VERSION}. Nothing was written. "
            "Upgrade Holdfast.",
            found=str(version),
            wanted=str(VERSION),
            engine="sqlite",
        )
    if version == 0 and not missing_ok:
        raise SchemaMismatch(
            f"This file has no tables of namespace {namespace!r}. Run: holdfast migrate",
            found="none",
            wanted=str(VERSION),
            engine="sqlite",
        )


def _split(script: str) -> list[str]:
    """The single statements of a script. `executescript` would commit the caller's transaction."""
    statements, current = [], ""
    for line in script.splitlines():
        current += line + "\n"
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements
