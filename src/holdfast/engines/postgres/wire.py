"""What goes over the wire: a command becomes one call of a server-side function, its text becomes the answer.

Functions take and give JSON, which msgspec reads straight into the answer's own type. So one call is one round trip
whatever the driver is, and a user's connection of another make can carry it too (`join`). The hot ones take columns:
the exchange (`exchanging.py`), and an enqueue of jobs that are alike.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from hashlib import blake2b
from itertools import repeat
from operator import attrgetter
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engines.postgres.exchanging import exchange
from holdfast.engines.postgres.floors import Floor
from holdfast.engines.postgres.messages import Call, Read, Reply, encode
from holdfast.model.command import A, Answer, Command
from holdfast.model.instants import At
from holdfast.model.operate import Clear
from holdfast.model.produce import (
    Accepted,
    Enqueue,
    EnqueueAnswer,
    EnqueueStatus,
    Group,
    GroupAccepted,
    NewJob,
)
from holdfast.model.states import JobState
from holdfast.model.work import (
    Exchange,
    Expired,
)


def call_of(command: Command[A], floors: Mapping[str, Floor] = {}) -> Call:
    """The call that carries out a command. Offset and floor of the clock are added by whoever makes it."""
    match command:
        case Exchange():
            return exchange(command, floors)
        case Enqueue():
            return _enqueue(command)
        case Expired():
            turn = crc32(command.worker.encode())
            request = encode({**msgspec.to_builtins(command), "turn": turn}).decode()
            return Call("expired_1", (request,), reader(type(command)))
        case _:
            return Call(f"{verb_of(type(command))}_1", (encode(command).decode(),), reader(type(command)))


@cache
def verb_of(command: type[Command[Any]]) -> str:
    return re.sub("(?<!^)([A-Z])", r"_\1", command.__name__).lower()


@cache
def answer_type(command: type[Command[Any]]) -> type[Answer]:
    """The answer that a command's type names: `class Get(Command[Got])`."""
    (base,) = command.__orig_bases__  # type: ignore[attr-defined]  # every command is generic in its answer
    answer: type[Answer] = base.__args__[0]
    return answer


@cache
def reader(command: type[Command[Any]]) -> Read:
    return _of_text(msgspec.json.Decoder(Reply[answer_type(command)]).decode)  # type: ignore[misc]  # made at run time


def _of_text(decode: Callable[[str], Reply[Any]]) -> Read:
    """For the functions that answer with one text; all but the exchange."""
    return lambda rows: decode(rows[0][0])


class Piece(Answer, frozen=True, gc=False, kw_only=True):
    """A part of a clear: how many ended, and whether to go on, with jobs that had come by then."""

    count: int
    more: bool
    up_to: int


PIECE = 1_000
_read_piece = _of_text(msgspec.json.Decoder(Reply[Piece]).decode)


def piece_of(command: Clear, up_to: int | None) -> Call:
    """The call that clears the next thousand: nobody shall wait long for what it locks."""
    request = {**msgspec.to_builtins(command), "chunk": PIECE, "up_to": up_to}
    return Call("clear_1", (encode(request).decode(),), _read_piece)


# Enqueueing


def _enqueue(command: Enqueue) -> Call:
    groups = command.groups
    jobs = [job for group in groups for job in group.jobs]
    if not jobs or any(group.limits for group in groups):
        return careful_call_of(command)
    terms = _terms(jobs[0])
    if is_plain(jobs[0]) and all(_terms(job) == terms for job in jobs):
        shared = encode(replace(jobs[0], id="", payload=b"")).decode()
        arguments = (shared, [job.id for job in jobs], [job.payload for job in jobs])
        return Call("enqueue_alike_1", arguments, lambda rows: _alike_answer(groups, rows[0][0]))
    if all(map(is_plain, jobs)):
        return Call("enqueue_plain_1", (encode(jobs).decode(),), lambda rows: _plain_answer(groups, rows[0][0]))
    return careful_call_of(command)


def careful_call_of(command: Command[Any]) -> Call:
    """An enqueue that takes nobody's word for it that an id is new."""
    assert isinstance(command, Enqueue)
    return Call("enqueue_1", (encode(_grouped(command.groups)).decode(), False), reader(Enqueue))


def joined_call_of(command: Command[A], *, notify: bool, offset: int, floor: int) -> Call:
    """The call that carries out a command in a transaction of the user's: one text, whatever the driver."""
    request: dict[str, Any]
    if isinstance(command, Enqueue):
        function, request = "enqueue_joined_1", {"groups": _grouped(command.groups)}
    elif isinstance(command, Exchange) and command.claim is None and not command.starts:
        function, request = "settle_joined_1", {"settlements": command.settlements}
    else:
        raise TypeError(f"{type(command).__name__} cannot be part of a user's transaction.")
    request |= {"notify": notify, "offset": offset, "floor": floor}
    return Call(function, (encode(request).decode(),), reader(type(command)))


def _grouped(groups: tuple[Group, ...]) -> Any:
    return [{"jobs": [_placed(job) for job in group.jobs], "limits": group.limits} for group in groups]


def is_plain(job: NewJob) -> bool:
    """Whether it can meet nobody: nothing has to be looked up or waited for."""
    return job.fresh_id and job.lane is None and job.pool is None and job.unique_key is None and not job.parents


_terms = attrgetter(*(name for name in NewJob.__struct_fields__ if name not in ("id", "payload")))
"""All of a job but what makes it one of many."""


def _placed(job: NewJob) -> Any:
    """With the hash of its key, which decides its lane of a pool: the server cannot take it."""
    if job.pool is None:
        return job
    wanted = msgspec.to_builtins(job)
    if job.pool.key is not None:
        wanted["pool"]["hash"] = key_hash(job.pool.key)
    return wanted


def key_hash(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")


class _Plain(Struct, frozen=True, gc=False):
    at: At
    arrivals: list[int]
    states: list[JobState]


class _Alike(Struct, frozen=True, gc=False):
    at: At
    arrivals: list[int]
    state: JobState


_decode_plain = msgspec.json.Decoder(Reply[_Plain]).decode  # type: ignore[type-var]  # no answer of the contract
_decode_alike = msgspec.json.Decoder(Reply[_Alike]).decode  # type: ignore[type-var]  # no answer of the contract


def _plain_answer(groups: tuple[Group, ...], text: str) -> Reply[EnqueueAnswer]:
    reply: Any = _decode_plain(text)
    return _all_created(groups, reply, reply.answer.states)


def _alike_answer(groups: tuple[Group, ...], text: str) -> Reply[EnqueueAnswer]:
    reply: Any = _decode_alike(text)
    return _all_created(groups, reply, repeat(reply.answer.state, len(reply.answer.arrivals)))


def _all_created(groups: tuple[Group, ...], reply: Any, states: Iterable[JobState]) -> Reply[EnqueueAnswer]:
    jobs = (job for group in groups for job in group.jobs)
    created = [
        Accepted(status=EnqueueStatus.CREATED, id=job.id, state=state, arrival=arrival, generation=0)
        for job, arrival, state in zip(jobs, reply.answer.arrivals, states, strict=True)
    ]
    answers, taken = [], 0
    for group in groups:
        taken, start = taken + len(group.jobs), taken
        answers.append(GroupAccepted(tuple(created[start:taken])))
    return Reply(reply.topics, EnqueueAnswer(at=reply.answer.at, groups=tuple(answers)), reply.heard)
