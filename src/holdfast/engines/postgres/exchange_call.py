"""The call of an exchange, the one hot verb: plain successes and claims go out as columns, leases come back as rows.

As JSON they would cost three times as much, in the server more than here (decision 0008).
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.engines.postgres.claim_cursor import Cursor
from holdfast.engines.postgres.fast_paths import NO_COLUMNS, columns_of, is_plain_success, plain_successes
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

EXCHANGE = "exchange"
"""The one function that returns rows; all others return one text."""


def exchange(command: Exchange, cursors: Mapping[str, Cursor], *, fast: bool, wait: bool = True) -> Call:
    """Plain successes and claims go as columns, all else as text.

    `wait` false: the server waits for no lock, and answers `busy` for what is locked.
    """
    rest = settlements = command.settlements
    plain = plain_successes(settlements) if fast and wait else ()
    if plain:
        rest = () if len(plain) == len(settlements) else tuple(s for s in settlements if not is_plain_success(s))
    return Call(
        EXCHANGE,
        (
            *(columns_of(plain) if plain else NO_COLUMNS),
            any(settlement.retention == 0 for settlement in plain),
            encode(rest).decode() if rest else None,
            any(settlement.lane is not None or settlement.listed_expiry is not None for settlement in rest),
            encode(command.starts).decode() if command.starts else None,
            *(_NO_CLAIM if command.claim is None else _claim(command.claim, cursors)),
            wait,
        ),
        lambda rows: _answer(settlements, plain, rows),
        takes_sender=True,
    )


_NO_CLAIM = (None,) * 14


def _claim(claim: Claim, cursors: Mapping[str, Cursor]) -> tuple[Any, ...]:
    """The terms of all queues stand in one list; queues with the same terms share their part of it."""
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
        [part for wanted in claim.queues for part in cursors.get(wanted.queue, _NO_CURSOR)] if cursors else None,
        [begin for begin, _ in begins_and_ends],
        [end for _, end in begins_and_ends],
        *(zip(*map(_TERMS, terms), strict=True) if terms else _NO_TERMS),
    )


_TERMS = attrgetter("task", "limit", "lease_len", "max_attempts", "max_losses")
_NO_TERMS: tuple[list[Any], ...] = ([],) * 5
_NO_CURSOR = (None,) * 3


class _Rest(Struct, frozen=True, gc=False):
    """An answer without its leases. `plain`: the statuses of the plain successes; None: all are applied."""

    at: At
    plain: tuple[SettleStatus, ...] | None
    settled: tuple[SettleStatus, ...]
    started: tuple[StartStatus, ...]
    emptied: tuple[LaneName, ...]
    next_due: int | None


_decode_rest = msgspec.json.Decoder(Reply[_Rest]).decode  # type: ignore[type-var]  # no answer of the contract
_metadata = msgspec.json.Decoder(dict[str, str]).decode
_given = msgspec.json.Decoder(Given).decode


def _answer(settlements: Sequence[Settlement], plain: Sequence[Settlement], rows: Rows) -> Reply[ExchangeAnswer]:
    """Leases, and after them a row with all the rest."""
    reply: Any = _decode_rest(rows[-1][-1])
    rest = reply.answer
    settled = rest.settled
    if plain:
        answers = rest.plain or (SettleStatus.APPLIED,) * len(plain)
        settled = _merged(settlements, answers, settled) if settled else answers
    answer = ExchangeAnswer(
        at=rest.at,
        settled=settled,
        started=rest.started,
        emptied=rest.emptied,
        leases=tuple(map(_lease, rows[:-1])),
        next_due=rest.next_due,
    )
    return Reply(reply.topics, answer, sent=reply.sent, scanned=reply.scanned)


def _merged(
    settlements: Sequence[Settlement], plain: Iterable[SettleStatus], rest: Iterable[SettleStatus]
) -> tuple[SettleStatus, ...]:
    """The answers to both kinds, in the order in which the settlements were given."""
    plain, rest = iter(plain), iter(rest)
    return tuple(next(plain if is_plain_success(settlement) else rest) for settlement in settlements)


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
