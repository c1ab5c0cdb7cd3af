"""The settings of the SQLite engine: the table `[sqlite]`. Imports no driver."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.readers import seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSettings:
    """`[sqlite]`."""

    table: ClassVar[str] = "sqlite"

    busy_timeout: Annotated[float, seconds()] = 10.0
    """Seconds to wait for the write lock."""
