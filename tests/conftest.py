"""What tests of every folder share: the run's PostgreSQL server, and empty stores on it.

Imported late, so that a run without PostgreSQL neither starts a server nor loads a driver.
"""

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from postgres import PostgresServer
    from postgres_stock import Store


@pytest.fixture(scope="session")
def postgres_server() -> "PostgresServer":
    """The server of this run: shared, fast, not to be stopped."""
    from postgres import server

    return server()


@pytest.fixture
def postgres_store(postgres_server: "PostgresServer") -> "Callable[[], Store]":
    """Answers an empty store, as often as it is called: address and namespace."""
    from postgres_stock import fresh_namespace

    return lambda: fresh_namespace(postgres_server)


@pytest.fixture(autouse=True)
def _stores_are_given_back() -> Iterator[None]:
    yield
    if (stocks := sys.modules.get("postgres_stock")) is not None:
        stocks.give_back_all()


@pytest.fixture(scope="session", autouse=True)
def _stores_are_dropped() -> Iterator[None]:
    yield
    if (stocks := sys.modules.get("postgres_stock")) is not None:
        stocks.drop_all()
