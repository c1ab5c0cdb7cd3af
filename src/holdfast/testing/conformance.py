"""Fixtures of the conformance suite `holdfast.testing.contract`: the engines under test, and what each example needs.

`holdfast.testing.plugin` loads them only for a run that contains the suite or has `--holdfast-engine`, so that the
tests of a user's project may have fixtures with the same names.

Which engines are tested, the strongest choice first:

* A fixture `make_engine` in your `conftest.py`. It returns a function that makes an engine on an empty store, not yet
  opened. Give the fixture `params` (each with a `name`) to test several engines.
* `--holdfast-engine=ADDRESS`, once for each engine. `{tmp}` in it becomes an empty folder, `{fresh}` a new name. A
  store outside this process needs one of them, because every example needs an empty store.
* Otherwise the memory engine.

Two more fixtures need the engine's author: `user_transaction` and `damage_one_change`. Until you override them, their
examples are skipped and counted as not offered.

Examples are coroutines, and `guarantee` turns them into ordinary test functions. They run on the event loop of the
fixture `contract_runner`, which also opens, audits and closes the engine.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from holdfast.engine import Engine
from holdfast.runtime import SystemRuntime
from holdfast.testing.contract.bench import Bench, DamageOneChange, EngineMaker, UserTransaction
from holdfast.testing.contract.table import ENGINE, GUARANTEE

DEFAULT_ADDRESS = "memory://"


@dataclass(frozen=True, slots=True)
class EngineSource:
    """An engine to test: its name in the table, and its address."""

    name: str
    address: str


def sources(addresses: list[str]) -> list[EngineSource]:
    """One source for each address, named by its scheme. Never by the whole address, which may contain a password."""
    names = [address.partition(":")[0] for address in addresses]
    return [
        EngineSource(name if names.count(name) == 1 else f"{name}-{names[: place + 1].count(name)}", address)
        for place, (name, address) in enumerate(zip(names, addresses, strict=True))
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine_source" in metafunc.fixturenames:
        engines = sources(metafunc.config.getoption("--holdfast-engine") or [DEFAULT_ADDRESS])
        metafunc.parametrize("engine_source", engines, ids=[engine.name for engine in engines])


def pytest_itemcollected(item: pytest.Item) -> None:
    """Store on the item what the table needs, in a form that also reaches the controller of a parallel run."""
    mark = item.get_closest_marker("guarantee")
    if mark is None:
        return
    item.user_properties.append((GUARANTEE, str(mark.args[0])))
    params: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    for name in ("make_engine", "engine_source"):
        if name in params:
            item.user_properties.append((ENGINE, str(getattr(params[name], "name", params[name]))))


@pytest.fixture
def contract_runner() -> Iterator[asyncio.Runner]:
    """One event loop for an example and its engine."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def make_engine(engine_source: EngineSource, tmp_path_factory: pytest.TempPathFactory) -> EngineMaker:
    """Makes an engine on an empty store. Override it to test your own engine."""
    from holdfast.engines import open_engine

    def make() -> Engine:
        address = engine_source.address.replace("{fresh}", f"holdfast_{SystemRuntime().token_bytes(8).hex()}")
        if "{tmp}" in address:
            address = address.replace("{tmp}", str(tmp_path_factory.mktemp("store")))
        return open_engine(address)

    return make


@pytest.fixture
def engine(
    make_engine: EngineMaker, contract_runner: asyncio.Runner, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    """An open engine on an empty store, audited after the example."""
    engine = make_engine()
    properties = request.node.user_properties
    if all(name != ENGINE for name, _ in properties):
        properties.append((ENGINE, engine.scheme))

    async def open_empty() -> None:
        await engine.migrate()
        await engine.open()
        queues = [stats.queue for stats in (await engine.stats()).queues]
        assert not queues, f"The store is not empty: it has the queues {queues}. Each example needs an empty store."

    try:
        contract_runner.run(open_empty())
        yield engine
        problems = contract_runner.run(engine.audit())
        assert problems == (), "The audit after the example found:\n" + "\n".join(problems)
    finally:
        contract_runner.run(engine.close())


@pytest.fixture
def bench(engine: Engine) -> Bench:
    """The engine, its clock, and shorthands for both."""
    return Bench(engine)


@pytest.fixture
def user_transaction(engine: Engine) -> UserTransaction:
    """Opens a user's transaction on the engine's database, over a connection that does not belong to the engine.

    Its context manager yields what `in_transaction` takes. It commits on exit, and rolls back on an exception.
    """
    if not engine.capabilities.user_transactions:
        pytest.skip(f"not offered: the {engine.scheme} engine does not take part in users' transactions")
    pytest.fail("This engine has user transactions: override the fixture `user_transaction`, which opens one.")


@pytest.fixture
def damage_one_change(engine: Engine) -> DamageOneChange:
    """Closes the engine, damages one change of the last frame that it wrote, and opens it again."""
    pytest.skip(f"not offered: the {engine.scheme} engine has no journal of changes to damage")
