"""Every engine answers as the ledger would. The short form runs always, the long one with `make long`."""

from collections import Counter
from collections.abc import Callable
from math import ceil
from typing import Protocol

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.engine import Engine
from holdfast.testing.differential import differential
from holdfast.testing.differential.jobs import THEMES

SHORT = settings(
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
LONG = settings(SHORT, stateful_step_count=50, derandomize=False)

OFTEN = [
    "EnqueueStatus.CREATED",
    "EnqueueStatus.DUPLICATE",
    "EnqueueStatus.COMPLETED",
    "GroupFull",
    "GroupConflict",
    "GroupOrphan",
    "SettleStatus.APPLIED",
    "SettleStatus.CANCELLED_INSTEAD",
    "SettleStatus.LOST",
    "SettleStatus.GONE",
    "StartStatus.STARTED",
    "StartStatus.CANCEL",
    "StartStatus.LOST",
    "RenewStatus.HELD",
    "RenewStatus.LOST",
    "RenewStatus.CANCEL",
    "RenewStatus.HOLD",
    "CancelStatus.CANCELLED",
    "CancelStatus.REQUESTED",
    "CancelStatus.FINISHED",
    "CancelStatus.NOT_FOUND",
    "OperateStatus.DONE",
    "OperateStatus.WRONG_STATE",
    "OperateStatus.NOT_FOUND",
    "ExpiredLease",
    "LaneName",
    "PoolRecord",
    "Hold.LANE",
    "Hold.PARENTS",
    "AttemptOutcome.FAILED",
    "AttemptOutcome.TIMED_OUT",
    "AttemptOutcome.WORKER_LOST",
    "AttemptOutcome.CANCELLED",
    "Reason.CLEARED",
    "Reason.EXPIRED",
    "Reason.PARENT_FAILED",
    "Reason.WORKER_LOST",
    "JobState.SCHEDULED",
    "JobState.BLOCKED",
    "JobState.QUEUED",
    "JobState.ASSIGNED",
    "JobState.RUNNING",
    "JobState.RETRYING",
    "JobState.SUCCEEDED",
    "JobState.FAILED",
    "JobState.CANCELLED",
]
"""What any run of some length comes across."""

SELDOM = ["OperateStatus.KEY_TAKEN", "OperateStatus.QUEUE_FULL", "Hold.PAUSED", "StartStatus.HOLD", "WorkerRecord"]
"""What a long run comes across."""


def run(make_engine: Callable[[], Engine], how: settings, examples: int, audit_every: int = 1) -> Counter[str]:
    """Each theme for itself; what was seen in the answers."""
    seen: Counter[str] = Counter()
    each = settings(how, max_examples=ceil(examples / len(THEMES)))
    for theme in THEMES:
        machine = differential(make_engine, [theme], seen, audit_every=audit_every)
        run_state_machine_as_test(machine, settings=each)
    return seen


def unseen(seen: Counter[str], wanted: list[str]) -> list[str]:
    """What a run never met, and so says nothing about."""
    return [what for what in wanted if not seen[what]]


class Pace(Protocol):
    """See conftest.py."""

    short: int
    long: int
    audit_every: int


def test_an_engine_answers_as_the_ledger_would(make_engine: Callable[[], Engine], pace: Pace) -> None:
    run(make_engine, SHORT, pace.short, pace.audit_every)


def test_a_short_run_comes_across_nearly_everything(make_memory: Callable[[], Engine]) -> None:
    assert unseen(run(make_memory, SHORT, 200), OFTEN) == []


@pytest.mark.long
def test_an_engine_answers_as_the_ledger_would_for_long(make_engine: Callable[[], Engine], pace: Pace) -> None:
    assert unseen(run(make_engine, LONG, pace.long, pace.audit_every), OFTEN + SELDOM) == []
