"""A store with a table of the user's beside the jobs, for tests of transactions."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from user_transactions import Store

    from holdfast import App


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> "Iterator[Store]":
    """Which kind, the test says by a parameter; without one, SQLite."""
    from user_transactions import Store

    if getattr(request, "param", "sqlite") == "sqlite":
        found = Store("sqlite", f"sqlite:///{tmp_path}/shop.db", f"{tmp_path}/shop.db")
    else:
        url, namespace = request.getfixturevalue("postgres_store")()
        found = Store("postgres", url, url, namespace)
    yield found
    found.close()


@pytest.fixture
def jobs(store: "Store") -> "Iterator[App[Any]]":
    app = store.app()
    app.open()
    yield app
    app.close()
