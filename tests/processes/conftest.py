"""Stores for tests of the engines whose processes share files."""

from pathlib import Path

import pytest
from host_stores import HostStore


@pytest.fixture(params=["sqlite", "file"])
def host_store(request: pytest.FixtureRequest, tmp_path: Path) -> HostStore:
    """An empty store."""
    return HostStore.of(request.param, tmp_path)
