"""What the adapters of PostgreSQL's drivers share."""

from holdfast.errors import UsageError

IDENTITY = (
    "SELECT (SELECT oid FROM pg_database WHERE datname = current_database())::text || '@' "
    "|| (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text"
)
"""Which database of which running server: everybody may ask, and socket, TCP and a proxy give the same answer.

Another server has started at another microsecond, a copy of this one too. After a restart the answer changes: whoever
has kept an older one has to ask again before drawing a conclusion.
"""


def not_in_transaction(name: str, how: str) -> UsageError:
    return UsageError(
        f"This {name} is in no transaction: each statement would commit by itself, and nothing would be atomic. {how}"
    )
