"""A command becomes one call of a server-side function, and the text that the function returns becomes the answer.

Functions take and return JSON, which msgspec reads straight into the answer's own type. So one call is one round trip
whatever the driver is, and a user's connection of another driver can carry it too. Two calls take columns instead,
because they are hot: the exchange (`exchange_call.py`), and the enqueue of jobs that cannot conflict
(`fast_paths.py`)."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from zlib import crc32

import msgspec

from holdfast.engines.postgres import fast_paths
from holdfast.engines.postgres.claim_cursor import Cursor
from holdfast.engines.postgres.exchange_call import exchange
from holdfast.engines.postgres.messages import Call, Read, Reply, encode, of_text
from holdfast.model.command import A, Answer, Command
from holdfast.model.hashing import key_hash
from holdfast.model.operate import Clear
from holdfast.model.produce import Enqueue, Group, NewJob
from holdfast.model.work import Exchange, Expired, Heartbeat


def call_of(command: Command[A], cursors: Mapping[str, Cursor] = {}, *, fast: bool = True, wait: bool = True) -> Call:
    """The call that carries out a command. The caller adds the offset of the clock and the earliest time to answer.

    `wait` false: an exchange waits for no lock.
    """
    match command:
        case Exchange():
            return exchange(command, cursors, fast=fast, wait=wait)
        case Enqueue():
            return (fast_paths.enqueue(command) if fast else None) or enqueue(command, fast=fast)
        case Expired():
            turn = crc32(command.worker.encode())
            request = encode({**msgspec.to_builtins(command), "turn": turn}).decode()
            return Call("expired", (request,), reader(type(command)))
        case Heartbeat():
            return Call("heartbeat", (encode(command).decode(),), reader(Heartbeat))
        case _:
            return Call(verb_of(type(command)), (encode(command).decode(),), reader(type(command)))


@cache
def verb_of(command: type[Command[Any]]) -> str:
    return re.sub("(?<!^)([A-Z])", r"_\1", command.__name__).lower()


@cache
def answer_type(command: type[Command[Any]]) -> type[Answer]:
    """The answer that a command's type names: `class Get(Command[GetAnswer])`."""
    (base,) = command.__orig_bases__  # type: ignore[attr-defined]  # every command is generic in its answer
    answer: type[Answer] = base.__args__[0]
    return answer


@cache
def reader(command: type[Command[Any]]) -> Read:
    return of_text(msgspec.json.Decoder(Reply[answer_type(command)]).decode)  # type: ignore[misc]  # made at run time


# Clear


class ClearChunk(Answer, frozen=True, gc=False, kw_only=True):
    """The answer to one chunk of a clear: how many jobs ended, and whether jobs that arrived before it are left."""

    count: int
    more: bool
    up_to: int


CHUNK_JOBS = 1_000  # CL2
"""Jobs that one call clears: other calls wait for what it locks."""
_read_chunk = of_text(msgspec.json.Decoder(Reply[ClearChunk]).decode)


def chunk_call(command: Clear, up_to: int | None, *, fast: bool) -> Call:
    """The call that clears the next chunk."""
    request = {**msgspec.to_builtins(command), "chunk": CHUNK_JOBS, "up_to": up_to, "fast": fast}
    return Call("clear", (encode(request).decode(),), _read_chunk)


# Enqueue


def enqueue(command: Command[Any], *, fast: bool) -> Call:
    """The call for any jobs: the server looks up every id, also one that the producer says is new."""
    assert isinstance(command, Enqueue)
    return Call("enqueue", (encode(_grouped(command.groups)).decode(), False, fast), reader(Enqueue))


def user_transaction_call_of(
    command: Command[A], *, notify: bool, offset: int, not_before_us: int, fast: bool = True
) -> Call:
    """The call that carries out a command in a user's transaction: one text, whatever the driver is."""
    request: dict[str, Any]
    if isinstance(command, Enqueue):
        function, request = "enqueue_in_transaction", {"groups": _grouped(command.groups), "fast": fast}
    elif isinstance(command, Exchange) and command.claim is None and not command.starts:
        function, request = "settle_in_transaction", {"settlements": command.settlements}
    else:
        raise TypeError(f"{type(command).__name__} cannot be part of a user's transaction.")
    request |= {"notify": notify, "offset": offset, "not_before_us": not_before_us}
    return Call(function, (encode(request).decode(),), reader(type(command)))


def _grouped(groups: tuple[Group, ...]) -> Any:
    return [{"jobs": [_with_hash(job) for job in group.jobs], "limits": group.limits} for group in groups]


def _with_hash(job: NewJob) -> Any:
    """With the hash of its pool key, which decides its lane: the server has no such hash function."""
    if job.pool is None:
        return job
    request = msgspec.to_builtins(job)
    if job.pool.key is not None:
        request["pool"]["hash"] = key_hash(job.pool.key)
    return request
