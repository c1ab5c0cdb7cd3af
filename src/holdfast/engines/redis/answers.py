"""Replies become answers: see `calls.py` for what a reply looks like.

An answer with jobs, byte strings or maps is read by hand. All others are read as their class, without its time.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from holdfast.engines.redis import records
from holdfast.model.command import A, Answer, Command
from holdfast.model.instants import At
from holdfast.model.observe import Find, FindAnswer, Get, GetAnswer, QueueStats, Stats, StatsAnswer
from holdfast.model.produce import (
    Accepted,
    Enqueue,
    EnqueueAnswer,
    EnqueueStatus,
    GroupAccepted,
    GroupAnswer,
    GroupConflict,
    GroupFull,
    GroupOrphan,
)
from holdfast.model.records import Totals
from holdfast.model.states import JobState
from holdfast.model.work import (
    Exchange,
    ExchangeAnswer,
    LaneName,
    Renew,
    RenewAnswer,
    RenewResult,
    SettleStatus,
    StartStatus,
)


class Head(NamedTuple):
    """What every reply begins with."""

    wall: int
    lease: int
    born: str
    tip: int
    begin: str
    answer: msgspec.Raw
    begun: tuple[str, ...] = ()
    """Names of the work that this call has begun and left unfinished (`unfinished.py`)."""
    repaired: tuple[tuple[str, str, str], ...] = ()
    """Queue, id and note of jobs whose record was missing or damaged (`state_repair.lua`)."""


_decode_head = msgspec.msgpack.Decoder(Head).decode


def decode(command: Command[A], values: Sequence[Any]) -> tuple[Head, A]:
    """The head of a reply, and the answer to the command."""
    head = _decode_head(values[0])
    at = At(head.wall, head.lease)
    hand_written = _DECODERS.get(type(command))
    if hand_written is not None:
        return head, hand_written(at, head.answer, values)
    body_type, answer_type = _types(type(command))
    fields: dict[str, Any] = {}
    if body_type.__struct_fields__:  # else the empty map was sent as a list
        fields = msgspec.structs.asdict(_decoder(body_type)(head.answer))
    return head, answer_type(at=at, **fields)  # type: ignore[return-value]  # the type that belongs to the command


@cache
def _types(command: type[Command[Any]]) -> tuple[type[Struct], type[Answer]]:
    """The answer that a command's type names, without and with its time."""
    (base,) = command.__orig_bases__  # type: ignore[attr-defined]  # every command is generic in its answer
    answer: type[Answer] = base.__args__[0]
    fields = [_with_default(field) for field in msgspec.structs.fields(answer) if field.name != "at"]
    return msgspec.defstruct(f"{answer.__name__}Body", fields, frozen=True, gc=False, kw_only=True), answer


def _with_default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.name, field.type, field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.name, field.type, msgspec.field(default_factory=field.default_factory)
    return field.name, field.type


@cache
def _decoder(of_type: Any) -> Callable[[Any], Any]:
    return msgspec.msgpack.Decoder(of_type).decode


# Answers by hand. A class here has the fields of an answer, with the numbers of byte strings in place of these.


class ExchangeBody(Struct, frozen=True, gc=False):
    settled: tuple[SettleStatus, ...] = ()
    started: tuple[StartStatus, ...] = ()
    emptied: tuple[LaneName, ...] = ()
    leases: tuple[int, ...] = ()
    next_due: int | None = None


def _exchange_answer(at: At, body: Any, values: Sequence[Any]) -> ExchangeAnswer:
    read: ExchangeBody = _decoder(ExchangeBody)(body)
    unpack = records.unpack_lease
    return ExchangeAnswer(
        at=at,
        settled=read.settled,
        started=read.started,
        emptied=read.emptied,
        leases=tuple([unpack(values[number]) for number in read.leases]),
        next_due=read.next_due,
    )


class AcceptedBody(Struct, frozen=True, gc=False):
    status: EnqueueStatus
    id: str
    state: JobState
    arrival: int
    generation: int
    position: int | None = None
    depth: int | None = None
    result: int | None = None
    codec: str = "json"
    lane: str | None = None


class GroupFullBody(Struct, frozen=True, gc=False, tag="full"):
    queue: str
    depth: int
    limit: int
    lane: str | None = None


GroupRefused = GroupFullBody | GroupConflict | GroupOrphan


class GroupAcceptedBody(Struct, frozen=True, gc=False, tag="accepted"):
    jobs: tuple[AcceptedBody, ...]


class EnqueueBody(Struct, frozen=True, gc=False):
    groups: tuple[GroupAcceptedBody | GroupRefused, ...]


def _enqueue_answer(at: At, body: Any, values: Sequence[Any]) -> EnqueueAnswer:
    read: EnqueueBody = _decoder(EnqueueBody)(body)
    return EnqueueAnswer(at=at, groups=tuple([_group(group, values) for group in read.groups]))


def _group(group: GroupAcceptedBody | GroupRefused, values: Sequence[Any]) -> GroupAnswer:
    if isinstance(group, GroupAcceptedBody):
        return GroupAccepted(tuple([_accepted(job, values) for job in group.jobs]))
    if isinstance(group, GroupFullBody):
        return GroupFull(group.queue, group.lane, group.depth, group.limit)
    return group


def _accepted(job: AcceptedBody, values: Sequence[Any]) -> Accepted:
    return Accepted(
        status=job.status,
        id=job.id,
        state=job.state,
        arrival=job.arrival,
        generation=job.generation,
        position=job.position,
        depth=job.depth,
        result=None if job.result is None else values[job.result],
        codec=job.codec,
        lane=job.lane,
    )


class JobsBody(Struct, frozen=True, gc=False):
    """Of `get` and `find`. In an answer to `get`, 0 stands for a job that does not exist."""

    jobs: tuple[int, ...] = ()
    cursor: int | None = None


def _get_answer(at: At, body: Any, values: Sequence[Any]) -> GetAnswer:
    numbers = _decoder(JobsBody)(body).jobs
    return GetAnswer(at=at, jobs=tuple([records.unpack_job(values[number]) if number else None for number in numbers]))


def _find_answer(at: At, body: Any, values: Sequence[Any]) -> FindAnswer:
    read: JobsBody = _decoder(JobsBody)(body)
    jobs = tuple([records.unpack_job(values[number]) for number in read.jobs])
    return FindAnswer(at=at, jobs=jobs, cursor=read.cursor)


class RenewBody(Struct, frozen=True, gc=False):
    jobs: tuple[RenewResult, ...] = ()


def _renew_answer(at: At, body: Any, values: Sequence[Any]) -> RenewAnswer:
    return RenewAnswer(at=at, jobs=_decoder(RenewBody)(body).jobs)


class QueueStatsBody(Struct, frozen=True, gc=False, kw_only=True):
    queue: str
    paused: bool
    counts: dict[JobState, int] = {}
    due: int
    oldest_due: int | None = None
    next_due: int | None = None
    totals: Totals
    ready_tasks: tuple[str, ...] = ()
    clearing: bool = False


class StatsBody(Struct, frozen=True, gc=False):
    queues: tuple[QueueStatsBody, ...] = ()


def _stats_answer(at: At, body: Any, values: Sequence[Any]) -> StatsAnswer:
    read: StatsBody = _decoder(StatsBody)(body)
    queues = [
        QueueStats(
            queue=one.queue,
            paused=one.paused,
            counts=one.counts,
            due=one.due,
            oldest_due=one.oldest_due,
            next_due=one.next_due,
            totals=one.totals,
            ready_tasks=one.ready_tasks,
            clearing=one.clearing,
        )
        for one in read.queues
    ]
    return StatsAnswer(at=at, queues=tuple(queues))


_DECODERS: dict[type[Command[Any]], Callable[[At, Any, Sequence[Any]], Any]] = {
    Enqueue: _enqueue_answer,
    Exchange: _exchange_answer,
    Renew: _renew_answer,
    Get: _get_answer,
    Find: _find_answer,
    Stats: _stats_answer,
}
