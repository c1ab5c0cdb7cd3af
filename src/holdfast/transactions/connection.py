"""What an engine needs of a connection that belongs to a user.

On PostgreSQL the rules are functions in the server, so one call with text arguments is enough. On SQLite the rules run
in this process over the `sqlite3` connection itself, in the thread to which the connection belongs.

The mode says where a connection can be used: a sync one in a thread, an async one on an event loop. Connections that
the engine has opened itself may serve both.
"""

from abc import ABC
from collections.abc import Callable, Coroutine, Generator
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

if TYPE_CHECKING:
    import sqlite3

R = TypeVar("R")

Dialect = Literal["postgresql", "sqlite"]


class Mode(StrEnum):
    """Where a connection can be used: in a thread, on an event loop, or on both."""

    SYNC = "sync"
    ASYNC = "async"
    BOTH = "both"


class UserConnection(ABC):
    """A connection inside a transaction that the user will commit or roll back.

    Engines call the plain methods where `mode` is not `ASYNC`, those with an `a` where it is not `SYNC`. Errors of
    the driver are not changed: the transaction is the user's, so the user handles them.
    """

    dialect: ClassVar[Dialect]
    mode: Mode
    name: str
    """Its name in messages."""

    @property
    def is_open(self) -> bool:
        """True if the connection is in a transaction now: this one, or a later one."""
        raise NotImplementedError

    def identity(self) -> str:
        """The same text for every connection to the same database, by any address. Changes nothing."""
        raise NotImplementedError

    async def aidentity(self) -> str:
        raise NotImplementedError

    def call(self, function: str, *texts: str) -> str:
        """PostgreSQL: `SELECT function(texts…)` inside the transaction; its only value.

        `UsageError` if the connection is in no transaction: nothing would be atomic.
        """
        raise NotImplementedError

    async def acall(self, function: str, *texts: str) -> str:
        raise NotImplementedError

    def run(self, work: "Callable[[sqlite3.Connection], R]") -> R:
        """SQLite: call `work` with the connection itself, in the thread where it may be used."""
        raise NotImplementedError

    async def arun(self, work: "Callable[[sqlite3.Connection], R]") -> R:
        raise NotImplementedError

    def after_commit(self, callback: Callable[[], None]) -> bool:
        """Call `callback` after the commit. False: the driver does not report commits, so it is never called."""
        return False


class LazyTransaction:
    """A transaction that begins when it is first awaited: `await` returns the connection."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._begin().__await__()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Await the transaction before you use .{name}: `connection = await ctx.tx`.")
