"""Stores for tests that all engines with a server share."""

import pytest
from postgres import PostgresServer
from postgres_stories import backends
from redis_server import RedisServer
from server_stores import ServerStore


@pytest.fixture(params=["postgres", "redis"])
def server_store(request: pytest.FixtureRequest) -> ServerStore:
    """An empty store on the run's server."""
    url, namespace = request.getfixturevalue(f"{request.param}_store")()
    if request.param == "redis":
        redis_server: RedisServer = request.getfixturevalue("redis_server")
        return ServerStore("redis", url, namespace, redis_server.port, redis_server.clients, "none")
    postgres_server: PostgresServer = request.getfixturevalue("postgres_server")
    return ServerStore("postgres", url, namespace, postgres_server.port, lambda: backends(postgres_server))
