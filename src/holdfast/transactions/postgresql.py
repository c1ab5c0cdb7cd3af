"""Shared by the adapters of PostgreSQL's drivers."""

from holdfast.errors import UsageError

IDENTITY = (
    "SELECT (SELECT oid FROM pg_database WHERE datname = current_database())::text || '@' "
    "|| (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text"
)
"""Identifies one database of one running server. Any role may run it; socket, TCP and a proxy give the same answer.

Another server, and a copy of this one, has started at another microsecond. After a restart the answer changes: a stored
answer must be read again before two are compared.
"""


def not_in_transaction(name: str, how: str) -> UsageError:
    return UsageError(
        f"This {name} is in no transaction: each statement would commit by itself, and nothing would be atomic. {how}"
    )
