"""Stores for tests with processes."""

from pathlib import Path

import pytest
from host_stores import HostStore
from steady_workers import Store


@pytest.fixture(params=["sqlite", "file"])
def host_store(request: pytest.FixtureRequest, tmp_path: Path) -> HostStore:
    """An empty store."""
    return HostStore.of(request.param, tmp_path)


@pytest.fixture(params=["sqlite", "file", "postgres", "redis"])
def steady_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    """An empty store, of each engine that processes share; for the worker processes of `steady_workers`."""
    return Store.of(request.param, request, monkeypatch, tmp_path)
