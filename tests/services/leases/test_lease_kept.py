"""Leases that are renewed in the background, asked to stop, lost, or that the store cannot be told of."""

import gc
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from eventually import eventually_now
from failing_engine import FailingEngine, fail_times
from scan_queue import Scan, lease_one

from holdfast import (
    Aborted,
    AbortReason,
    App,
    EngineUnavailable,
    Job,
    JobState,
    LeaseLost,
    OutcomeUnknown,
)
from holdfast.model.states import Reason
from holdfast.model.work import Exchange, Heartbeat
from holdfast.queue import Queue
from holdfast.runtime import SystemRuntime

SECOND = 1_000_000


def look(jobs: App[object], id: str = "a") -> Job:
    return jobs.control.get(id, queue="scans")


# Renewed in the background


def test_a_lease_in_a_block_is_renewed_in_the_background(jobs: App[object], scans: Queue[Scan]) -> None:
    with jobs:
        with lease_one(scans) as lease:
            before = lease.expires_at
            jobs.engine.clock_offset += 15 * SECOND
            eventually_now(lambda: lease.expires_at > before + timedelta(seconds=14))
            jobs.engine.clock_offset += 15 * SECOND
            eventually_now(lambda: lease.expires_at > before + timedelta(seconds=29))
            assert not lease.aborted
        assert jobs._pull_workers.current().slots.attempts == {}
        assert look(jobs).state is JobState.SUCCEEDED


def test_a_lease_outside_a_block_is_left_to_its_owner(jobs: App[object], scans: Queue[Scan]) -> None:
    with jobs:
        lease = lease_one(scans)
        assert jobs._pull_workers.current().slots.attempts == {}
        lease.release()


def test_a_lease_that_is_dropped_unsettled_is_renewed_no_more(
    jobs: App[object], scans: Queue[Scan], caplog: pytest.LogCaptureFixture
) -> None:
    with jobs:
        scans.enqueue(Scan("x"), id="a")
        for lease in scans.leases(until_empty=True):
            assert len(jobs._pull_workers.current().slots.attempts) == 1
            del lease
        assert jobs._pull_workers.current().slots.attempts == {}
        assert "dropped without being settled" in caplog.text
        assert look(jobs).state is JobState.RUNNING


def test_a_cancel_request_reaches_the_holder_of_the_lease(jobs: App[object], scans: Queue[Scan]) -> None:
    with jobs:
        lease = lease_one(scans)

        def work() -> None:
            with lease:
                lease.check()
                jobs.control.cancel("a", queue="scans")
                jobs._pull_workers.current().keeper.renew_now()
                eventually_now(lambda: lease.aborted)
                assert lease.abort_reason is AbortReason.CANCEL
                lease.check()

        with pytest.raises(Aborted):
            work()
        assert look(jobs).state is JobState.CANCELLED


def test_a_job_that_shall_be_cancelled_is_not_retried(jobs: App[object], scans: Queue[Scan]) -> None:
    lease = lease_one(scans)
    jobs.control.cancel("a", queue="scans")
    lease.retry("once more")
    assert look(jobs).state is JobState.CANCELLED


# Lost


def test_settling_a_lost_lease_says_so_and_changes_nothing(jobs: App[object], scans: Queue[Scan]) -> None:
    lease = lease_one(scans)
    scans.clear()
    with pytest.raises(LeaseLost) as lost:
        lease.complete("late")
    assert (lost.value.job_id, lost.value.queue) == ("a", "scans")
    for verb in (lease.complete, lease.retry, lease.release, lease.renew):
        with pytest.raises(LeaseLost):
            verb()
    job = look(jobs)
    assert (job.state, job.reason) == (JobState.CANCELLED, Reason.CLEARED)


def test_renewing_a_lost_lease_says_so(scans: Queue[Scan]) -> None:
    lease = lease_one(scans)
    scans.clear()
    with pytest.raises(LeaseLost):
        lease.renew()
    assert lease.abort_reason is AbortReason.OWNERSHIP_LOST


def test_a_block_whose_lease_was_lost_says_so_unless_it_fails_anyway(scans: Queue[Scan]) -> None:
    with pytest.raises(LeaseLost), lease_one(scans, "a"):
        scans.clear()

    def fails_anyway() -> None:
        with lease_one(scans, "b"):
            scans.clear()
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        fails_anyway()


def test_the_keeper_reports_a_lost_lease(jobs: App[object], scans: Queue[Scan]) -> None:
    def work() -> None:
        with lease_one(scans) as lease:
            scans.clear()
            jobs._pull_workers.current().keeper.renew_now()
            eventually_now(lambda: lease.aborted)
            assert lease.abort_reason is AbortReason.OWNERSHIP_LOST

    with jobs, pytest.raises(LeaseLost):
        work()


def test_another_puller_has_the_higher_fence_and_the_last_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_WORKER_REAP_INTERVAL", "0.001")
    url = f"sqlite:///{tmp_path}/jobs.db"
    slow, quick = App(url), App(url)
    with slow, quick:
        late = lease_one(slow.queue("scans", Scan))
        quick.engine.clock_offset += 31 * SECOND
        (lease,) = quick.queue("scans", Scan).claim(wait=20)
        assert (lease.attempt, lease.job.id) == (2, "a")
        assert lease.fence > late.fence
        with pytest.raises(LeaseLost):
            late.complete("late")
        lease.complete("in time")
        assert slow.client.handle("a", queue="scans").result() == "in time"


# The store in trouble


def test_a_verb_that_did_not_reach_the_store_may_be_tried_again() -> None:
    jobs, runtime = App("memory://"), SystemRuntime()
    engine = FailingEngine(runtime)
    with jobs.swapped(engine, runtime):
        scans = jobs.queue("scans", Scan)
        lease = lease_one(scans)
        engine.before = fail_times(1, Exchange, EngineUnavailable)
        with pytest.raises(EngineUnavailable):
            lease.complete(1)
        engine.after = fail_times(1, Exchange, lambda: OutcomeUnknown(verb="exchange"))
        with pytest.raises(OutcomeUnknown):
            lease.complete(2)
        lease.complete(3)
        assert jobs.client.handle("a", queue="scans").result() == 2  # the store had it


def test_a_claim_whose_answer_was_lost_is_asked_for_again() -> None:
    jobs, runtime = App("memory://"), SystemRuntime()
    engine = FailingEngine(runtime)
    with jobs.swapped(engine, runtime):
        scans = jobs.queue("scans", Scan)
        scans.enqueue(Scan("x"), id="a")
        engine.after = fail_times(2, Exchange, lambda: OutcomeUnknown(verb="exchange"))
        (lease,) = scans.claim()
        assert (lease.job.id, lease.attempt) == ("a", 1)
        lease.complete()


# The end


def test_an_app_without_references_stops_its_keeper() -> None:
    def pull() -> Callable[[float], bool]:
        jobs = App("memory://")
        scans = jobs.queue("scans", Scan)
        with lease_one(scans):
            keeper = jobs._pull_workers.current().keeper
        return keeper.wait_ended

    ended = pull()
    gc.collect()
    assert ended(20)


def test_a_puller_that_could_not_go_on_record_tries_again() -> None:
    jobs, runtime = App("memory://"), SystemRuntime()
    engine = FailingEngine(runtime)
    with jobs.swapped(engine, runtime):
        scans = jobs.queue("scans", Scan)
        scans.enqueue(Scan("x"), id="a")
        engine.before = fail_times(1, Heartbeat, EngineUnavailable)
        with pytest.raises(EngineUnavailable):
            scans.claim()
        (lease,) = scans.claim()
        lease.complete()
        assert len(jobs.control.workers()) == 1
