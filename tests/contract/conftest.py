"""Runs the public suite on our own engines. A new engine is one more line in ENGINES."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import holdfast.testing.contract
from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.testing.contract.bench import DamageOneChange, EngineMaker, UserTransaction

SUITE = Path(holdfast.testing.contract.__file__).parent


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes an engine on an empty store, in a folder of its own if it likes; and says what only its author knows."""

    name: str
    make: Callable[[Path], Engine]
    transaction: Callable[[Engine], UserTransaction] | None = None
    damage: DamageOneChange | None = None


ENGINES = (
    Maker("memory", lambda folder: open_engine("memory://")),
    # What is tested here is behaviour; that commits are synced is tested in tests/engines.
    Maker("sqlite", lambda folder: open_engine(f"sqlite:///{folder}/jobs.db", durability="none")),
)


@pytest.fixture(params=ENGINES, ids=[maker.name for maker in ENGINES])
def make_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EngineMaker:
    maker: Maker = request.param
    return lambda: maker.make(tmp_path_factory.mktemp(maker.name))


@pytest.fixture
def user_transaction(engine: Engine, request: pytest.FixtureRequest) -> UserTransaction:
    maker: Maker = request.node.callspec.params["make_engine"]
    if maker.transaction is None:
        assert not engine.capabilities.joins_transactions, f"{maker.name} joins transactions: say here how to open one"
        pytest.skip(f"not offered: {maker.name} does not take part in transactions of its users")
    return maker.transaction(engine)


@pytest.fixture
def damage_one_change(request: pytest.FixtureRequest) -> DamageOneChange:
    maker: Maker = request.node.callspec.params["make_engine"]
    if maker.damage is None:
        pytest.skip(f"not offered: {maker.name} has no journal of changes to damage")
    return maker.damage


class Suite(pytest.File):
    """Stands for `suite.py` in a test's name, and holds the modules of the public suite."""

    def collect(self) -> Iterator[pytest.Collector]:
        for path in sorted(SUITE.glob("test_*.py")):
            yield pytest.Module.from_parent(self, path=path, name=path.stem, nodeid=f"{self.nodeid}::{path.stem}")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return Suite.from_parent(parent, path=file_path) if file_path.name == "suite.py" else None
