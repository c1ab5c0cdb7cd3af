"""Bugs in pulling: claims without a worker, streams of leases, the pull worker's upkeep."""

from code_mutants.mutant import Mutant

L = "tests/services/leases"
KEPT, STREAMS, LEASE, KILLED = (
    f"{L}/test_lease_kept.py",
    f"{L}/test_lease_streams.py",
    f"{L}/test_lease.py",
    f"{L}/test_lease_killed.py",
)
QUEUE = "tests/services/queues/test_queue.py"

MUTANTS = (
    Mutant(
        "a pulled lease is timed from its answer",
        "pull/leases.py",
        "LeasedAttempt(lease, pull_worker.plan_of(queue), sent_at)",
        "LeasedAttempt(lease, pull_worker.plan_of(queue), store.runtime.boot())",
        "A slow answer makes the caller believe that its lease lasts longer than it does.",
        ("tests/services/leases/test_lease_bounds.py::test_a_claimed_lease_lasts_from_when_its_claim_was_sent",),
    ),
    Mutant(
        "a waiting claim does not poll",
        "pull/leases.py",
        "await subscription.wait(min(left_s, poll_s))",
        "await subscription.wait(left_s)",
        "A lost notification makes a claim wait until its time is over.",
        ("tests/services/leases/test_lease_bounds.py::test_a_claim_that_waits_polls_in_case_a_notification_is_lost",),
    ),
    Mutant(
        "a waiting claim does not know the next due time",
        "pull/leases.py",
        "if answer.next_due is not None:",
        "if False:",
        "A job that falls due is found by the next poll only.",
        ("tests/services/leases/test_lease_bounds.py::test_a_claim_that_waits_wakes_when_the_next_job_falls_due",),
    ),
    Mutant(
        "a payload that cannot be read is left to its lease",
        "pull/leases.py",
        "await self._fail_undecodable(engine, pull_worker, attempt, why)",
        "pass",
        "Every claim gets the same damaged payload again, until it is a lost worker's.",
        (
            "tests/services/leases/test_lease_bounds.py::test_a_payload_of_unreadable_bytes_fails_and_the_next_one_is_claimed",
        ),
    ),
    Mutant(
        "a closed App is opened again by a claim that waited",
        "pull/leases.py",
        "if self._store.process is not process:",
        "if False:",
        "A program that has closed its App keeps a store open.",
        ("tests/services/leases/test_lease_streams.py::test_a_loop_that_waits_ends_when_the_app_is_closed",),
    ),
    Mutant(
        "every claim runs the upkeep",
        "pull/worker.py",
        "if woken or (at is not None and at <= now):",
        "if True:",
        "Each claim lists expired leases and prunes.",
        ("tests/services/leases/test_lease_bounds.py::test_the_upkeep_runs_only_what_is_due",),
    ),
    Mutant(
        "two threads run the upkeep at once",
        "pull/worker.py",
        "                self._next[service] = now + SECOND  # a claim in another thread must not run it too\n",
        "",
        "Claims of many threads all reap and prune.",
        ("tests/services/leases/test_lease_bounds.py::test_two_claims_at_once_run_the_upkeep_once",),
    ),
    Mutant(
        "the upkeep ignores a dead puller until the next reap",
        "pull/worker.py",
        "woken = service is self._reaper and self._reaper.woken",
        "woken = False",
        "The jobs of a killed puller wait for the next reap interval.",
        (
            "tests/services/leases/test_lease_bounds.py::test_a_dead_puller_s_leases_are_reaped_by_the_same_upkeep_that_finds_it",
        ),
    ),
    Mutant(
        "a failed upkeep fails the claim",
        "pull/worker.py",
        '            except EngineError as error:\n                _logger.info("The upkeep',
        '            except ZeroDivisionError as error:\n                _logger.info("The upkeep',
        "A claim raises because old records could not be pruned.",
        ("tests/services/leases/test_lease_bounds.py::test_an_upkeep_that_fails_does_not_fail_the_claim",),
    ),
    Mutant(
        "a closed puller stays on record",
        "pull/worker.py",
        "            if self._registered:\n                await self._engine.forget_worker(",
        "            if False:\n                await self._engine.forget_worker(",
        "Operators see pullers that are gone.",
        ("tests/services/leases/test_lease_bounds.py::test_a_puller_whose_app_is_closed_removes_its_record",),
    ),
    Mutant(
        "a lease past its fence looks sound",
        "lease.py",
        "if self._store.runtime.boot() - attempt.renewed_at >= fence_age(attempt.lease.lease_len):",
        "if False:",
        "Code that checks its lease works on while another process has the job.",
        ("tests/services/leases/test_lease.py::test_a_renewed_lease_is_as_long_as_it_was",),
    ),
    Mutant(
        "a renewed lease is timed from its answer",
        "lease.py",
        "attempt.renewed_at, attempt.sent_progress = sent_at, progress",
        "attempt.renewed_at, attempt.sent_progress = self._store.runtime.boot(), progress",
        "After a slow renewal the caller believes that its lease lasts longer than it does.",
        ("tests/services/leases/test_lease_bounds.py::test_a_renewed_lease_lasts_from_when_its_renewal_was_sent",),
    ),
    Mutant(
        "an error that ends the program costs an attempt",
        "lease.py",
        "return raised(self._attempt, error) if isinstance(error, Exception | Interrupt) else Released()",
        "return raised(self._attempt, error)",
        "Ctrl-C in a loop over leases uses up an attempt of its job.",
        ("tests/services/leases/test_lease.py::test_what_a_handler_may_raise_means_the_same_in_a_block_and_goes_on",),
    ),
    Mutant(
        "a lost lease settles quietly",
        "lease.py",
        "        if answer.settled[0] in (SettleStatus.LOST, SettleStatus.GONE):\n            self._lose()",
        "        if False:\n            self._lose()",
        "The caller believes that its result was stored.",
        ("tests/services/leases/test_lease_kept.py::test_settling_a_lost_lease_says_so_and_changes_nothing",),
    ),
)
