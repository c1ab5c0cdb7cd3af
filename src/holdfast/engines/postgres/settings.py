"""The settings of the PostgreSQL engine: the table `[postgres]`. Imports no driver."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.readers import boolean, text, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSettings:
    """`[postgres]`."""

    table: ClassVar[str] = "postgres"
    secret_variables: ClassVar[tuple[str, ...]] = ("PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGSERVICEFILE")
    """Variables by which the driver finds a password. The processes of isolated handlers do not get them."""

    pool_size: Annotated[int, whole(1, 1_000)] = 10
    """Most connections per event loop."""
    notify: Annotated[bool, boolean] = True
    """Send notifications with NOTIFY. False: other processes poll."""
    pooled: Annotated[bool, boolean] = False
    """A proxy between client and server shares sessions among clients, such as PgBouncer in transaction mode."""
    listen_url: Annotated[str | None, text] = None
    """An address that bypasses the proxy, used for notifications only."""
