"""User transactions: the connection of any driver behind one small interface for engines.

`adapt` turns the value of `transaction=` into a `UserConnection`. There is one adapter file per driver; it is imported
when an object of that driver is given. Nothing here begins, commits or ends a user's transaction on PostgreSQL. On
SQLite the first statement may take the write lock, as the driver itself would do.
"""

from importlib import import_module

from holdfast.errors import UsageError
from holdfast.transactions.connection import LazyTransaction, Mode, UserConnection

__all__ = ["LazyTransaction", "Mode", "UserConnection", "adapt"]

ADAPTERS = {
    "aiosqlite": "holdfast.transactions.aiosqlite",
    "asyncpg": "holdfast.transactions.asyncpg",
    "django": "holdfast.transactions.django",
    "psycopg": "holdfast.transactions.psycopg",
    "sqlalchemy": "holdfast.transactions.sqlalchemy",
    "sqlite3": "holdfast.transactions.sqlite",
}
"""The adapter module, by the package of the object's class or of a base class."""

ACCEPTED = (
    "a Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy, a connection of asyncpg, psycopg (3), "
    "sqlite3, aiosqlite or Django, or the value of `ctx.transaction()` or `ctx.tx`"
)


def adapt(transaction: object) -> UserConnection:
    """The connection behind the value of `transaction=`. `UsageError`: no driver is known for it."""
    if isinstance(transaction, UserConnection):
        return transaction
    for base in type(transaction).__mro__:
        module = ADAPTERS.get(base.__module__.partition(".")[0])
        if module is not None:
            found: UserConnection | None = import_module(module).adapter_for(transaction)
            if found is not None:
                return found
    kind = type(transaction)
    raise UsageError(f"`transaction` must be {ACCEPTED}; not {kind.__module__}.{kind.__qualname__}.")
