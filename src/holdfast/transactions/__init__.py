"""Joining: a user's transaction, whatever driver it comes from, as the few things an engine needs of it.

`adapt` turns what was given as `transaction=` into a `UserConnection`. The adapters stand in a file per driver, and a
driver is imported only when an object of its own comes along. Nothing here begins, commits or ends a transaction of a
user's on PostgreSQL; on SQLite the first statement may have to take the write lock, as the driver would have done.
"""

from importlib import import_module

from holdfast.errors import UsageError
from holdfast.transactions.connection import Begins, Colour, UserConnection

__all__ = ["Begins", "Colour", "UserConnection", "adapt"]

ADAPTERS = {
    "aiosqlite": "holdfast.transactions.aiosqlite",
    "asyncpg": "holdfast.transactions.asyncpg",
    "psycopg": "holdfast.transactions.psycopg",
    "sqlalchemy": "holdfast.transactions.sqlalchemy",
    "sqlite3": "holdfast.transactions.sqlite",
}
"""Where an object is adapted, by the package that its class, or a base of it, comes from."""

ACCEPTED = (
    "a Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy, a connection of asyncpg, psycopg (3), "
    "sqlite3 or aiosqlite, or what `ctx.transaction()` and `ctx.tx` give"
)


def adapt(given: object) -> UserConnection:
    """The connection behind what a user gave as `transaction=`. `UsageError`: it is none that we know."""
    if isinstance(given, UserConnection):
        return given
    for base in type(given).__mro__:
        module = ADAPTERS.get(base.__module__.partition(".")[0])
        if module is not None:
            found: UserConnection | None = import_module(module).adapted(given)
            if found is not None:
                return found
    kind = type(given)
    raise UsageError(f"`transaction` must be {ACCEPTED}; not {kind.__module__}.{kind.__qualname__}.")
