"""The pytest plugin. A user's run gets the fixture `holdfast`: their App in a harness.

The setting `holdfast_app = "module:name"` says which App, or a fixture `holdfast_app` in a `conftest.py`.

A run of the engine conformance suite also gets the fixtures of `holdfast.testing.conformance` and ends with the table
of guarantees. The plugin loads them if `holdfast.testing.contract` is among the arguments of pytest, or for
`--holdfast-engine`.

Every pytest run where Holdfast is installed loads this module. So it imports nothing of Holdfast before it is used.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.testing.app_harness import Harness

CONFORMANCE = "holdfast.testing.conformance"
SUITE = "holdfast.testing.contract"
SUITE_FOLDER = Path(__file__).parent / "contract"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast", "Holdfast's engine contract")
    group.addoption(
        "--holdfast-engine",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="test the engine at this address instead of the memory engine; may be given several times. "
        "{tmp} becomes an empty folder, {fresh} a new name.",
    )
    parser.addini("holdfast_app", 'the App that the fixture `holdfast` puts under test, as "module:name"', default="")
    parser.addini(
        "holdfast_store",
        'the store of the fixture `holdfast`: "memory" or "sqlite" (for `transaction=`)',
        default="memory",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "guarantee(what): an example of this guarantee of Holdfast's engine contract")
    # Before any `conftest.py` is collected: of two fixtures with one name the later wins, and that must be the user's.
    if config.getoption("--holdfast-engine") or any(map(_is_suite, config.args)):
        config.pluginmanager.import_plugin(CONFORMANCE)


def _is_suite(argument: str) -> bool:
    """True for the suite or a part of it, as a package or as a path."""
    name, _, _ = argument.partition("::")
    return f"{name}.".startswith(f"{SUITE}.") or Path(name).resolve().is_relative_to(SUITE_FOLDER)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table. It stands here because the controller of a parallel run collects nothing."""
    from holdfast.testing.contract.table import GuaranteeTable

    table = GuaranteeTable()
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            if isinstance(report, pytest.TestReport):
                table.add(report.nodeid, outcome, dict(report.user_properties))
    if table:
        terminalreporter.section("Holdfast contract")
        for line in table.lines():
            terminalreporter.write_line(line)


# --- An App under test ---


@pytest.fixture
def holdfast_app(pytestconfig: pytest.Config) -> "App[Any]":
    """The App that `holdfast` puts under test. Override it if the project has several."""
    return named_app(str(pytestconfig.getini("holdfast_app")).strip())


@pytest.fixture
def holdfast_store(pytestconfig: pytest.Config) -> str:
    """The store of `holdfast`: "memory", "sqlite", or the address of a SQLite file. Override it to use your own."""
    return str(pytestconfig.getini("holdfast_store")).strip()


@pytest.fixture
def holdfast(holdfast_app: "App[Any]", holdfast_store: str) -> "Iterator[Harness]":
    """The App with a store of its own and a fake clock, for one test."""
    from holdfast.testing.app_harness import harness

    with harness(holdfast_app, store=holdfast_store) as app_harness:
        yield app_harness


def named_app(target: str) -> "App[Any]":
    """The App that a setting names."""
    from holdfast.app import App

    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise pytest.UsageError(
            'The fixture `holdfast` needs your App. Name it in pytest\'s settings: holdfast_app = "shop.jobs:jobs"'
        )
    try:
        value: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise pytest.UsageError(
            f"holdfast_app = {target!r}: there is no module {error.name!r}. Is its folder on pytest's `pythonpath`?"
        ) from error
    for part in name.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, App):
        raise pytest.UsageError(f"holdfast_app = {target!r} is not an App.")
    return value
