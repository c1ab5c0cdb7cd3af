"""Bugs in users' transactions: the adapters of the drivers, and the transactions of a handler."""

from code_mutants.mutant import Mutant

T = "tests/services/transactions"
ENQUEUE, COMPLETE, SQLITE, POSTGRES, LEASE = (
    f"{T}/test_{name}.py" for name in ("enqueue", "complete", "sqlite", "postgres", "lease")
)

MUTANTS = (
    Mutant(
        "a transaction that is rolled back calls back all the same",
        "engines/sqlite/own_transaction.py",
        "        if commit:\n            self._notify(connection)",
        "        self._notify(connection)",
        "An event of a job is published that never was.",
        ("tests/services/transactions/test_callbacks.py",),
    ),
    Mutant(
        "a session that is rolled back keeps its callbacks",
        "transactions/sqlalchemy.py",
        "    session.info[CALLBACKS] = [one for one in session.info[CALLBACKS] if one[0] is not ended]",
        "    pass",
        "The next commit of the session publishes jobs that were rolled back.",
        ("tests/services/transactions/test_enqueue.py::test_a_session_publishes_a_new_job_only_after_its_commit",),
    ),
    Mutant(
        "a savepoint of a session calls back",
        "transactions/sqlalchemy.py",
        "    if savepoint is not None:",
        "    if False:",
        "A job is published before the transaction it belongs to is committed.",
        ("tests/services/transactions/test_enqueue.py::test_a_session_publishes_a_new_job_only_after_its_commit",),
    ),
    Mutant(
        "callbacks stay after the commit",
        "transactions/sqlalchemy.py",
        "registered, session.info[CALLBACKS] = session.info[CALLBACKS], []",
        "registered = session.info[CALLBACKS]",
        "Each commit of a session publishes the jobs of all commits before.",
        equivalent="The event after_transaction_end drops what is left of an ended transaction.",
    ),
    Mutant(
        "a session in autocommit mode is accepted",
        "transactions/sqlalchemy.py",
        'if getattr(connection_of(session).connection.dbapi_connection, "autocommit", False):',
        "if False:",
        "Each statement commits by itself, and nothing is atomic.",
        ("tests/services/transactions/test_postgres.py::test_a_session_without_transactions_is_refused",),
    ),
    Mutant(
        "a psycopg connection in autocommit mode is accepted",
        "transactions/psycopg.py",
        "if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:",
        "if False:",
        "Each statement commits by itself, and nothing is atomic.",
        (
            "tests/services/transactions/test_postgres.py::test_a_psycopg_connection_that_commits_by_itself_needs_a_block",
        ),
    ),
    Mutant(
        "another database of the same server is accepted",
        "transactions/postgresql.py",
        "SELECT (SELECT oid FROM pg_database WHERE datname = current_database())::text || '@' \"",
        "SELECT '1' || '@' \"",
        "A job is enqueued in a database that no worker reads.",
        ("tests/services/transactions/test_postgres.py::test_a_connection_to_another_database_is_refused",),
    ),
    Mutant(
        "another server with a database of the same number is accepted",
        "transactions/postgresql.py",
        '"|| (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text"',
        "\"|| ''\"",
        "A job is enqueued in a copy of the database that no worker reads.",
        ("tests/services/transactions/test_bounds.py::test_databases_of_two_servers_have_different_identities",),
    ),
    Mutant(
        "a store in another file is accepted",
        "engines/sqlite/user_transactions.py",
        "if not file or file_identity(file) != file_identity(self._store.path):",
        "if not file:",
        "A job is enqueued in a file that no worker reads.",
        ("tests/services/transactions/test_sqlite.py::test_a_connection_to_another_file_is_refused",),
    ),
    Mutant(
        "an old identity is trusted after a restart",
        "engines/postgres/user_transactions.py",
        "            await self._identify()\n            self._check(found)",
        "            if not self._identity:\n                await self._identify()\n            self._check(found)",
        "After a restart of the server every enqueue in a transaction is refused.",
        ("tests/engines/test_postgres_bounds.py::test_the_identity_of_the_database_is_read_again_after_a_restart",),
    ),
    Mutant(
        "a handler's transaction is committed after its timeout",
        "worker/transaction.py",
        "aborted = attempt.abort_reason in (AbortReason.TIMEOUT, AbortReason.OWNERSHIP_LOST)",
        "aborted = False",
        "The writes of an attempt that counts as timed out are stored, and written again by the next.",
        ("tests/services/transactions/test_complete.py::test_an_attempt_that_was_called_off_commits_nothing",),
    ),
    Mutant(
        "a settlement that was refused stays in the transaction",
        "worker/transaction.py",
        "            if answer.settled[0] is not SettleStatus.APPLIED:\n                raise LeaseLost",
        "            if False:\n                raise LeaseLost",
        "A worker that has lost its job commits the job's writes.",
        ("tests/services/transactions/test_complete.py::test_a_worker_that_has_lost_the_job_changes_nothing",),
    ),
    Mutant(
        "an uncommitted completion counts as committed",
        "worker/transaction.py",
        "committed = record is None or (settled and record.state is JobState.SUCCEEDED)",
        "committed = True",
        "A job whose completion was rolled back is never run again.",
        (
            "tests/services/transactions/test_complete.py::test_a_handler_that_raises_leaves_nothing_behind_and_is_tried_again",
        ),
    ),
    Mutant(
        "an interrupt that is returned commits",
        "worker/transaction.py",
        "if aborted or isinstance(value, Interrupt) or attempt.settlement is not None:",
        "if aborted or attempt.settlement is not None:",
        "The writes of an attempt that asks to run again are stored, and written again by the next.",
        equivalent="An interrupt cannot be encoded as a result, so the transaction is rolled back all the same.",
    ),
    Mutant(
        "a lease completed in a transaction is renewed",
        "lease.py",
        "        self._pull_worker.drop(self._attempt)\n        self._attempt.transaction_settlement = settlement",
        "        self._attempt.transaction_settlement = settlement",
        "The keeper waits for the lock of the user's transaction, or keeps a lease that is over.",
        ("tests/services/transactions/test_bounds.py::test_a_lease_completed_in_a_transaction_is_not_renewed",),
    ),
)
