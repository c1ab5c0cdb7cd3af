"""Calls for the common case: jobs that cannot conflict with a stored one, and plain successes.

They are optimisations. What they do, the general functions do as well, and the engine's switch `fast_paths` turns
every one of them off: these calls, `rules/fast_*.sql`, and the cursor of a claim (`claim_cursor.py`). The contract
suite and the differential machine run with the switch in both positions."""

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engines.postgres.messages import Call, Reply, encode
from holdfast.model.instants import At
from holdfast.model.produce import Accepted, Enqueue, EnqueueAnswer, EnqueueStatus, Group, GroupAccepted, NewJob
from holdfast.model.states import JobState
from holdfast.model.work import Settlement

FRESH_ID_FUNCTIONS = ("enqueue_alike", "enqueue_fast")
"""Functions that do not look up ids that producers call fresh. If one is stored, the insert fails and `enqueue` is
called instead."""

# Enqueue


def enqueue(command: Enqueue) -> Call | None:
    """The call for jobs none of which can conflict; None: one of them may."""
    groups = command.groups
    jobs = [job for group in groups for job in group.jobs]
    if not jobs or any(group.limits for group in groups):
        return None
    first = jobs[0]
    terms = _terms(first)
    if is_plain(first) and all(_terms(job) == terms for job in jobs):
        other = None if terms[2:] == _DEFAULT_TERMS else encode(replace(first, id="", payload=b"")).decode()
        arguments = (first.queue, first.task, other, [job.id for job in jobs], [job.payload for job in jobs])
        return Call("enqueue_alike", arguments, lambda rows: _alike_answer(groups, rows[0][0]), takes_sender=True)
    if all(map(is_plain, jobs)):
        return Call("enqueue_fast", (encode(jobs).decode(),), lambda rows: _plain_answer(groups, rows[0][0]))
    return None


def is_plain(job: NewJob) -> bool:
    """True if no stored job can conflict: generated id, no key, lane, pool or parents."""
    return job.fresh_id and job.lane is None and job.pool is None and job.unique_key is None and not job.parents


_terms = attrgetter(
    "queue", "task", *(name for name in NewJob.__struct_fields__ if name not in ("queue", "task", "id", "payload"))
)
"""What jobs of one call often have in common: everything but id and payload."""
_DEFAULT_TERMS = _terms(NewJob(queue="", id="", fresh_id=True))[2:]
"""All terms but queue and task, where the producer has given none."""


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
    answers, end = [], 0
    for group in groups:
        end, start = end + len(group.jobs), end
        answers.append(GroupAccepted(tuple(created[start:end])))
    answer = EnqueueAnswer(at=reply.answer.at, groups=tuple(answers))
    return Reply(reply.topics, answer, reply.has_listeners, reply.sent)


# Settle


def plain_successes(settlements: Sequence[Settlement]) -> Sequence[Settlement]:
    """Those that the fast path may settle. None if one job stands twice: those are settled in the order given."""
    plain = [settlement for settlement in settlements if is_plain_success(settlement)]
    if plain and len({(settlement.queue, settlement.id) for settlement in settlements}) < len(settlements):
        return ()
    return plain


def is_plain_success(settlement: Settlement) -> bool:
    """A success with nothing special about it, as far as the client can see."""
    return (
        settlement.target is JobState.SUCCEEDED
        and settlement.reason is None
        and not settlement.note
        and not settlement.refund
        and settlement.lane is None
        and settlement.listed_expiry is None
        and settlement.progress is None
    )


def columns_of(plain: Sequence[Settlement]) -> tuple[Sequence[Any], ...]:
    """Columns of `exchange`. Where all values of a column are the same, one stands for all: of a hundred jobs most
    have the same queue, result and terms. But not one id: jobs of several queues may share it."""
    queues, ids, tokens, results, result_ttls, retentions = zip(*map(_PLAIN, plain), strict=True)
    return _short(queues), ids, tokens, _short(results), _short(result_ttls), _short(retentions)


def _short(values: Sequence[Any]) -> Sequence[Any]:
    return values[:1] if len(values) > 1 and values.count(values[0]) == len(values) else values


_PLAIN = attrgetter("queue", "id", "token", "result", "result_ttl", "retention")
NO_COLUMNS = (None,) * 6
