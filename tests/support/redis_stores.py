"""Empty stores for single tests on a Redis server: a namespace that no test has used, removed after the test."""

import os
import secrets
from typing import NamedTuple

from redis_server import RedisServer


class Store(NamedTuple):
    url: str
    namespace: str


_lent: list[tuple[RedisServer, str]] = []


def fresh_namespace(server: RedisServer) -> Store:
    """An empty store for one test: address and namespace. Its keys are removed when the test has ended.

    A shared server keeps nothing, so an engine on it must be given `durability="none"`.
    """
    name = f"t{os.getpid()}_{secrets.token_hex(4)}"
    _lent.append((server, name))
    return Store(server.url(), name)


def keys_of(server: RedisServer, namespace: str) -> list[bytes]:
    """Every key of a namespace, with and without a hash tag around the name."""
    return list(server.client.scan_iter(match=f"*{namespace}*", count=10_000))


def remove_all() -> None:
    """Remove what the test has left in its namespaces, on servers that still run."""
    while _lent:
        server, namespace = _lent.pop()
        if server.own and server.pid is None:
            continue
        found = keys_of(server, namespace)
        for first in range(0, len(found), 1_000):
            server.execute("UNLINK", *found[first : first + 1_000])
