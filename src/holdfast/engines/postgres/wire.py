"""What goes over the wire: a command becomes one call of a server-side function, its text becomes the answer.

Every function takes and gives JSON, which msgspec reads straight into the answer's own type. So one call is one round
trip whatever the driver is, and a user's connection of another make can carry it too (`join`).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from itertools import repeat
from operator import attrgetter
from typing import Any, Generic, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engines.postgres.floors import Floor
from holdfast.model.command import A, Answer, Command
from holdfast.model.instants import At
from holdfast.model.job import NOTHING_GIVEN, Given
from holdfast.model.operate import Clear
from holdfast.model.produce import (
    Accepted,
    Enqueue,
    Enqueued,
    EnqueueStatus,
    Group,
    GroupAccepted,
    NewJob,
)
from holdfast.model.states import JobState
from holdfast.model.work import (
    Claim,
    Exchange,
    Exchanged,
    Expired,
    LaneName,
    Lease,
    Settled,
    Settlement,
    Started,
    TaskClaim,
)

_encode = msgspec.json.Encoder().encode


class Reply(Struct, Generic[A], frozen=True, gc=False):
    """What a function gives back: the answer, and the bells to ring now that it is committed."""

    rings: tuple[str, ...]
    answer: A
    walked: int = 0
    """Entries of the index of ready jobs that a claim has met."""


Rows = Sequence[Any]
"""Each of them a sequence in turn; asyncpg's are, but do not say so."""
Read = Callable[[Rows], Reply[Any]]


class Call(NamedTuple):
    """A function's name without its schema, its arguments as text, and how to read what it says."""

    function: str
    arguments: tuple[Any, ...]
    read: Read
    rings: bool = False
    """It is a procedure that commits and then rings: an error may come after the commit."""


def call_of(command: Command[A], floors: Mapping[str, Floor] = {}) -> Call:
    """The call that carries out a command. Offset and floor of the clock are added by whoever makes it."""
    match command:
        case Exchange():
            return _exchange(command, floors)
        case Enqueue():
            return _enqueue(command)
        case Expired():
            turn = crc32(command.worker.encode())
            request = _encode({**msgspec.to_builtins(command), "turn": turn}).decode()
            return Call("expired_1", (request,), reader(type(command)))
        case _:
            return Call(f"{verb_of(type(command))}_1", (_encode(command).decode(),), reader(type(command)))


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
    return Call("clear_1", (_encode(request).decode(),), _read_piece)


# The two verbs of the hot path


def _exchange(command: Exchange, floors: Mapping[str, Floor]) -> Call:
    """Plain successes and claims go as columns, all else as text."""
    settlements = command.settlements
    plain: Sequence[Settlement] = [settlement for settlement in settlements if _is_plain(settlement)]
    if plain and len({(settlement.queue, settlement.id) for settlement in settlements}) < len(settlements):
        plain = ()  # twice the same job: one after the other, in the order given
    rest = settlements
    if plain:
        rest = () if len(plain) == len(settlements) else tuple(s for s in settlements if not _is_plain(s))
    return Call(
        "exchange_1",
        (
            *(map(_column, zip(*map(_PLAIN, plain), strict=True)) if plain else _NONE_PLAIN),
            any(settlement.retention == 0 for settlement in plain),
            _encode(rest).decode() if rest else None,
            any(settlement.lane is not None or settlement.listed_expiry is not None for settlement in rest),
            _encode(command.starts).decode() if command.starts else None,
            *(_NO_CLAIM if command.claim is None else _claim(command.claim, floors)),
        ),
        lambda rows: _exchanged(settlements, plain, rows),
    )


def _column(values: Sequence[Any]) -> Sequence[Any]:
    """One value stands for many like it: of a hundred jobs most have the same queue, result and terms."""
    return values[:1] if len(values) > 1 and values.count(values[0]) == len(values) else values


_PLAIN = attrgetter("queue", "id", "token", "result", "result_ttl", "retention")
_NONE_PLAIN = (None,) * 6
_NO_CLAIM = (None,) * 14


def _is_plain(settlement: Settlement) -> bool:
    """A success with nothing special about it, as far as can be seen from here."""
    return (
        settlement.target is JobState.SUCCEEDED
        and settlement.reason is None
        and not settlement.note
        and not settlement.refund
        and settlement.lane is None
        and settlement.listed_expiry is None
    )


def _claim(claim: Claim, floors: Mapping[str, Floor]) -> tuple[Any, ...]:
    """The terms stand in a row; queues with the same terms share them."""
    terms: list[TaskClaim] = []
    places: dict[int, tuple[int, int]] = {}
    for wanted in claim.queues:
        if id(wanted.tasks) not in places:
            places[id(wanted.tasks)] = len(terms) + 1, len(terms) + len(wanted.tasks)
            terms += wanted.tasks
    begins_and_ends = [places[id(wanted.tasks)] for wanted in claim.queues]
    return (
        claim.claim_id,
        claim.worker,
        claim.limit,
        claim.limit + claim.prefetch,
        [wanted.queue for wanted in claim.queues],
        [wanted.limit for wanted in claim.queues],
        [part for wanted in claim.queues for part in floors.get(wanted.queue, _NO_FLOOR)] if floors else None,
        [begin for begin, _ in begins_and_ends],
        [end for _, end in begins_and_ends],
        *(zip(*map(_TERMS, terms), strict=True) if terms else _NO_TERMS),
    )


_TERMS = attrgetter("task", "limit", "lease_len", "max_attempts", "max_losses")
_NO_TERMS: tuple[list[Any], ...] = ([],) * 5
_NO_FLOOR = (None,) * 3


class _Exchanged(Struct, frozen=True, gc=False):
    """An answer without its leases. `plain`: what became of the plain ones; None: all are applied."""

    at: At
    plain: tuple[Settled, ...] | None
    settled: tuple[Settled, ...]
    started: tuple[Started, ...]
    emptied: tuple[LaneName, ...]
    next_due: int | None


_decode_exchanged = msgspec.json.Decoder(Reply[_Exchanged]).decode  # type: ignore[type-var]  # no answer of the contract
_metadata = msgspec.json.Decoder(dict[str, str]).decode
_given = msgspec.json.Decoder(Given).decode


def _exchanged(settlements: Sequence[Settlement], plain: Sequence[Settlement], rows: Rows) -> Reply[Exchanged]:
    """Leases, and after them a row with all the rest."""
    reply: Any = _decode_exchanged(rows[-1][0])
    said = reply.answer
    settled = said.settled
    if plain:
        answers = said.plain or (Settled.APPLIED,) * len(plain)
        settled = _merged(settlements, answers, settled) if settled else answers
    answer = Exchanged(
        at=said.at,
        settled=settled,
        started=said.started,
        emptied=said.emptied,
        leases=tuple(map(_lease, rows[:-1])),
        next_due=said.next_due,
    )
    return Reply(reply.rings, answer, reply.walked)


def _merged(
    settlements: Sequence[Settlement], plain: Iterable[Settled], rest: Iterable[Settled]
) -> tuple[Settled, ...]:
    """The answers to both kinds, in the order in which the settlements were given."""
    plain, rest = iter(plain), iter(rest)
    return tuple(next(plain if _is_plain(settlement) else rest) for settlement in settlements)


def _lease(row: Sequence[Any]) -> Lease:
    """Three fields are more than text and numbers."""
    return Lease(  # type: ignore[call-arg]  # as many as there are fields
        *row[1:_METADATA],
        {} if row[_METADATA] is None else _metadata(row[_METADATA]),
        *row[_METADATA + 1 : _STATE],
        _STATES[row[_STATE]],
        *row[_STATE + 1 : _GIVEN],
        NOTHING_GIVEN if row[_GIVEN] is None else _given(row[_GIVEN]),
    )


_METADATA, _STATE, _GIVEN = (1 + Lease.__struct_fields__.index(name) for name in ("metadata", "state", "given"))
_STATES = {state.value: state for state in JobState}


def _enqueue(command: Enqueue) -> Call:
    groups = command.groups
    jobs = [job for group in groups for job in group.jobs]
    if not jobs or any(group.limits for group in groups):
        return careful_call_of(command)
    terms = _terms(jobs[0])
    if is_plain(jobs[0]) and all(_terms(job) == terms for job in jobs):
        shared = _encode(replace(jobs[0], id="", payload=b"")).decode()
        arguments = (shared, [job.id for job in jobs], [job.payload for job in jobs])
        return Call("enqueue_alike_1", arguments, lambda rows: _alike_answer(groups, rows[0][0]))
    if all(map(is_plain, jobs)):
        return Call("enqueue_plain_1", (_encode(jobs).decode(),), lambda rows: _plain_answer(groups, rows[0][0]))
    return careful_call_of(command)


def ringing(call: Call, mark: str) -> Call:
    """The same call, rung by the server where it can. `mark`: who rings."""
    if call.function != "enqueue_alike_1":
        return call
    return call._replace(function="enqueue_ringing_1", arguments=(*call.arguments, mark), rings=True)


def careful_call_of(command: Command[Any]) -> Call:
    """An enqueue that takes nobody's word for it that an id is new."""
    assert isinstance(command, Enqueue)
    return Call("enqueue_1", (_encode(_grouped(command.groups)).decode(), False), reader(Enqueue))


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
    return Call(function, (_encode(request).decode(),), reader(type(command)))


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


def _plain_answer(groups: tuple[Group, ...], text: str) -> Reply[Enqueued]:
    reply: Any = _decode_plain(text)
    return _all_created(groups, reply, reply.answer.states)


def _alike_answer(groups: tuple[Group, ...], text: str) -> Reply[Enqueued]:
    reply: Any = _decode_alike(text)
    return _all_created(groups, reply, repeat(reply.answer.state, len(reply.answer.arrivals)))


def _all_created(groups: tuple[Group, ...], reply: Any, states: Iterable[JobState]) -> Reply[Enqueued]:
    places = zip(reply.answer.arrivals, states, strict=True)
    answers = tuple(GroupAccepted(tuple(_created(job, *next(places)) for job in group.jobs)) for group in groups)
    return Reply(reply.rings, Enqueued(at=reply.answer.at, groups=answers))


def _created(job: NewJob, arrival: int, state: JobState) -> Accepted:
    return Accepted(status=EnqueueStatus.CREATED, id=job.id, state=state, arrival=arrival, generation=0)
