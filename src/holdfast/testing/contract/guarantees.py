"""The guarantees of an engine, which are the rows of the table, and the mark that assigns an example to one."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

import pytest

from holdfast.testing.async_tests import run_async_test

LIMIT_S = 300.0
"""Seconds of real time an example may take before it fails as hanging. The longest takes a few seconds."""

Example = Callable[..., Coroutine[Any, Any, None]]


class Guarantee(StrEnum):
    """A guarantee, in the order of the table."""

    WHOLE_GROUPS = "a group is enqueued whole or not at all"
    ONE_PER_ID = "one job per id"
    ONE_PER_KEY = "one job per unique key"
    DEPTH_LIMITS = "depth limits are exact"
    PARENTS = "a child waits for its parents"
    ORDER = "claims follow priority, due time, arrival"
    ONE_LEASE = "no job is leased twice at a time"
    FENCING = "only the current lease changes a job"
    ATTEMPTS = "attempts and losses are counted"
    DUE_TIMES = "nothing starts too early or too late"
    PREFETCH = "a prefetched job waits for its start"
    LEASES = "a lease lasts as long as it is renewed"
    RECOVERY = "the jobs of lost workers run again"
    CANCEL = "a cancelled job does not run again"
    OPERATING = "requeue, trigger, delete and amend work"
    PAUSE = "no job of a paused queue or lane is claimed"
    CLEAR = "clear ends every live job"
    REMOVE = "a queue is removed only if nothing is in it"
    LANES = "a lane runs in order, one at a time"
    EMPTIED = "an empty queue or lane is reported once"
    POOLS = "a pool keeps its size and its keys in order"
    WORKERS = "worker records and stop requests are stored"
    READING = "readers see the stored records"
    COUNTERS = "counts and totals are right"
    RETENTION = "a record is kept for its three lifetimes"
    HISTORY = "failed attempts are recorded"
    NOTIFICATIONS = "subscribers are notified"
    BAD_INPUT = "bad input is refused before it is written"
    OPEN_CLOSE = "open, close and the renewal connection work"
    TRANSACTIONS = "enqueue works in a user's transaction"
    DAMAGE = "one damaged change loses one job"


def guarantee(what: Guarantee) -> Callable[[Example], Callable[..., None]]:
    """Mark a coroutine function as an example of a guarantee, and let it run on the loop of its engine.

    Pytest gets an ordinary function, so the suite needs no async plugin and does not conflict with one.
    """

    def mark(example: Example) -> Callable[..., None]:
        @functools.wraps(example)
        def run(*, contract_runner: asyncio.Runner, **fixtures: Any) -> None:
            run_async_test(contract_runner, example(**fixtures), name=example.__name__, limit_s=LIMIT_S)

        signature = inspect.signature(example)
        runner = inspect.Parameter("contract_runner", inspect.Parameter.KEYWORD_ONLY)
        shown: Any = run
        shown.__signature__ = signature.replace(
            parameters=[*signature.parameters.values(), runner], return_annotation=None
        )
        marked: Callable[..., None] = pytest.mark.guarantee(what)(run)
        return marked

    return mark
