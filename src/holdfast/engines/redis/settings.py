"""The settings of the Redis engine: the table `[redis]`, or options in the address. Imports no driver."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.readers import boolean, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """`[redis]`. Every setting may also stand in the address: `redis://db.example/0?timeout=30`; the address wins."""

    table: ClassVar[str] = "redis"

    timeout: Annotated[float, seconds(0.1)] = 60.0
    """Seconds for one command. Ours take milliseconds: a server that does not answer for so long is stuck."""
    connect_timeout: Annotated[float, seconds(0.1)] = 10.0
    """Seconds for a new connection, login included."""
    notify: Annotated[bool, boolean] = True
    """Receive notifications. False: this process polls."""
