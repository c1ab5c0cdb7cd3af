"""An App on each engine there is, for what is shown end to end. Synced files are slow and shown elsewhere."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App


@pytest.fixture(params=["memory", "sqlite", "file", "postgres", "redis"])
def jobs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App[Any]]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    app: App[Any]
    if request.param in ("postgres", "redis"):
        url, namespace = request.getfixturevalue(f"{request.param}_store")()
        app = App(url, namespace=namespace)
    else:
        addresses = {"memory": "memory://", "sqlite": "sqlite:///jobs.db", "file": "file:jobs"}
        app = App(addresses[request.param], durability="none")
    yield app
    app.close()
