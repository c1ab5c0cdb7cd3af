"""Every planted defect is noticed by an example of the contract, in a process of its own; see `tests/support/planted.py`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from planted import CAUGHT, CHOICE, MUTANTS, Mutant

import holdfast.testing.contract

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
SUITE = Path(holdfast.testing.contract.__file__).parent
AT_A_TIME = 2
PATIENCE = 120.0

SOUND = Mutant("none", "", "", "", "guards")
"""No mutant at all: the examples that notice them pass."""


class Verdict(NamedTuple):
    """How the examples went: pytest's exit code, which failed by an assertion of their own, and all that was said."""

    code: int
    caught: list[tuple[str, str]]
    output: str


def judge(mutant: Mutant, files: list[str]) -> Verdict:
    """Run examples on the memory engine with the mutant in its ledger."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-p", "holdfast.testing.plugin", "-p", "planted", "--holdfast-engine=memory://"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SUITE.parents[2]), str(SUPPORT)]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        CHOICE: "" if mutant is SOUND else mutant.name,
    }
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        command + [str(SUITE / f"test_{name}.py") for name in files],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    lines = [line.removeprefix(CAUGHT) for line in done.stdout.splitlines() if line.startswith(CAUGHT)]
    return Verdict(done.returncode, [tuple(json.loads(line)) for line in lines], done.stdout)


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Verdict]]]:
    """All mutants that this run asks for, a few at a time, while the tests wait for them in turn."""
    asked = {mutant_of(item) for item in request.session.items}
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        yield {one.name: threads.submit(judge, one, [one.noticed_by]) for one in MUTANTS if one.name in asked}


def mutant_of(item: pytest.Item) -> str | None:
    """The name of the mutant that a test is about."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return params["mutant"].name if "mutant" in params else None


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name.replace(" ", "-") for mutant in MUTANTS])
def test_the_examples_notice(mutant: Mutant, verdicts: dict[str, Future[Verdict]]) -> None:
    code, caught, output = verdicts[mutant.name].result()
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert caught, f"No example noticed, or not by an assertion of its own:\n{output}"
    assert all("assert" in message.lower() or "Failed: " in message for _, message in caught), caught


def test_the_examples_pass_on_the_sound_ledger() -> None:
    files = sorted({mutant.noticed_by for mutant in MUTANTS})
    code, caught, output = judge(SOUND, files)
    assert (code, caught) == (pytest.ExitCode.OK, []), output


def test_every_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
