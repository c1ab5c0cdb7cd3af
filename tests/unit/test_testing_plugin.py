"""The suite as a third party runs it: by address, or with an engine of their own; and what a user's run contains."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import holdfast.testing
from holdfast.testing.conformance import EngineSource, sources

# Engines of a third party, as a `conftest.py` contains them.

WHOLE = """
import pytest
from holdfast.engines import open_engine


@pytest.fixture
def make_engine():
    def make():
        engine = open_engine("memory://")
        type(engine).scheme = "mine"
        return engine
    return make
"""

BROKEN = '''
import pytest
from holdfast.engines.memory import MemoryEngine
from holdfast.model.job import JobKey
from holdfast.model.observe import Get
from holdfast.model.work import Exchange, Settlement
from holdfast.runtime import SystemRuntime


class AnyTokenEngine(MemoryEngine):
    """Accepts every settlement, whatever its token."""

    scheme = "careless"

    async def perform(self, command):
        if isinstance(command, Exchange):
            current = [await self.token(s) for s in command.settlements]
            command = Exchange(
                settlements=tuple(
                    Settlement(**{f: getattr(s, f) for f in s.__struct_fields__ if f != "token"}, token=token)
                    for s, token in zip(command.settlements, current)
                ),
                starts=command.starts,
                claim=command.claim,
            )
        return await super().perform(command)

    async def token(self, settlement):
        (job,) = (await super().perform(Get(jobs=(JobKey(settlement.queue, settlement.id),)))).jobs
        return settlement.token if job is None or job.token is None else job.token


@pytest.fixture
def make_engine():
    return lambda: AnyTokenEngine("memory://", SystemRuntime())
'''


def run_suite(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in the project of a third party, which does not have our configuration."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\naddopts = --strict-markers -q\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(holdfast.testing.__file__).parents[2])}
    installed = any(entry.value == "holdfast.testing.plugin" for entry in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "holdfast.testing.plugin")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", "--pyargs", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_engine_is_judged_by_its_address(tmp_path: Path) -> None:
    answer = run_suite(
        tmp_path,
        "holdfast.testing.contract.test_open_close",
        "holdfast.testing.contract.test_transactions",
        "--holdfast-engine=memory://one",
        "--holdfast-engine=memory://two",
    )

    assert answer.returncode == 0, answer.stdout + answer.stderr
    lines = [line.split("  ") for line in answer.stdout.splitlines()]
    rows = {cells[0]: [cell.strip() for cell in cells[1:] if cell.strip()] for cells in lines}
    assert rows["guarantee"] == ["memory-1", "memory-2"]
    assert rows["open, close and the renewal connection work"] == ["held 5", "held 5"]
    assert rows["enqueue works in a user's transaction"] == ["not offered", "not offered"]


def test_an_engine_of_ones_own_is_judged_by_a_fixture(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(WHOLE)

    answer = run_suite(tmp_path, "holdfast.testing.contract.test_open_close")

    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "guarantee                                    mine" in answer.stdout
    assert "open, close and the renewal connection work  held 5" in answer.stdout


def test_a_mistake_is_found_and_named_in_the_table(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(BROKEN)

    answer = run_suite(tmp_path, "holdfast.testing.contract.test_guards")

    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert "only the current lease changes a job  FAILED" in answer.stdout
    assert "test_a_late_owner_cannot_overwrite_the_next_owner" in answer.stdout


def test_a_store_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "from holdfast.engines import open_engine\n"
        "shared = open_engine('memory://')\n"
        "@pytest.fixture\n"
        "def make_engine():\n"
        "    return lambda: shared\n"
    )

    answer = run_suite(tmp_path, "holdfast.testing.contract.test_emptied")

    assert answer.returncode == 1
    assert "Each example needs an empty store" in answer.stdout


def test_a_run_without_the_fixtures_loads_the_plugin_alone(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_other():\n    pass\n")
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_unconfigure():\n"
        "    print('loaded', *(name for name in sys.modules if name.startswith('holdfast')))\n"
    )

    answer = run_suite(tmp_path, "test_other.py")

    assert answer.returncode == 0, answer.stdout + answer.stderr
    loaded = answer.stdout.splitlines()[-1].split()
    contract = ["holdfast.testing.contract", "holdfast.testing.contract.table"]
    assert loaded == ["loaded", "holdfast", "holdfast.testing", "holdfast.testing.plugin", *contract]


def test_without_contract_tests_there_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_other():\n    pass\n")

    answer = run_suite(tmp_path, "test_other.py")

    assert answer.returncode == 0
    assert "guarantee" not in answer.stdout


FIXTURES = ("engine", "bench", "make_engine", "user_transaction", "damage_one_change", "contract_runner")


def test_a_run_without_the_suite_has_none_of_its_fixtures(tmp_path: Path) -> None:
    answer = run_suite(tmp_path, "--fixtures")

    assert answer.returncode in (0, 5), answer.stdout + answer.stderr
    listed = {line.split()[0] for line in answer.stdout.splitlines() if line and not line[0].isspace()}
    assert "holdfast" in listed
    assert listed.isdisjoint(FIXTURES)


@pytest.mark.parametrize("name", FIXTURES)
def test_a_user_cannot_request_a_fixture_of_the_suite_by_accident(tmp_path: Path, name: str) -> None:
    (tmp_path / "test_other.py").write_text(f"def test_other({name}):\n    pass\n")

    answer = run_suite(tmp_path, "test_other.py")

    assert answer.returncode == 1
    assert f"fixture '{name}' not found" in answer.stdout


def test_a_user_may_have_a_fixture_of_the_same_name_beside_the_suite(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import pytest\n"
        "@pytest.fixture\n"
        "def engine():\n"
        "    return 'a steam engine'\n"
        "def test_other(engine):\n"
        "    assert engine == 'a steam engine'\n"
    )

    alone = run_suite(tmp_path, "test_other.py")
    beside = run_suite(tmp_path, "holdfast.testing.contract.test_open_close", "test_other.py")

    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert beside.returncode == 0, beside.stdout + beside.stderr
    assert "open, close and the renewal connection work  held 5" in beside.stdout


def test_an_address_loads_the_fixtures_for_further_tests_of_an_engine(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("def test_mine(engine):\n    assert engine.scheme == 'memory'\n")

    answer = run_suite(tmp_path, "test_mine.py", "--holdfast-engine=memory://")

    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize(
    ("addresses", "names"),
    [
        (["memory://"], ["memory"]),
        (["postgresql://me:secret@host/db", "memory://"], ["postgresql", "memory"]),
        (["a://1", "b://1", "a://2"], ["a-1", "b", "a-2"]),
    ],
)
def test_engines_are_named_by_their_scheme_alone(addresses: list[str], names: list[str]) -> None:
    assert sources(addresses) == [EngineSource(*pair) for pair in zip(names, addresses, strict=True)]
