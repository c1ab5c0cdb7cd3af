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
        (COMPLETE, SQLITE, ENQUEUE),
    ),
    Mutant(
        "a session that is rolled back keeps its callbacks",
        "transactions/sqlalchemy.py",
        "    if not session.in_nested_transaction():\n        session.info[CALLBACKS] = []",
        "    pass",
        "The next commit of the session publishes jobs that were rolled back.",
        (ENQUEUE,),
    ),
    Mutant(
        "a savepoint of a session calls back",
        "transactions/sqlalchemy.py",
        "    if session.in_nested_transaction():\n        return  # only a savepoint was released\n",
        "",
        "A job is published before the transaction it belongs to is committed.",
        (ENQUEUE,),
    ),
    Mutant(
        "callbacks stay after the commit",
        "transactions/sqlalchemy.py",
        "callbacks, session.info[CALLBACKS] = session.info[CALLBACKS], []",
        "callbacks = session.info[CALLBACKS]",
        "Each commit of a session publishes the jobs of all commits before.",
        (ENQUEUE,),
    ),
    Mutant(
        "a session in autocommit mode is accepted",
        "transactions/sqlalchemy.py",
        'if getattr(connection_of(session).connection.dbapi_connection, "autocommit", False):',
        "if False:",
        "Each statement commits by itself, and nothing is atomic.",
        (POSTGRES,),
    ),
    Mutant(
        "a psycopg connection in autocommit mode is accepted",
        "transactions/psycopg.py",
        "if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:",
        "if False:",
        "Each statement commits by itself, and nothing is atomic.",
        (POSTGRES,),
    ),
    Mutant(
        "another database of the same server is accepted",
        "transactions/postgresql.py",
        "SELECT (SELECT oid FROM pg_database WHERE datname = current_database())::text || '@' \"",
        "SELECT '1' || '@' \"",
        "A job is enqueued in a database that no worker reads.",
        (POSTGRES,),
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
        (SQLITE,),
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
        (COMPLETE,),
    ),
    Mutant(
        "a settlement that was refused stays in the transaction",
        "worker/transaction.py",
        "            if answer.settled[0] is not SettleStatus.APPLIED:\n                raise LeaseLost",
        "            if False:\n                raise LeaseLost",
        "A worker that has lost its job commits the job's writes.",
        (COMPLETE,),
    ),
    Mutant(
        "an uncommitted completion counts as committed",
        "worker/transaction.py",
        "committed = record is None or (settled and record.state is JobState.SUCCEEDED)",
        "committed = True",
        "A job whose completion was rolled back is never run again.",
        (COMPLETE,),
    ),
    Mutant(
        "an interrupt that is returned commits",
        "worker/transaction.py",
        "if aborted or isinstance(value, Interrupt) or attempt.settlement is not None:",
        "if aborted or attempt.settlement is not None:",
        "The writes of an attempt that asks to run again are stored, and written again by the next.",
        ("tests/services/transactions/test_bounds.py::test_an_interrupt_that_is_returned_commits_nothing",),
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
