"""What a worker does with its leases when it ends.

A worker that was asked to stop releases what still runs: that costs no attempt. A worker that ends because of an error
of its own does not know which job is the cause. So it disowns the jobs that still run: a reaper counts a loss for each,
and a job that ends its workers ends after `max_losses` (decision 0018).
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.context import AbortReason
from holdfast.engine import Engine
from holdfast.model.check import MAX_SETTLEMENTS
from holdfast.model.instants import Seconds
from holdfast.model.outcome import Released, decide
from holdfast.model.text import shown
from holdfast.model.work import Settlement, SettleStatus
from holdfast.worker.attempt import LeasedAttempt

RELEASE_TIMEOUT_S: Seconds = 5.0
"""Releasing what still runs must end within this time: another transaction may have locked a job."""

_logger = logging.getLogger("holdfast.worker")


class Rest(NamedTuple):
    """How many leases the worker has settled or released at its end, and how many of them it could not."""

    released: int
    left: int


async def release_rest(engine: Engine, worker: str, attempts: Iterable[LeasedAttempt], *, failed: bool) -> Rest:
    """Settle and release all that the worker still holds. `failed`: disown what still runs."""
    settlements: list[Settlement] = []
    disowned = released = 0
    for attempt in attempts:
        if attempt.abort_reason is AbortReason.OWNERSHIP_LOST and attempt.settlement is None:
            continue
        if attempt.used_transactions is not None:
            attempt.used_transactions.abandon()
        if attempt.settlement is None:
            if failed and attempt.began_at is not None:
                disowned += 1
                continue
            _logger.warning(
                "Job %s (%s) still runs; it is released.", shown(attempt.lease.id), shown(attempt.lease.task)
            )
            attempt.settlement = decide(Released(), attempt.lease, attempt.plan.policy.retry, now=0, draw=0.0)
        settlements.append(attempt.settlement)
    try:
        async with asyncio.timeout(RELEASE_TIMEOUT_S):  # PF1: stopping waits for no lock without a limit
            for start in range(0, len(settlements), MAX_SETTLEMENTS):
                released += await _release(engine, settlements[start : start + MAX_SETTLEMENTS])
            if disowned:
                _logger.error("The worker ends by an error of its own; its %d running jobs count a loss.", disowned)
                await engine.disown(worker)
                disowned = 0
    except Exception as error:
        left = len(settlements) - released + disowned
        _logger.error("%d jobs could not be released: %r Their leases will expire.", left, error)
    return Rest(released, len(settlements) - released + disowned)


async def _release(engine: Engine, settlements: Sequence[Settlement]) -> int:
    """How many of them the engine has applied or refused for good."""
    answer = await engine.settle(*settlements)
    for settlement, status in zip(settlements, answer.settled, strict=True):
        if status is SettleStatus.BUSY:
            _logger.error(
                "Job %s cannot be released, because another transaction has locked it. Its lease will expire.",
                shown(settlement.id),
            )
    return sum(status is not SettleStatus.BUSY for status in answer.settled)
