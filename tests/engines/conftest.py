"""Stores for tests that all engines with a server share."""

import pytest
from server_stores import ServerStore


@pytest.fixture(params=["postgres", "redis"])
def server_store(request: pytest.FixtureRequest) -> ServerStore:
    """An empty store on the run's server."""
    url, namespace = request.getfixturevalue(f"{request.param}_store")()
    port: int = request.getfixturevalue(f"{request.param}_server").port
    return ServerStore(request.param, url, namespace, port, "none" if request.param == "redis" else None)
