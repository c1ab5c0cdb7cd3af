"""Bugs in the checks of `holdfast doctor`."""

from code_mutants.mutant import Mutant

TASKS, FILES, STORE, POSTGRES, REDIS = (
    f"tests/services/doctor/test_doctor_{name}.py" for name in ("tasks", "files", "store", "postgres", "redis")
)
CLI = "tests/edges/test_cli_doctor.py"

MUTANTS = (
    Mutant(
        "doctor opens a store whose schema is missing",
        "doctor/examine.py",
        "    return not keeps_closed\n",
        "    return True\n",
        "A command that only looks makes tables in a database, or writes a suspect file store anew.",
        (f"{FILES}::test_a_schema_that_does_not_fit_is_a_problem_and_stays_as_it_is",),
    ),
    Mutant(
        "doctor opens a file store after a failed sync",
        "doctor/examine.py",
        "finding.check == DAMAGE.name and finding.level is Level.PROBLEM",
        "False",
        "The store is written anew by a command that only looks.",
        (f"{FILES}::test_a_failed_sync_is_a_problem_and_the_store_is_not_opened",),
    ),
    Mutant(
        "doctor exits with 0 if the store cannot be reached",
        "cli/doctor.py",
        "        return UNREACHABLE\n",
        "        return DONE\n",
        "A probe takes a store that does not answer for a sound one.",
        (f"{CLI}::test_without_a_store_it_says_so_checks_the_rest_and_makes_nothing",),
    ),
    Mutant(
        "doctor does not compare the grace with timeouts",
        "doctor/tasks.py",
        "task.policy.timeout > grace_s * SECOND",
        "False",
        "Each deploy aborts handlers, and nothing says so.",
        (f"{TASKS}::test_the_grace_is_compared_with_the_longest_timeout",),
    ),
    Mutant(
        "doctor takes a thread for something that can be stopped",
        "doctor/tasks.py",
        "self.is_async or self.policy.isolate is not None",
        "True",
        "A timeout without effect is called fine.",
        (f"{TASKS}::test_a_plain_task_with_a_timeout_cannot_be_stopped",),
    ),
    Mutant(
        "doctor counts a manager as a worker",
        "doctor/workers.py",
        "if worker.alive and not worker.is_manager]",
        "if worker.alive]",
        "A manager without workers looks like a live worker.",
        (f"{STORE}::test_a_manager_is_no_worker",),
    ),
    Mutant(
        "a stopped child of a manager counts as lost",
        "operate/overview.py",
        "        if one.worker in managers and one.worker not in live and one.worker not in ended:",
        "        if False:",
        "The operator waits for a replacement that never comes: the process is alive.",
        (f"{STORE}::test_a_stopped_child_of_a_live_manager_is_a_warning",),
    ),
    Mutant(
        "a queue without a worker is open until its jobs are due",
        "operate/overview.py",
        "    if waiting and not queue.takers(workers):",
        "    if queue.due and not queue.takers(workers):",
        "After the only worker of a queue was killed, nothing says so while its jobs wait for a retry.",
        ("tests/edges/test_cli_waits_for.py::test_a_queue_without_a_worker_is_marked_before_its_jobs_are_due",),
    ),
    Mutant(
        "doctor accepts a clock that is behind",
        "doctor/clocks.py",
        "abs(reading.ahead_us) > ALLOWED_US",
        "reading.ahead_us > ALLOWED_US",
        "Times of this host are wrong, and the clocks are called equal.",
        (f"{STORE}::test_the_clocks_of_host_and_store_are_compared",),
    ),
    Mutant(
        "doctor does not notice records in another folder",
        "doctor/workers.py",
        "not worker.process or worker.process not in known",
        "not worker.process",
        "Services with a private /tmp wait for leases, and nothing says why.",
        (f"{STORE}::test_a_worker_whose_record_is_in_another_folder_is_not_seen",),
    ),
    Mutant(
        "doctor takes an evicting server for a sound one",
        "engines/redis/examine.py",
        "    if policy == NO_EVICTION:\n",
        "    if policy:\n",
        "Redis deletes jobs, and doctor says that it does not.",
        (f"{REDIS}::test_a_server_that_evicts_is_a_problem_and_refused",),
    ),
    Mutant(
        "doctor does not look at fsync",
        "engines/postgres/examine.py",
        '    if fsync == "off":\n',
        '    if fsync == "never":\n',
        "A server that can lose the whole database is called durable.",
        (f"{POSTGRES}::test_a_server_that_syncs_nothing_is_a_problem",),
    ),
    Mutant(
        "doctor calls a reserve in use enough space",
        "engines/disk_checks.py",
        "    if status is not None and status.size == 0:\n",
        "    if status is None:\n",
        "No job is accepted, and doctor sees enough space.",
        (f"{FILES}::test_a_reserve_in_use_is_a_problem",),
    ),
    Mutant(
        "doctor trusts every version of SQLite",
        "engines/sqlite/examine.py",
        "version >= SOUND_SINCE or",
        "True or",
        "Versions that can lose data are called sound.",
        (f"{FILES}::test_versions_with_the_race_of_two_checkpoints",),
    ),
    Mutant(
        "doctor does not look who can write the files",
        "engines/disk_checks.py",
        "if mode & OTHERS_WRITE and not",
        "if False and not",
        "Every user of the host can change jobs, and nothing says so.",
        (f"{FILES}::test_others_who_can_write_are_a_problem",),
    ),
)
