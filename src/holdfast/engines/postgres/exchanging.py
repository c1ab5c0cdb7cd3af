"""The exchange over the wire, the one hot verb: plain successes and claims go out as columns, leases come back as rows.

As JSON they would cost three times as much, in the server more than here (decision 0008).
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.engines.postgres.floors import Floor
from holdfast.engines.postgres.messages import Call, Reply, Rows, encode
from holdfast.model.instants import At
from holdfast.model.job import NOTHING_GIVEN, Given
from holdfast.model.states import JobState
from holdfast.model.work import (
    Claim,
    Exchange,
    ExchangeAnswer,
    LaneName,
    Lease,
    Settlement,
    SettleStatus,
    StartStatus,
    TaskClaim,
)


def exchange(command: Exchange, floors: Mapping[str, Floor]) -> Call:
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
            *(_columns(plain) if plain else _NONE_PLAIN),
            any(settlement.retention == 0 for settlement in plain),
            encode(rest).decode() if rest else None,
            any(settlement.lane is not None or settlement.listed_expiry is not None for settlement in rest),
            encode(command.starts).decode() if command.starts else None,
            *(_NO_CLAIM if command.claim is None else _claim(command.claim, floors)),
        ),
        lambda rows: _exchanged(settlements, plain, rows),
    )


def _columns(plain: Sequence[Settlement]) -> tuple[Sequence[Any], ...]:
    """One value stands for many like it: of a hundred jobs most have the same queue, result and terms. But not one id:
    there may be several jobs of that name, in several queues."""
    queues, ids, tokens, results, result_ttls, retentions = zip(*map(_PLAIN, plain), strict=True)
    return _short(queues), ids, tokens, _short(results), _short(result_ttls), _short(retentions)


def _short(values: Sequence[Any]) -> Sequence[Any]:
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
    plain: tuple[SettleStatus, ...] | None
    settled: tuple[SettleStatus, ...]
    started: tuple[StartStatus, ...]
    emptied: tuple[LaneName, ...]
    next_due: int | None


_decode_exchanged = msgspec.json.Decoder(Reply[_Exchanged]).decode  # type: ignore[type-var]  # no answer of the contract
_metadata = msgspec.json.Decoder(dict[str, str]).decode
_given = msgspec.json.Decoder(Given).decode


def _exchanged(settlements: Sequence[Settlement], plain: Sequence[Settlement], rows: Rows) -> Reply[ExchangeAnswer]:
    """Leases, and after them a row with all the rest."""
    reply: Any = _decode_exchanged(rows[-1][-1])
    said = reply.answer
    settled = said.settled
    if plain:
        answers = said.plain or (SettleStatus.APPLIED,) * len(plain)
        settled = _merged(settlements, answers, settled) if settled else answers
    answer = ExchangeAnswer(
        at=said.at,
        settled=settled,
        started=said.started,
        emptied=said.emptied,
        leases=tuple(map(_lease, rows[:-1])),
        next_due=said.next_due,
    )
    return Reply(reply.topics, answer, walked=reply.walked)


def _merged(
    settlements: Sequence[Settlement], plain: Iterable[SettleStatus], rest: Iterable[SettleStatus]
) -> tuple[SettleStatus, ...]:
    """The answers to both kinds, in the order in which the settlements were given."""
    plain, rest = iter(plain), iter(rest)
    return tuple(next(plain if _is_plain(settlement) else rest) for settlement in settlements)


def _lease(row: Sequence[Any]) -> Lease:
    """Three fields are more than text and numbers; what follows the last is for the row after all leases."""
    fields = [*row]
    del fields[-1]
    fields[_METADATA] = {} if fields[_METADATA] is None else _metadata(fields[_METADATA])
    fields[_STATE] = _STATES[fields[_STATE]]
    fields[_GIVEN] = NOTHING_GIVEN if fields[_GIVEN] is None else _given(fields[_GIVEN])
    return Lease(*fields)


_METADATA, _STATE, _GIVEN = map(Lease.__struct_fields__.index, ("metadata", "state", "given"))
_STATES = {state.value: state for state in JobState}
