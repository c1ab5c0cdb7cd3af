"""The engines that the differential machine runs on. A new engine is one more line in ENGINES."""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.testing import FrozenRuntime

ENGINES: dict[str, Callable[[Path], Engine]] = {
    "memory": lambda folder: open_engine("memory://", runtime=FrozenRuntime()),
    "sqlite": lambda folder: open_engine(f"sqlite:///{folder}/jobs.db", runtime=FrozenRuntime(), durability="none"),
}


@pytest.fixture(params=sorted(ENGINES))
def make_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Engine]:
    """Makes an engine on an empty store, not opened yet."""
    make = ENGINES[request.param]
    return lambda: make(tmp_path_factory.mktemp(request.param))


@pytest.fixture
def make_memory() -> Callable[[], Engine]:
    """For what is said of the machine itself, whatever the engine."""
    return lambda: open_engine("memory://", runtime=FrozenRuntime())
