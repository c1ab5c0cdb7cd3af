"""What is written because of what happened."""

from msgspec.structs import replace

from holdfast.model.instants import SECOND
from holdfast.model.job import NOTHING_GIVEN
from holdfast.model.outcome import (
    CancelledByHandler,
    GaveUp,
    NotRetryable,
    ProcessDied,
    Raised,
    Released,
    RetryRequested,
    Returned,
    Snoozed,
    TimedOut,
    decide,
    decide_loss,
)
from holdfast.model.retry import RetryPolicy, backoff, fixed
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import ExpiredLease, Lease, Settlement

INFO = ErrorInfo("builtins.ValueError", "no", "")
POLICY = RetryPolicy(max_attempts=3, backoff=fixed(10))
LEASE = Lease(
    queue="q", id="a", generation=0, task="t", payload=b"", codec="json", metadata={}, priority=0, lane=None,
    arrival=1, created=0, due=0, expires=None, state=JobState.RUNNING, attempt=1, losses=0, token="c.0", fence=1,
    lease_expires=0, lease_len=30 * SECOND, max_attempts=3, max_losses=5, started=0, given=NOTHING_GIVEN,
)  # fmt: skip
LOST = ExpiredLease(
    queue="q", id="a", task="t", token="c.0", owner="w", lease_expires=77, state=JobState.RUNNING, attempt=1,
    losses=0, max_attempts=3, max_losses=5, cancel_asked=False,
)  # fmt: skip


def decided(outcome: object, lease: Lease = LEASE, policy: RetryPolicy = POLICY) -> Settlement:
    return decide(
        outcome,  # type: ignore[arg-type]
        lease,
        policy,
        now=SECOND,
        draw=0.5,
        result_ttl=5,
        retention=6,
        failed_retention=7,
    )


def test_success_carries_its_result_and_clocks() -> None:
    settlement = decided(Returned(b"41"))
    assert (settlement.target, settlement.result) == (JobState.SUCCEEDED, b"41")
    assert (settlement.result_ttl, settlement.retention, settlement.refund) == (5, 6, False)


def test_an_error_with_attempts_left_is_retried_after_the_back_off() -> None:
    settlement = decided(Raised(ValueError("no"), INFO))
    assert (settlement.target, settlement.reason) == (JobState.RETRYING, Reason.ERROR)
    assert (settlement.delay, settlement.error, settlement.refund) == (10 * SECOND, INFO, False)


def test_the_last_allowed_attempt_that_fails_is_a_dead_letter() -> None:
    settlement = decided(Raised(ValueError("no"), INFO), replace(LEASE, attempt=3))
    assert (settlement.target, settlement.reason) == (JobState.FAILED, Reason.EXHAUSTED)
    assert (settlement.error, settlement.retention) == (INFO, 7)


def test_what_was_given_at_enqueue_wins_over_the_policy_of_the_code() -> None:
    for_ever = replace(LEASE, attempt=3, max_attempts=0)
    assert decided(Raised(ValueError(), INFO), for_ever).target is JobState.RETRYING
    once = replace(LEASE, max_attempts=1)
    assert decided(Raised(ValueError(), INFO), once).target is JobState.FAILED


def test_an_error_listed_in_give_up_on_is_not_retried() -> None:
    settlement = decided(Raised(ValueError(), INFO), policy=replace(POLICY, give_up_on=(ValueError,)))
    assert (settlement.target, settlement.reason) == (JobState.FAILED, Reason.GAVE_UP)


def test_retrying_ends_when_its_window_is_over() -> None:
    settlement = decided(Raised(ValueError(), INFO), policy=replace(POLICY, retry_for=10 * SECOND))
    assert (settlement.target, settlement.reason) == (JobState.FAILED, Reason.RETRY_WINDOW)


def test_a_timeout_counts_as_a_failure_and_keeps_its_name_at_the_end() -> None:
    assert (decided(TimedOut(INFO)).target, decided(TimedOut(INFO)).reason) == (JobState.RETRYING, Reason.TIMEOUT)
    last = decided(TimedOut(INFO), replace(LEASE, attempt=3))
    assert (last.target, last.reason) == (JobState.FAILED, Reason.TIMEOUT)


def test_a_handler_that_asks_for_a_retry_chooses_the_delay_and_pays_an_attempt() -> None:
    settlement = decided(RetryRequested("slow down", delay=3))
    assert (settlement.target, settlement.delay, settlement.refund) == (JobState.RETRYING, 3, False)
    assert (settlement.reason, settlement.note) == (Reason.RETRY_ASKED, "slow down")
    assert decided(RetryRequested(), replace(LEASE, attempt=3)).target is JobState.FAILED


# A5
def test_a_snooze_gives_the_attempt_back() -> None:
    settlement = decided(Snoozed(delay=4), replace(LEASE, attempt=3))
    assert (settlement.target, settlement.delay, settlement.refund) == (JobState.SCHEDULED, 4, True)
    assert decided(Snoozed(due=99)).due == 99


def test_giving_up_is_a_dead_letter_at_once() -> None:
    settlement = decided(GaveUp("card expired"))
    assert (settlement.target, settlement.reason, settlement.note) == (JobState.FAILED, Reason.GAVE_UP, "card expired")


def test_a_handler_may_cancel_its_own_job() -> None:
    settlement = decided(CancelledByHandler("withdrawn"))
    assert (settlement.target, settlement.note, settlement.retention) == (JobState.CANCELLED, "withdrawn", 6)


def test_a_release_costs_nothing() -> None:
    settlement = decided(Released())
    assert (settlement.target, settlement.refund, settlement.reason) == (JobState.QUEUED, True, Reason.RELEASED)


def test_what_cannot_be_run_at_all_fails_without_a_retry() -> None:
    settlement = decided(NotRetryable(Reason.UNDECODABLE, INFO))
    assert (settlement.target, settlement.reason, settlement.error) == (JobState.FAILED, Reason.UNDECODABLE, INFO)


def test_a_back_off_function_that_misbehaves_does_not_lose_the_job() -> None:
    settlement = decided(Raised(ValueError(), INFO), policy=replace(POLICY, backoff=backoff(lambda n, e: float("nan"))))
    assert (settlement.target, settlement.delay) == (JobState.RETRYING, SECOND)


def test_a_first_loss_is_retried_at_once_and_guarded_by_the_listed_expiry() -> None:
    settlement = decide_loss(LOST, POLICY, draw=0.5)
    assert (settlement.target, settlement.delay, settlement.refund) == (JobState.RETRYING, 0, False)
    assert (settlement.reason, settlement.listed_expiry) == (Reason.WORKER_LOST, 77)


# A7
def test_a_second_loss_waits_for_the_back_off_of_the_first() -> None:
    assert decide_loss(replace(LOST, losses=1), POLICY, draw=0.5).delay == 10 * SECOND
    assert decide_loss(replace(LOST, losses=1), None, draw=0.5).delay == SECOND


def test_a_loss_meets_the_cap_of_attempts() -> None:
    assert decide_loss(replace(LOST, attempt=3), POLICY, draw=0.5).target is JobState.FAILED


# A7
def test_losses_are_capped_even_when_attempts_are_not() -> None:
    for_ever = replace(LOST, max_attempts=0, attempt=900, losses=3)
    assert decide_loss(for_ever, POLICY, draw=0.5).target is JobState.RETRYING
    assert decide_loss(replace(for_ever, losses=4), POLICY, draw=0.5).target is JobState.FAILED


# A5
def test_a_loss_before_the_start_gives_the_attempt_back_and_still_counts_as_a_loss() -> None:
    assigned = replace(LOST, state=JobState.ASSIGNED, attempt=3)
    settlement = decide_loss(assigned, POLICY, draw=0.5)
    assert (settlement.target, settlement.refund) == (JobState.RETRYING, True)
    assert decide_loss(replace(assigned, losses=4), POLICY, draw=0.5).target is JobState.FAILED


# A12
def test_the_death_of_a_handlers_process_is_a_loss_that_its_owner_counts() -> None:
    settlement = decided(ProcessDied(INFO))
    assert (settlement.target, settlement.reason, settlement.loss) == (JobState.RETRYING, Reason.WORKER_LOST, True)
    assert (settlement.delay, settlement.error, settlement.refund) == (0, INFO, False)
    assert settlement.listed_expiry is None
    assert decided(ProcessDied(INFO), replace(LEASE, losses=1)).delay == 10 * SECOND


# A12
def test_deaths_are_capped_by_losses_and_by_attempts_and_keep_their_cause() -> None:
    for_ever = replace(LEASE, max_attempts=0, attempt=900, losses=3)
    assert decided(ProcessDied(INFO), for_ever).target is JobState.RETRYING
    for last in (replace(for_ever, losses=4), replace(LEASE, attempt=3)):
        settlement = decided(ProcessDied(INFO), last)
        assert (settlement.target, settlement.reason) == (JobState.FAILED, Reason.WORKER_LOST)
        assert (settlement.error, settlement.loss, settlement.retention) == (INFO, True, 7)


# A12
def test_a_death_is_not_subject_to_the_kinds_of_errors_of_the_policy() -> None:
    policy = replace(POLICY, retry_on=(), give_up_on=(BaseException,))
    assert decided(ProcessDied(INFO), policy=policy).target is JobState.RETRYING
