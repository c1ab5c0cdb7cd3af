"""The open SQLite transactions of the code that has called us: for the advice after a forgotten `transaction=`.

A call that waits for a transaction of its own caller waits for ever. To notice it, the variables of the functions of
the waiting thread are inspected: a session, a connection, or an object that has one as an attribute. The connections of
Django belong to a thread, too. If these are the only connections of the process in a transaction, then one of them has
the lock that this process holds.
"""

import gc
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import FrameType
from typing import Any

from holdfast.transactions import ADAPTERS, adapt
from holdfast.transactions.connection import Mode
from holdfast.transactions.sqlite import SqliteUser


def only_callers_can_commit(callers: Iterable[FrameType]) -> bool:
    """True if the calling code has a transaction, and no other code of the process has one.

    `callers`: the innermost frames of the threads that wait.
    """
    found = [db for frame in callers for db in _of_callers(frame) if is_in_transaction(db)]
    return bool(found) and all(db in found for db in _in_transaction())


def _in_transaction() -> Iterator[sqlite3.Connection]:
    """All connections of the process that are in a transaction."""
    for one in gc.get_objects():
        if issubclass(type(one), sqlite3.Connection) and is_in_transaction(one):
            yield one


def is_in_transaction(db: sqlite3.Connection) -> bool:
    try:
        return db.in_transaction
    except sqlite3.Error:  # it is closed
        return False


def _of_callers(frame: FrameType | None) -> Iterator[sqlite3.Connection]:
    for value in _values(frame):
        db = _connection_behind(value)
        if db is not None:
            yield db


def _values(frame: FrameType | None) -> Iterator[Any]:
    """What the functions of this thread have in their variables, in attributes of these, and in globals they name."""
    seen: dict[int, Any] = {}
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("holdfast."):
            named = (frame.f_globals.get(name) for name in frame.f_code.co_names)
            for value in (*frame.f_locals.values(), *named):
                yield from _with_attributes(value, seen)
        frame = frame.f_back
    if "django.db" in sys.modules:
        connections: Iterable[Any] = import_module("django.db").connections.all(initialized_only=True)
        yield from connections


def _with_attributes(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    try:
        attributes = value.__dict__
    except Exception:  # it has none, or is a proxy for nothing
        attributes = None
    inside = attributes.values() if type(attributes) is dict else ()
    for one in (value, *inside):
        if id(one) not in seen:
            seen[id(one)] = one
            yield one


def _connection_behind(value: Any) -> sqlite3.Connection | None:
    """The connection, if this is an open transaction of a driver of SQLite."""
    if not any(base.__module__.partition(".")[0] in ADAPTERS for base in type(value).__mro__):
        return None
    try:
        if not _has_connection(value):
            return None
        user = adapt(value)
        if isinstance(user, SqliteUser) and user.mode is Mode.SYNC and user.is_open:
            return user.run(lambda db: db)
    except Exception:  # it is no transaction, or cannot be used in this thread
        return None
    return None


def _has_connection(value: Any) -> bool:
    """False for a session of SQLAlchemy that has no connection: to look at it must not take one from the pool."""
    if hasattr(value, "registry") and hasattr(value, "session_factory"):  # a scoped_session
        if not value.registry.has():
            return False
        value = value()
    transaction = value.get_transaction() if hasattr(value, "get_transaction") else None
    return getattr(transaction, "_connections", True) != {}
