"""A call of a server-side function, and what it gives back."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple

import msgspec
from msgspec import Struct

from holdfast.model.command import A

encode = msgspec.json.Encoder().encode


def listeners_lock(namespace: str) -> str:
    """The advisory lock that a session holds, shared, while it listens for jobs of the namespace's queues."""
    return f"{namespace} bells"


class Reply(Struct, Generic[A], frozen=True, gc=False):
    """What a function gives back: the answer, and the bells to ring now that it is committed."""

    topics: tuple[str, ...] = msgspec.field(name="rings")
    answer: A
    heard: bool = True
    """Whether others may listen for them."""
    walked: int = 0
    """Entries of the index of ready jobs that a claim has met."""


Rows = Sequence[Any]
"""Each of them a sequence in turn; asyncpg's are, but do not say so."""
Read = Callable[[Rows], Reply[Any]]


class Call(NamedTuple):
    """A function's name without its schema, its arguments, and how to read what it says."""

    function: str
    arguments: tuple[Any, ...]
    read: Read
