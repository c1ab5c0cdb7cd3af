"""Bugs in the rules of PostgreSQL: locks, waits, what is done in pieces, and what is kept or deleted."""

from code_mutants.mutant import Mutant

FAULTS = "tests/engines/test_postgres_faults.py"
WAITING = "tests/engines/test_postgres_waiting.py"
PLANS = "tests/engines/test_postgres_plans.py"
NOTIFICATIONS = "tests/engines/test_postgres_notifications.py"
SUITE = "tests/contract/suite.py"
MISSING = "tests/engines/test_postgres_missing.py"

MUTANTS = (
    Mutant(
        "a removal does not look at the counters that it deleted",
        "engines/postgres/rules/scopes.sql",
        "    IF v_left > 0 OR EXISTS (SELECT 1 FROM lane WHERE queue = p_queue) THEN",
        "    IF EXISTS (SELECT 1 FROM lane WHERE queue = p_queue) THEN",
        "The queue of a job that came meanwhile has lost its pool and counts one job too few.",
        (
            "tests/engines/test_removed_queues.py::test_a_removal_on_postgresql_is_taken_back_when_a_job_comes_meanwhile",
        ),
    ),
    # Plans
    Mutant(
        "a claim may sort",
        "engines/postgres/rules/settle.sql",
        "SET enable_sort = off SET enable_bitmapscan = off",
        "SET enable_bitmapscan = off",
        "With 22,500 to 45,000 jobs and no statistics a claim reads and sorts all of them.",
        (f"{PLANS}::test_no_plan_of_the_hot_path_depends_on_statistics",),
    ),
    # Waits
    Mutant(
        "a claim waits for a locked job",
        "engines/postgres/rules/claim.sql",
        "LIMIT least(p_shares[1], p_room) FOR UPDATE SKIP LOCKED",
        "LIMIT least(p_shares[1], p_room) FOR UPDATE",
        "One job in an open transaction stops the claims of its queue.",
        ("tests/engines/test_postgres_locked.py::test_a_claim_passes_a_locked_job_by",),
    ),
    Mutant(
        "a renewal waits for a locked job",
        "engines/postgres/rules/leases.sql",
        "WHERE j.token = a.token FOR UPDATE OF j SKIP LOCKED",
        "WHERE j.token = a.token FOR UPDATE OF j",
        "One job in an open transaction lets all leases of its worker expire.",
        ("tests/engines/test_postgres_locked.py::test_a_renewal_passes_a_locked_job_by",),
    ),
    Mutant(
        "a reaper waits for a locked job",
        "engines/postgres/rules/settle.sql",
        "AND token = s.token FOR UPDATE SKIP LOCKED;",
        "AND token = s.token FOR UPDATE;",
        "One job in an open transaction stops every reaper.",
        ("tests/engines/test_postgres_locked.py::test_a_reaper_passes_a_locked_job_by",),
    ),
    Mutant(
        "disowning waits for a locked job",
        "engines/postgres/rules/leases.sql",
        "owner = ANY (p_workers) FOR UPDATE SKIP LOCKED",
        "owner = ANY (p_workers) FOR UPDATE",
        "One job in an open transaction keeps the jobs of a dead worker from running again.",
        ("tests/engines/test_postgres_locked.py::test_a_dead_worker_is_disowned_except_for_a_locked_job",),
    ),
    Mutant(
        "promoting waits for a locked job",
        "engines/postgres/rules/claim.sql",
        "AND due <= p_now FOR UPDATE SKIP LOCKED;",
        "AND due <= p_now FOR UPDATE;",
        "One due job in an open transaction stops the claims of its queue.",
        ("tests/engines/test_postgres_locked.py::test_a_due_job_that_is_locked_is_promoted_later",),
    ),
    Mutant(
        "promoting waits for a locked lane",
        "engines/postgres/rules/claim.sql",
        "lane = v.lane FOR UPDATE SKIP LOCKED;\n            CONTINUE WHEN NOT FOUND;",
        "lane = v.lane FOR UPDATE;\n            CONTINUE WHEN NOT FOUND;",
        "One busy lane stops the claims of its queue.",
        ("tests/engines/test_postgres_locked.py::test_a_due_job_of_a_locked_lane_is_promoted_later",),
    ),
    Mutant(
        "pruning waits for a locked job",
        "engines/postgres/rules/prune.sql",
        "LIMIT p_limit FOR UPDATE OF j SKIP LOCKED",
        "LIMIT p_limit FOR UPDATE OF j",
        "One ended job in an open transaction stops every pruner.",
        ("tests/engines/test_postgres_locked.py::test_a_prune_passes_everything_by_that_is_locked",),
    ),
    Mutant(
        "pruning waits for a locked lane",
        "engines/postgres/rules/prune.sql",
        "lane = v.lane FOR UPDATE SKIP LOCKED;\n            CONTINUE WHEN NOT FOUND AND",
        "lane = v.lane FOR UPDATE;\n            CONTINUE WHEN NOT FOUND AND",
        "One busy lane stops every pruner.",
        ("tests/engines/test_postgres_locked.py::test_a_prune_leaves_a_job_of_a_locked_lane_for_later",),
    ),
    Mutant(
        "pruning waits for the record of a worker",
        "engines/postgres/rules/prune.sql",
        "            FOR UPDATE SKIP LOCKED\n        ) AS silent",
        "            FOR UPDATE\n        ) AS silent",
        "One heartbeat in an open transaction stops every pruner.",
        ("tests/engines/test_postgres_locked.py::test_a_prune_does_not_wait_for_another_one",),
    ),
    Mutant(
        "two prunes at once wait for each other",
        "engines/postgres/rules/prune.sql",
        "SELECT * INTO w FROM lane_cursor FOR UPDATE SKIP LOCKED;",
        "SELECT * INTO w FROM lane_cursor FOR UPDATE;",
        "A prune waits for the end of another one instead of leaving the lanes to it.",
        ("tests/engines/test_postgres_locked.py::test_a_prune_does_not_wait_for_another_one",),
    ),
    Mutant(
        "a call waits for a lock without limit",
        "engines/postgres/rules.py",
        'f" SET lock_timeout = {LOCK_WAIT_S * 1000:.0f}",',
        '"",',
        "A producer hangs behind the open transaction of another one.",
        (
            "tests/engines/test_postgres_locked.py::test_an_enqueue_waits_for_the_key_of_an_open_transaction_and_then_gives_up",
        ),
    ),
    # Losses
    Mutant(
        "the death of a handler's process is no loss on PostgreSQL",
        "engines/postgres/rules/settle.sql",
        "    IF v_reap OR s.loss THEN",
        "    IF v_reap THEN",
        "A job without a limit of attempts that kills its processes runs for ever.",
        ("tests/contract/suite.py::test_losses::test_an_owner_whose_handler_died_in_its_process_adds_a_loss_once",),
    ),
    Mutant(
        "an owner whose handler's process died takes the reaper's loss back on PostgreSQL",
        "engines/postgres/rules/settle.sql",
        " AND s.loss IS NOT TRUE",
        "",
        "A death that a reaper has counted is not counted in the end.",
        (
            "tests/contract/suite.py::test_losses::test_a_loss_that_a_reaper_has_counted_stays_if_the_process_of_the_handler_died",
        ),
    ),
    # Clear
    Mutant(
        "jobs of a queue that is being cleared are claimed",
        "engines/postgres/rules/settle.sql",
        "(paused OR clearing > v_now)",
        "paused",
        "Jobs run that an operator has cleared, while the chunks of the clear come.",
        (
            "tests/engines/test_postgres_clear.py::test_no_job_of_a_queue_is_claimed_while_it_is_cleared_and_new_ones_stay",
        ),
    ),
    Mutant(
        "a clear whose client has died stops its queue for ever",
        "engines/postgres/rules/scopes.sql",
        "VALUES (p_queue, p_now + c_wait)",
        "VALUES (p_queue, {{forever}})",
        "No job of the queue runs until an operator clears it again.",
        ("tests/engines/test_postgres_clear.py::test_a_clear_whose_client_went_away_stops_the_claims_for_ten_seconds",),
    ),
    Mutant(
        "the end of a clear notifies no worker",
        "engines/postgres/rules/scopes.sql",
        "AND clearing > 0;\n        IF FOUND THEN",
        "AND clearing > 0;\n        IF false THEN",
        "Jobs that arrived during the clear wait for the next poll.",
        ("tests/engines/test_postgres_clear.py::test_the_end_of_a_clear_in_chunks_notifies_the_workers",),
    ),
    Mutant(
        "a clear in chunks ends jobs that came after it began",
        "engines/postgres/rules/scopes.sql",
        "coalesce((p_request ->> 'up_to')::bigint, (SELECT last_value FROM arrival))",
        "(SELECT last_value FROM arrival)",
        "Under a steady stream of jobs a clear never ends, and cancels what came after it.",
        (
            "tests/engines/test_postgres_clear.py::test_no_job_of_a_queue_is_claimed_while_it_is_cleared_and_new_ones_stay",
        ),
    ),
    # Ends and prune
    Mutant(
        "an end that its lane has not processed is deleted",
        "engines/postgres/rules/prune.sql",
        "            AND NOT EXISTS (SELECT 1 FROM deferred AS c WHERE c.kind = 'end' AND c.queue = j.queue"
        " AND c.id = j.id)\n",
        "",
        "The lane of the job stands still for ever.",
        ("tests/engines/test_postgres_locked.py::test_an_end_that_its_lane_has_not_processed_is_kept",),
    ),
    Mutant(
        "the prune of an old job frees the key of a new one",
        "engines/postgres/rules/prune.sql",
        "AND u.unique_key = g.unique_key AND u.id = g.id",
        "AND u.unique_key = g.unique_key",
        "Two live jobs have one key.",
        ("tests/engines/test_postgres_locked.py::test_the_prune_of_a_job_leaves_its_key_to_the_job_that_has_taken_it",),
    ),
    Mutant(
        "the delete of an old job frees the key of a new one",
        "engines/postgres/rules/step.sql",
        "AND unique_key = j.unique_key AND id = j.id",
        "AND unique_key = j.unique_key",
        "Two live jobs have one key.",
        (
            "tests/contract/suite.py::test_unique_keys::test_deleting_an_earlier_job_does_not_free_the_key_of_a_later_one",
        ),
    ),
    Mutant(
        "the lanes of a pool are pruned",
        "engines/postgres/rules/prune.sql",
        " AND NOT is_pool_lane(queue, lane)",
        "",
        "A pool loses the fences and totals of its idle lanes.",
        ("tests/contract/suite.py::test_pools::test_prune_keeps_the_lanes_of_a_pool",),
    ),
    Mutant(
        "a prune looks at the first lanes only",
        "engines/postgres/rules/prune.sql",
        "UPDATE lane_cursor SET queue = v_queue, lane = v_lane WHERE",
        "UPDATE lane_cursor SET queue = '', lane = '' WHERE",
        "With more than a thousand lanes the later ones are never pruned.",
        ("tests/engines/test_postgres_locked.py::test_prunes_go_through_all_lanes_in_turn",),
    ),
    Mutant(
        "the tally is never folded",
        "engines/postgres/rules/prune.sql",
        "SELECT ctid FROM tally LIMIT p_lines",
        "SELECT ctid FROM tally LIMIT 0",
        "Every count adds up the rows of all calls there ever were.",
        ("tests/engines/test_postgres_locked.py::test_a_prune_folds_the_tally",),
    ),
    # Races
    Mutant(
        "producers with a depth limit do not wait for each other",
        "engines/postgres/rules/enqueue_locks.sql",
        "        ORDER BY 1\n    LOOP\n        PERFORM pg_advisory_xact_lock(v_lock);",
        "        ORDER BY 1\n    LOOP\n        NULL;",
        "Two producers at once overshoot the limit.",
        ("tests/contract/suite.py::test_limits::test_racing_callers_never_exceed_the_limit",),
    ),
    Mutant(
        "two callers learn that a queue ran empty",
        "engines/postgres/rules/scopes.sql",
        " WHERE q.emptied_at < excluded.emptied_at",
        "",
        "Two workers run the callback of one drain.",
        ("tests/engines/test_postgres_locked.py::test_of_two_callers_at_once_one_learns_that_a_queue_ran_empty",),
    ),
    Mutant(
        "an enqueue keeps the lock of the listeners",
        "engines/postgres/rules/fast_enqueue.sql",
        "v_has_listeners := NOT pg_advisory_unlock(v_lock);",
        "v_has_listeners := false;",
        "A process that begins to listen waits for the connection of a producer.",
        (
            "tests/engines/test_postgres_notifications.py::test_a_plain_enqueue_notifies_only_if_a_session_subscribes_to_queues",
        ),
    ),
    Mutant(
        "the second caller that waits for a job is not notified",
        "engines/postgres/rules/fast_settle.sql",
        "            AND j.lane IS NULL AND j.epoch = 0 AND NOT j.awaited AND cardinality(j.reply) < 2\n"
        "            AND (coalesce",
        "            AND j.lane IS NULL AND j.epoch = 0 AND NOT j.awaited AND cardinality(j.reply) < 3\n"
        "            AND (coalesce",
        "Of two callers that wait for one job the second learns of its end by polling.",
        (
            "tests/contract/suite.py::test_notifications::test_an_end_notifies_the_room_topic_and_every_caller_that_waits",
        ),
    ),
    Mutant(
        "a short claim with a cursor is not completed",
        "engines/postgres/rules/claim.sql",
        "v_stop IS NULL AND v_met = '{}' AND v_cursor = c_beginning;",
        "v_stop IS NULL AND v_met = '{}';",
        "Slots stay free although jobs wait that became ready before the cursor.",
        (
            "tests/engines/test_postgres_bounds.py::test_a_claim_that_finds_too_few_jobs_behind_its_cursor_looks_before_it",
        ),
    ),
    # Users' transactions
    Mutant(
        "a notification that is too long fails the user's transaction",
        "engines/postgres/rules/user_transactions.sql",
        "WHERE octet_length(lines_of('holdfast.topics')) BETWEEN 3 AND 7900",
        "WHERE octet_length(lines_of('holdfast.topics')) >= 3",
        "An enqueue to very many queues fails, because a payload of NOTIFY has at most 8,000 bytes.",
        (
            "tests/engines/test_postgres_bounds.py::test_an_enqueue_to_very_many_queues_does_not_fail_because_of_its_notification",
        ),
    ),
    Mutant(
        "a second enqueue of a transaction notifies the topics of the first again",
        "engines/postgres/rules/step.sql",
        "|| set_config('holdfast.topics', '', true)",
        "|| coalesce(current_setting('holdfast.topics', true), set_config('holdfast.topics', '', true))",
        "The notifications of a user's transaction grow with each of its enqueues.",
        ("tests/engines/test_postgres_bounds.py::test_each_enqueue_of_a_transaction_notifies_its_own_topics",),
    ),
    # Versions
    Mutant(
        "the rules of a live worker are dropped",
        "engines/postgres/rules/versions.sql",
        "        IF v_count > 0 THEN",
        "        IF false THEN",
        "The calls of every worker of the release before fail.",
        ("tests/engines/test_postgres_rules.py::test_a_version_that_a_live_worker_uses_is_kept_and_named",),
    ),
    # Losses
    Mutant(
        "a job that runs again notifies no worker, on PostgreSQL",
        "engines/postgres/rules/settle.sql",
        "IF j.due <= p_now OR v_reap THEN",
        "IF false THEN",
        "The job of a killed worker waits for the poll of another one.",
        (f"{SUITE}::test_notifications::test_a_settlement_after_which_a_job_runs_again_notifies_its_queue",),
    ),
    Mutant(
        "a plain success keeps the error of a death that was none",
        "engines/postgres/rules/fast_settle.sql",
        "lease_expires = NULL, loss_error = NULL, finished",
        "lease_expires = NULL, finished",
        "A job that has succeeded says that its worker died.",
        (f"{SUITE}::test_disown::test_the_error_of_a_death_ends_with_the_lease",),
    ),
    Mutant(
        "a disowned worker that lives keeps the error of its death",
        "engines/postgres/rules/leases.sql",
        "            loss_error = NULL\n",
        "            loss_error = j.loss_error\n",
        "A later loss of the job has the wrong cause.",
        (f"{SUITE}::test_disown::test_a_renewal_removes_the_error_of_a_death_that_was_none",),
    ),
    # Jobs that were deleted by hand
    Mutant(
        "a prune does not look for heads that are missing",
        "engines/postgres/rules/prune.sql",
        "    PERFORM repair_lane(queue, lane, p_now) FROM headless_lane\n    WHERE",
        "    PERFORM 1 FROM headless_lane\n    WHERE",
        "A lane whose head was deleted by hand stands still for ever.",
        (f"{MISSING}::test_a_prune_lets_a_lane_go_on_whose_head_is_missing",),
    ),
    Mutant(
        "a clear does not look for heads that are missing",
        "engines/postgres/rules/scopes.sql",
        "        PERFORM repair_lane(queue, lane, v_now) FROM headless_lane\n",
        "        PERFORM 1 FROM headless_lane\n",
        "A lane that was cleared takes jobs and gives none.",
        (f"{MISSING}::test_a_lane_whose_head_is_missing_can_be_cleared",),
    ),
    Mutant(
        "a lane goes on counting jobs that are missing",
        "engines/postgres/rules/lanes.sql",
        "            PERFORM recount_lane(j.queue, j.lane, 0, p_now);\n",
        "            NULL;\n",
        "A lane with a limit refuses jobs although it is empty.",
        (f"{MISSING}::test_missing_jobs_behind_the_head_do_not_stop_the_last_one",),
    ),
    Mutant(
        "a pool waits for a job of an older size that is missing",
        "engines/postgres/rules/missing.sql",
        "WHERE name = p_queue AND old_live > 0 RETURNING",
        "WHERE name = p_queue AND false RETURNING",
        "The jobs with a key of that pool never run again.",
        (f"{MISSING}::test_a_missing_job_of_an_older_size_does_not_hold_up_a_pool",),
    ),
    Mutant(
        "the children of a missing head wait for it",
        "engines/postgres/rules/missing.sql",
        "    PERFORM defer_children(p_queue, v_head, parent_arrival, 'failed') FROM (",
        "    PERFORM 1 FROM (",
        "They wait for ever.",
        (f"{MISSING}::test_the_end_of_a_missing_head_resolves_its_children",),
    ),
)
