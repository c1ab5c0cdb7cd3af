"""The settings of the Redis engine: the table `[redis]`, or options in the address. Imports no driver."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_origin, get_type_hints

from holdfast.errors import ConfigError, InvalidOption
from holdfast.readers import boolean, choice, seconds, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """`[redis]`. Every setting may also stand in the address: `redis://db.example/0?timeout=30`; the address wins."""

    table: ClassVar[str] = "redis"

    timeout: Annotated[float, seconds(0.1)] = 60.0
    """Seconds for one command. Ours take milliseconds: a server that does not answer for so long is stuck."""
    connect_timeout: Annotated[float, seconds(0.1)] = 10.0
    """Seconds for a new connection, login included."""
    cluster: Annotated[str | None, choice("queues", "namespace")] = None
    """In a cluster: a slot for each queue, or one slot for the namespace. None: `queues` in a cluster."""
    notify: Annotated[bool, boolean] = True
    """Receive notifications. False: this process polls."""
    replicas: Annotated[int, whole(0, 100)] = 0
    """Replicas that must have confirmed a write before the call returns."""
    replica_timeout: Annotated[float, seconds(0.001)] = 1.0
    """Seconds to wait for them. If they are late, the call raises OutcomeUnknown."""
    allow_eviction: Annotated[bool, boolean] = False
    """Accept a server that may delete jobs when its memory is full."""


def read_options(options: Mapping[str, str], place: str) -> dict[str, Any]:
    """The settings that stand in an address after `?`."""
    readers = {
        name: hint.__metadata__[0]
        for name, hint in get_type_hints(RedisSettings, include_extras=True).items()
        if get_origin(hint) is Annotated
    }
    values = {}
    for name, value in options.items():
        if name not in readers:
            raise ConfigError(
                f"The address of Redis at {place} has an unknown option `{name}`. Known: {', '.join(sorted(readers))}, "
                "and those of TLS, which begin with ssl_.",
                key="url",
            )
        try:
            values[name] = readers[name](value)
        except (ValueError, InvalidOption) as error:
            raise ConfigError(f"The address of Redis at {place}: `{name}` {error}", key="url") from error
    return values
