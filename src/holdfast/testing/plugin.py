"""The pytest plugin: engines as fixtures for the contract's examples, and the table of guarantees at the end.

Which engines are judged, the stronger first:

* A fixture `make_engine` of yours, in a `conftest.py` above the examples. It answers a function that makes an engine on
  an empty store, not opened yet. Give the fixture `params` (each with a `name`) to judge several engines.
* `--holdfast-engine=ADDRESS`, once for each engine. `{tmp}` in it becomes an empty folder, `{fresh}` a name never used
  before: a store outside this process needs one of them, since every example wants an empty one.
* Otherwise the memory engine.

Two more fixtures say what only an engine's author knows: `user_transaction` and `damage_one_change`. As long as nobody
overrides them, their examples are left out and counted as not offered.

Examples are coroutines, and `guarantee` makes ordinary test functions of them. They run on the event loop of the
fixture `contract_runner`, where the engine is opened, audited and closed as well.

For people who test their own App there is the fixture `holdfast`: that App in a harness. Which App, says the setting
`holdfast_app = "module:name"`, or a fixture of that name in a `conftest.py`.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.engine import Engine
from holdfast.runtime import SystemRuntime
from holdfast.testing.contract.bench import Bench, DamageOneChange, EngineMaker, UserTransaction
from holdfast.testing.contract.table import ENGINE, GUARANTEE, GuaranteeTable

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.testing.harness import Harness

DEFAULT_ADDRESS = "memory://"


@dataclass(frozen=True, slots=True)
class EngineSource:
    """An engine to judge: its name in the table, and its address."""

    name: str
    address: str


# --- Options, marks, parameters ---


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast", "Holdfast's engine contract")
    group.addoption(
        "--holdfast-engine",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="judge the engine at this address, instead of the memory engine; may be given several times. "
        "{tmp} becomes an empty folder, {fresh} a new name.",
    )
    parser.addini("holdfast_app", 'the App that the fixture `holdfast` puts under test, as "module:name"', default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "guarantee(what): an example of this guarantee of Holdfast's engine contract")


def sources(addresses: list[str]) -> list[EngineSource]:
    """One source for each address, named by its scheme. Never by the whole address: that may hold a password."""
    names = [address.partition(":")[0] for address in addresses]
    return [
        EngineSource(name if names.count(name) == 1 else f"{name}-{names[: place + 1].count(name)}", address)
        for place, (name, address) in enumerate(zip(names, addresses, strict=True))
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine_source" in metafunc.fixturenames:
        found = sources(metafunc.config.getoption("--holdfast-engine") or [DEFAULT_ADDRESS])
        metafunc.parametrize("engine_source", found, ids=[source.name for source in found])


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note on the item what the table needs, in a form that also reaches a controller of parallel runs."""
    mark = item.get_closest_marker("guarantee")
    if mark is None:
        return
    item.user_properties.append((GUARANTEE, str(mark.args[0])))
    params: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    for name in ("make_engine", "engine_source"):
        if name in params:
            item.user_properties.append((ENGINE, str(getattr(params[name], "name", params[name]))))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    table = GuaranteeTable()
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            if isinstance(report, pytest.TestReport):
                table.add(report.nodeid, outcome, dict(report.user_properties))
    if table:
        terminalreporter.section("Holdfast contract")
        for line in table.lines():
            terminalreporter.write_line(line)


# --- Fixtures ---


@pytest.fixture
def contract_runner() -> Iterator[asyncio.Runner]:
    """One event loop for an example and its engine."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def make_engine(engine_source: EngineSource, tmp_path_factory: pytest.TempPathFactory) -> EngineMaker:
    """Makes an engine on an empty store. Override this one to judge an engine of yours."""
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
    """An opened engine on an empty store, audited after the example."""
    engine = make_engine()
    properties = request.node.user_properties
    if all(name != ENGINE for name, _ in properties):
        properties.append((ENGINE, engine.scheme))

    async def ready() -> None:
        await engine.migrate()
        await engine.open()
        queues = [stats.queue for stats in (await engine.stats()).queues]
        assert not queues, f"The store is not empty, it has the queues {queues}. Each example needs a store of its own."

    try:
        contract_runner.run(ready())
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
    """Opens a transaction of a user's on the engine's own database, by a connection that is not the engine's.

    Entering returns what `in_transaction` takes; leaving commits, leaving by an exception rolls back.
    """
    if not engine.capabilities.user_transactions:
        pytest.skip(f"not offered: the {engine.scheme} engine does not take part in transactions of its users")
    pytest.fail("This engine has the capability `user_transactions`: override the fixture `user_transaction`.")


@pytest.fixture
def damage_one_change(engine: Engine) -> DamageOneChange:
    """Closes the engine, spoils one change of the last frame it wrote, and opens it again."""
    pytest.skip(f"not offered: the {engine.scheme} engine has no journal of changes to damage")


# --- An App under test ---


@pytest.fixture
def holdfast_app(pytestconfig: pytest.Config) -> "App[Any]":
    """The App that `holdfast` puts under test. Override this one where there are several."""
    return named_app(str(pytestconfig.getini("holdfast_app")).strip())


@pytest.fixture
def holdfast(holdfast_app: "App[Any]") -> "Iterator[Harness]":
    """The App with a memory engine and a fake clock, for one test."""
    from holdfast.testing.harness import harness

    with harness(holdfast_app) as made:
        yield made


def named_app(target: str) -> "App[Any]":
    """The App that a setting names."""
    from holdfast.app import App

    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise pytest.UsageError(
            'The fixture `holdfast` has to know your App. Say so in pytest\'s settings: holdfast_app = "shop.jobs:jobs"'
        )
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise pytest.UsageError(
            f"holdfast_app = {target!r}: there is no module {error.name!r}. Is its folder on pytest's `pythonpath`?"
        ) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise pytest.UsageError(f"holdfast_app = {target!r} is no App.")
    return found
