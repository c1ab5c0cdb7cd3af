"""Bugs in the backend for Django's tasks."""

from code_mutants.mutant import Mutant

ENQUEUE, WORKER, ASYNC_TASKS, DECLARING, MANAGE = (
    f"tests/services/django/test_{name}.py" for name in ("enqueue", "worker", "async_tasks", "declaring", "manage")
)

MUTANTS = (
    Mutant(
        "an enqueue in atomic() is a write of its own",
        "django/backend.py",
        "transaction = connection if in_transaction(connection) else None",
        "transaction = None",
        "A job of a transaction that is rolled back runs.",
        (f"{ENQUEUE}::test_an_enqueue_in_atomic_is_rolled_back_with_it[postgres]",),
    ),
    Mutant(
        "a task is not checked when it is enqueued",
        "django/backend.py",
        "        self.validate_task(task)\n",
        "        self._backend_app.declare(task)\n",
        "A task that was made under other settings goes into a queue where no worker looks.",
        (f"{DECLARING}::test_a_task_that_was_made_under_other_settings_is_refused_at_its_enqueue",),
    ),
    Mutant(
        "a blocking method of Django's tasks checks for no event loop",
        "django/sync_code.py",
        "    return decorate\n",
        "    return lambda method: method\n",
        "Code that catches Django's SynchronousOnlyOperation meets another error, or its event loop stands still.",
        (f"{ENQUEUE}::test_blocking_methods_in_async_code_raise_djangos_error[sqlite]",),
    ),
    Mutant(
        "async code ignores the transaction of its sync caller",
        "django/backend.py",
        "        if _may_have_sync_caller():\n",
        "        if False:\n",
        "An async test of a TestCase leaves its jobs in the database.",
        (f"{ENQUEUE}::test_async_code_that_a_transaction_waits_for_takes_part_in_it[postgres]",),
    ),
    Mutant(
        "a Django connection in no transaction is accepted",
        "transactions/django.py",
        "        if not in_transaction(self._connection):\n            raise",
        "        if False:\n            raise",
        "The caller believes that the job depends on a commit.",
        (f"{ENQUEUE}::test_a_connection_in_no_transaction_is_refused",),
    ),
    Mutant(
        "a transaction that is marked for rollback completes its job",
        "django/atomic.py",
        "        if self._connection.needs_rollback:\n",
        "        if False:\n",
        "The job counts as done, and its writes are lost.",
        (f"{WORKER}::test_a_transaction_that_is_marked_for_rollback_does_not_complete_the_job",),
    ),
    Mutant(
        "the handler of transaction=True does not run in atomic()",
        "django/handler.py",
        "            _ = ctx.tx  #",
        "            pass  #",
        "The effects of a failed attempt stay.",
        (f"{WORKER}::test_the_effects_of_a_failed_attempt_are_rolled_back[sqlite]",),
    ),
    Mutant(
        "a retry fails if its earlier attempts cannot be read",
        "django/handler.py",
        "                with suppress(HoldfastError):\n                    job = backend_app",
        "                with suppress():\n                    job = backend_app",
        "A store that does not answer for a moment costs an attempt, only because its errors could not be shown.",
        (f"{WORKER}::test_a_retry_runs_if_its_earlier_attempts_cannot_be_read[sqlite]",),
    ),
    Mutant(
        "a retry is announced as the end of the job",
        "django/ends.py",
        "        app.on(events.Retrying)(self._forget)\n",
        "        app.on(events.Retrying)(self._ended)\n",
        "task_finished is sent for a job that will run again.",
        (f"{WORKER}::test_a_failed_job_is_finished_once_after_its_last_attempt[sqlite]",),
    ),
    Mutant(
        "the sync code of an async task runs in the thread that waits for the worker",
        "django/sync_code.py",
        "    AsyncToSync.executors.current = None  #",
        "    pass  #",
        "All async tasks fail in an async test that runs the worker with sync_to_async.",
        (
            f"{ASYNC_TASKS}::test_a_worker_that_async_code_runs_with_sync_to_async_runs_async_tasks[sqlite-async_to_sync]",
        ),
    ),
    Mutant(
        "a command that has succeeded ends the program that called it",
        "django/management/commands/holdfast.py",
        "            if end.code:  #",
        "            if True:  #",
        "A test of a Django project fails with SystemExit: 0 when it runs a worker with call_command.",
        (f"{MANAGE}::test_call_command_returns_if_a_command_succeeds_and_exits_if_it_fails",),
    ),
    Mutant(
        "the address of the database is kept",
        "core/connection.py",
        "        if self._url not in (None, url):\n",
        "        if False:\n",
        "Django's test runner enqueues into the real database.",
        (f"{DECLARING}::test_the_app_follows_the_database_that_django_uses",),
    ),
    Mutant(
        "the App of a backend is kept when the settings change",
        "django/backend_apps.py",
        "            self._by_alias.clear()\n",
        "            pass\n",
        "A test with override_settings writes into the namespace of the other tests.",
        (f"{DECLARING}::test_settings_with_other_options_have_another_app",),
    ),
    Mutant(
        "only the App of the settings is closed while a test database is dropped",
        "django/migrate.py",
        "        for backend_app in APPS.made():\n",
        "        for backend_app in [migrated]:\n",
        "Django's test runner fails if one of the tests has changed TASKS.",
        (f"{MANAGE}::test_djangos_test_runner_on_postgres_drops_its_database[psycopg2]",),
    ),
    Mutant(
        "the store stays open while a test database is dropped",
        "django/migrate.py",
        "                backend_app.app.close()\n        settings",
        "                pass\n        settings",
        "Django's test runner fails: the database is being accessed by other users.",
        (f"{MANAGE}::test_djangos_test_runner_on_postgres_drops_its_database[psycopg2]",),
    ),
)
