"""A call of a server-side function, and what it gives back."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple

import msgspec
from msgspec import Struct

from holdfast.model.command import A

encode = msgspec.json.Encoder().encode


def listeners_lock(namespace: str) -> str:
    """The name of the advisory lock that a session holds, shared, while it listens for the queues of the namespace."""
    return f"{namespace} listeners"


def notify_lock(namespace: str) -> str:
    """The name of the advisory lock that a call takes to notify other processes with its commit."""
    return f"{namespace} notify"


class Reply(Struct, Generic[A], frozen=True, gc=False):
    """What a function gives back: the answer, and the topics to notify now that it is committed."""

    topics: tuple[str, ...]
    answer: A
    has_listeners: bool = True
    """False: no other session listens for them."""
    sent: tuple[str, ...] = ()
    """Topics of which the other processes are notified already: the server has done it with the commit."""
    scanned: int = 0
    """Entries of the index of ready jobs that a claim has read."""


Rows = Sequence[Any]
"""Each of them is a sequence in turn; asyncpg's are, but are not typed so."""
Read = Callable[[Rows], Reply[Any]]


class Call(NamedTuple):
    """A function's name without its schema, its arguments, and how to read what it returns."""

    function: str
    arguments: tuple[Any, ...]
    read: Read
    takes_sender: bool = False
    """The function can notify other processes with its commit; its last argument is the name of this process."""


def of_text(decode: Callable[[str], Reply[Any]]) -> Read:
    """For functions that return one text."""
    return lambda rows: decode(rows[0][0])
