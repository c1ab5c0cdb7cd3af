"""What `holdfast doctor` checks on a PostgreSQL server: one connection, statements that only read."""

import asyncpg

from holdfast.engines.postgres import failures
from holdfast.engines.postgres.connect import Connector
from holdfast.engines.postgres.schema import Schema
from holdfast.errors import ConfigError
from holdfast.model.findings import (
    CONNECTIONS,
    DURABILITY,
    PROXY,
    SCHEMA,
    TRANSACTIONS,
    VERSION,
    Finding,
    Report,
)

FULL = 0.8
"""The share of the server's connections in use from which on there is a warning."""
OLD_TRANSACTION_S = 600
"""Dead rows pile up behind a transaction that is older. Ours take milliseconds."""
MAX_NAMED = 3
POOLED_KEY = "postgres.pooled"
"""Of the error that says that a proxy shares sessions (`failures.shared_session`)."""

SERVER_SETTINGS = """
SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
       pg_is_in_recovery(), (SELECT sum(numbackends)::int FROM pg_stat_database)
"""
OLD_TRANSACTIONS = """
SELECT pid, coalesce(application_name, ''), coalesce(usename, ''), coalesce(state, 'unknown'),
       extract(epoch FROM clock_timestamp() - xact_start)::float
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND xact_start < clock_timestamp() - make_interval(secs => $1)
ORDER BY xact_start
"""


async def examine_server(
    connect: Connector, schema: Schema, place: str, durability: str, report: Report, *, oldest: int, listens: bool
) -> None:
    """Raises an error of the package if the server cannot be reached, or refuses a question."""
    try:
        connection = await connect()
    except ConfigError as error:
        _report_proxy(error, report)
        raise
    try:
        report(_version(connection, place, oldest))
        await _examine_proxy(connect, connection, report, listens=listens)
        try:
            async with connection.transaction(readonly=True):  # behind a proxy: all on one session
                await _examine_settings(connection, connect, durability, report)
                old = await connection.fetch(OLD_TRANSACTIONS, float(OLD_TRANSACTION_S))
        except failures.FAILURES as error:
            raise failures.of_opening(error, place) from error
        report(_transactions([tuple(row) for row in old]))
        report(await _schema(connection, schema))
    finally:
        connection.terminate()


def _version(connection: asyncpg.Connection, place: str, oldest: int) -> Finding:
    text = f"PostgreSQL {connection.get_settings().server_version.partition(' ')[0]}"
    if connection.get_server_version().major < oldest:
        return VERSION.problem(
            f"{text} at {place} is too old.", f"Holdfast needs PostgreSQL {oldest} or newer: upgrade the server."
        )
    return VERSION.ok(f"{text}.")


def _report_proxy(error: ConfigError, report: Report) -> None:
    if error.key == POOLED_KEY:
        report(PROXY.problem(str(error), "Without that setting calls fail, and settings reach other clients."))


async def _examine_proxy(connect: Connector, connection: asyncpg.Connection, report: Report, *, listens: bool) -> None:
    try:
        await connect.check_session(connection)
    except ConfigError as error:
        _report_proxy(error, report)
        raise
    if not connect.pooled:
        report(PROXY.ok("Each connection has a session of its own."))
    elif listens:
        report(
            PROXY.ok("A proxy shares sessions (`pooled = true`); notifications use the direct address `listen_url`.")
        )
    else:
        report(
            PROXY.note(
                "A proxy shares sessions (`pooled = true`). LISTEN does not work through it, so workers poll four "
                "times a second.",
                "Set `[postgres] listen_url` to a direct address of the server, and workers are notified.",
            )
        )


async def _examine_settings(
    connection: asyncpg.Connection, connect: Connector, durability: str, report: Report
) -> None:
    (row,) = await connection.fetch(SERVER_SETTINGS)
    fsync, full_pages, commit, most, in_recovery, used = row
    report(_durability(durability, fsync, full_pages, commit, pooled=connect.pooled, in_recovery=in_recovery))
    text = f"{used} of {most} connections are in use."
    if used >= FULL * most:
        report(
            CONNECTIONS.warning(
                f"{text} When all are, processes cannot start, and renewals fail after a lost connection.",
                "Raise max_connections, lower `[postgres] pool_size`, or put a proxy such as PgBouncer in between.",
            )
        )
    else:
        report(CONNECTIONS.ok(text))


def _durability(
    durability: str, fsync: str, full_pages: str, commit: str, *, pooled: bool, in_recovery: bool
) -> Finding:
    settings = f"(fsync {fsync}, full_page_writes {full_pages}, synchronous_commit {commit})"
    if in_recovery:
        return DURABILITY.problem(
            "The server is a standby: it accepts no writes.", "Use the address of the primary server."
        )
    if fsync == "off":
        return DURABILITY.problem(
            f"The server syncs nothing: a loss of power can destroy the whole database {settings}.",
            "Set fsync = on in postgresql.conf and restart the server.",
        )
    if full_pages == "off":
        return DURABILITY.warning(
            f"A loss of power can damage pages that are half written {settings}.",
            "Set full_page_writes = on, unless the file system writes whole pages (ZFS does).",
        )
    if durability == "fast":
        return DURABILITY.note(
            "fast: a loss of power, or a crash of the server, may take back the commits of the last moments "
            f"{settings}.",
            "Set durability = durable if no acknowledged job may be lost.",
        )
    if commit == "off" and pooled:
        return DURABILITY.problem(
            f"A commit does not wait for the disk {settings}, and behind a proxy Holdfast cannot change that.",
            "Run: ALTER ROLE … SET synchronous_commit = on, or set durability = fast.",
        )
    if commit == "off":
        return DURABILITY.ok(
            f"durable: the default of the server is not to wait for the disk {settings}; connections of Holdfast do."
        )
    return DURABILITY.ok(f"durable: a commit waits for the disk {settings}.")


def _transactions(old: list[tuple[object, ...]]) -> Finding:
    if not old:
        return TRANSACTIONS.ok("No transaction that this role can see is older than ten minutes.")
    named = [
        f"process {pid} ({name or 'no name'}, role {role}, {state}, {age:.0f} s)"
        for pid, name, role, state, age in old[:MAX_NAMED]
    ]
    more = f" and {len(old) - MAX_NAMED} more" if len(old) > MAX_NAMED else ""
    return TRANSACTIONS.warning(
        f"Old transactions keep the server from removing dead rows, so claims become slower: {', '.join(named)}{more}.",
        "End them in their program, or run SELECT pg_terminate_backend(PID). idle_in_transaction_session_timeout "
        "limits such transactions.",
    )


async def _schema(connection: asyncpg.Connection, schema: Schema) -> Finding:
    found, wanted = await schema.compare(connection)
    if wanted is not None:
        return SCHEMA.problem(
            f"The schema {schema.namespace!r} has {found}, this release needs {wanted}.",
            "Run: holdfast migrate. If jobs should be there, check the namespace.",
        )
    return SCHEMA.ok(f"The schema {schema.namespace!r} has {found}.")
