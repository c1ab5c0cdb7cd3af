"""What an engine may ask of a connection that belongs to a user.

Two dialects, two ways in. On PostgreSQL the rules are functions in the server, so one call with texts is enough. On
SQLite the rules are ours and run over the `sqlite3` connection itself, in whatever thread it lives.

A colour says who may use it: a connection that blocks has no place on an event loop, one that is awaited none in a
thread. Those that the engine has opened by itself may serve both.
"""

from abc import ABC
from collections.abc import Callable, Coroutine, Generator
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

if TYPE_CHECKING:
    import sqlite3

R = TypeVar("R")

Dialect = Literal["postgresql", "sqlite"]


class Colour(StrEnum):
    """Who may use a connection."""

    SYNC = "sync"
    ASYNC = "async"
    BOTH = "both"


class UserConnection(ABC):
    """A connection inside a transaction that somebody else will commit or roll back.

    Engines call the plain methods where `colour` is not `ASYNC`, those with an `a` where it is not `SYNC`. Errors of
    the driver pass as they are: the transaction is the user's, and so is what has to be done about it.
    """

    dialect: ClassVar[Dialect]
    colour: Colour
    name: str
    """What it is, in messages."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is in a transaction now: that one, or a later one."""
        raise NotImplementedError

    def identity(self) -> str:
        """The same text for every connection to the same database, however it is reached. Changes nothing."""
        raise NotImplementedError

    async def aidentity(self) -> str:
        raise NotImplementedError

    def call(self, function: str, *texts: str) -> str:
        """PostgreSQL: `SELECT function(texts…)` inside the transaction; its one answer.

        `UsageError` where the connection is in no transaction, so that nothing would be atomic.
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
        """Have `callback` called once the transaction is committed. False: the driver cannot tell."""
        return False


class Begins:
    """A transaction that begins when it is first awaited: `await` gives the connection."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._begin().__await__()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"In an async handler await it before you use .{name}: `connection = await ctx.tx`.")
