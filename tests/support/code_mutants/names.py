"""Bugs in the names of tasks and jobs: aliases, and the check of stored jobs against new code."""

from code_mutants.mutant import Mutant

ALIASES = "tests/services/worker/test_aliases.py"
CHECK = "tests/services/app/test_check.py"

MUTANTS = (
    Mutant(
        "jobs of an alias are not known to the worker that claims them",
        "worker/services.py",
        "self._plans = {name: plan for plan in plans for name in plan.names}",
        "self._plans = {plan.name: plan for plan in plans}",
        "Jobs of the old name are claimed and given back for ever.",
        (f"{ALIASES}::test_the_worker_is_known_to_have_all_names[memory]",),
    ),
    Mutant(
        "an alias is not claimed",
        "worker/claims.py",
        "    for name in plan.names:\n",
        "    for name in plan.names[:1]:\n",
        "Jobs of the old name wait for ever.",
        (f"{ALIASES}::test_a_claim_names_each_alias_and_shares_the_limit_of_the_task",),
    ),
    Mutant(
        "a name may belong to two tasks",
        "declare/registry.py",
        "if other is not None and other.name != task.name:",
        "if other is not None and other.name == task.name and other is not task:",
        "Which of two functions runs a job depends on the order of imports.",
        (f"{ALIASES}::test_a_name_belongs_to_one_task",),
    ),
    Mutant(
        "an alias that was removed stays",
        "declare/registry.py",
        "            del self._by_alias[alias]\n",
        "            pass\n",
        "A module that is loaded again goes on with names that its code no longer has.",
        (f"{ALIASES}::test_a_task_that_is_loaded_again_has_the_aliases_of_the_last_time",),
    ),
    Mutant(
        "a check migrates the store",
        "core/connection.py",
        "            process.engine.refuse_migration()\n",
        "            pass\n",
        "Code that is only to be checked alters the schema of production.",
        (f"{CHECK}::test_a_database_without_the_schema_is_not_migrated",),
    ),
    Mutant(
        "a check makes a store that is missing",
        "operate/checking.py",
        "    if store.is_missing:\n",
        "    if False:\n",
        "A wrong address is answered with: all jobs fit.",
        (f"{CHECK}::test_a_store_that_is_not_there_is_not_made",),
    ),
    Mutant(
        "a check reads only queued jobs",
        "operate/checking.py",
        "    JobState.SCHEDULED,\n",
        "",
        "Scheduled jobs fail after a deploy that the check has allowed.",
        (f"{CHECK}::test_what_does_not_fit_is_listed_and_nothing_is_written[memory]",),
    ),
    Mutant(
        "the pages of a check do not get smaller",
        "operate/checking.py",
        "min(MAX_PAGE_JOBS, fitting, 4 * self.page_jobs)",
        "min(MAX_PAGE_JOBS, 4 * self.page_jobs)",
        "A check of large payloads needs gigabytes.",
        (f"{CHECK}::test_large_payloads_make_small_pages",),
    ),
    Mutant(
        "a page of a large backlog sorts all of it",
        "engines/sqlite/state.py",
        "            if limit * rows_per_queued_job * ROW_COST < queued:\n",
        "            if False:\n",
        "A check of 200,000 queued jobs takes a minute instead of three seconds.",
        ("tests/engines/test_sqlite_plans.py::test_pages_of_a_large_backlog_are_read_from_the_table_and_are_the_same",),
    ),
    Mutant(
        "a worker starts with transactions that its store does not have",
        "worker/worker.py",
        "                refuse_transactions(app.engine, app.registry.values())\n",
        "",
        "Each attempt of the task fails, twenty times a job.",
        ("tests/services/worker/test_transaction_option.py",),
    ),
    Mutant(
        "a lost history is logged as a problem of the store",
        "service.py",
        "        if isinstance(error, HistoryLost):",
        "        if False:",
        "An operator reads of two problems where there is one.",
        ("tests/services/worker/test_outage.py::test_a_lost_history_is_logged_by_the_engine_alone",),
    ),
    Mutant(
        "a port without TLS is found out by the limit alone",
        "engines/redis/connect.py",
        "            if await _answers_without_tls(address):\n",
        "            if False:\n",
        "A wrong scheme in an address takes ten seconds, and looks like a server that is down.",
        (
            "tests/engines/test_redis_connection.py::"
            "test_tls_for_a_port_without_it_is_named_as_the_cause_long_before_the_limit",
        ),
    ),
)
