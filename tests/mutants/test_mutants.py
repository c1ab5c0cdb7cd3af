"""An example of the contract notices every planted defect. The mutants are in `tests/support/ledger_mutants.py`.

In the short run they are planted in the ledger of the memory engine; in the long run also in the Lua rules of Redis.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ledger_mutants
import pytest
from ledger_mutants import MEMORY, MUTANTS, Mutant, is_in_lua
from redis_server import server

import holdfast.testing.contract

ROOT = Path(__file__).parents[2]
SUITE = Path(holdfast.testing.contract.__file__).parent
AT_A_TIME = 2
PATIENCE = 240.0

SOUND = ""
"""No mutant at all."""


def judge(tasks: list[tuple[str, list[str]]], address: str = MEMORY, patience_s: float = PATIENCE) -> dict[str, Any]:
    """For each mutant, run these files of examples on an engine with that mutant in its rules."""
    paths = [(name, [str(SUITE / f"test_{file}.py") for file in files]) for name, files in tasks]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SUITE.parents[2]), str(ROOT / "tests" / "support"), str(ROOT)]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, ledger_mutants.__file__, json.dumps(paths), address],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> Iterator[list[Future[dict[str, Any]]]]:
    """The mutants that this run asks for, dealt to a few processes."""
    asked = {mutant_of(item) for item in request.session.items}
    tasks = [(mutant.name, [mutant.noticed_by]) for mutant in MUTANTS if mutant.name in asked]
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        yield [threads.submit(judge, tasks[first::AT_A_TIME]) for first in range(AT_A_TIME)]


def mutant_of(item: pytest.Item) -> str | None:
    """The name of the mutant that a test is about."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return params["mutant"].name if "mutant" in params else None


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name.replace(" ", "-") for mutant in MUTANTS])
def test_the_examples_notice(mutant: Mutant, verdicts: list[Future[dict[str, Any]]]) -> None:
    verdict = {name: one for share in verdicts for name, one in share.result().items()}[mutant.name]
    assert verdict["code"] == pytest.ExitCode.TESTS_FAILED, verdict["output"]
    assert verdict["caught"] != "[]", f"Not noticed by an assertion of an example:\n{verdict['output']}"


def test_the_examples_pass_on_the_sound_ledger() -> None:
    verdict = judge([(SOUND, sorted({mutant.noticed_by for mutant in MUTANTS}))])[SOUND]
    assert verdict["code"] == pytest.ExitCode.OK, verdict["output"]


def test_every_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


IN_LUA = [mutant for mutant in MUTANTS if is_in_lua(mutant)]
PATIENCE_IN_LUA = 1_200.0


@pytest.fixture(scope="module")
def verdicts_in_lua() -> dict[str, Any]:
    """Each process, of each test process, has a database of its own. The first task is the sound ledger."""
    tasks = [(mutant.name, [mutant.noticed_by]) for mutant in IN_LUA]
    files = sorted({mutant.noticed_by for mutant in IN_LUA})
    database = 32 + AT_A_TIME * server().database
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        shares = [
            threads.submit(
                judge,
                [(SOUND, files[first::AT_A_TIME]), *tasks[first::AT_A_TIME]],
                server().url(database=database + first),
                PATIENCE_IN_LUA,
            )
            for first in range(AT_A_TIME)
        ]
        found = [share.result() for share in shares]
    assert all(one[SOUND]["code"] == pytest.ExitCode.OK for one in found), found
    return {name: verdict for one in found for name, verdict in one.items()}


@pytest.mark.long
@pytest.mark.time_limit(PATIENCE_IN_LUA)
@pytest.mark.parametrize("defect", IN_LUA, ids=[mutant.name.replace(" ", "-") for mutant in IN_LUA])
def test_the_examples_notice_it_in_lua(defect: Mutant, verdicts_in_lua: dict[str, Any]) -> None:
    verdict = verdicts_in_lua[defect.name]
    assert verdict["code"] == pytest.ExitCode.TESTS_FAILED, verdict["output"]
    assert verdict["caught"] != "[]", f"Not noticed by an assertion of an example:\n{verdict['output']}"
