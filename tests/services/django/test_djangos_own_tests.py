"""Django's own tests of its task backends, run against ours. The guide names those that fail on purpose, and why."""

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import django_source
import pytest
from django_databases import in_file, on_server
from django_source import DOWNLOAD_TIMEOUT_S, DownloadFailed, folder_of_tests, release_with_tasks

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "guides" / "django.md"

DEVIATIONS = frozenset(
    {
        "DummyBackendTestCase.test_get_missing_result",
        "DummyBackendTestCase.test_refresh_result",
        "DummyBackendTestCase.test_refresh_result_async",
        "DummyBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default",
        "ImmediateBackendTestCase.test_cannot_get_result",
        "ImmediateBackendTestCase.test_cannot_pass_run_after",
        "ImmediateBackendTestCase.test_cannot_refresh_result",
        "ImmediateBackendTestCase.test_complex_return_value",
        "ImmediateBackendTestCase.test_throws_keyboard_interrupt",
        "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default",
        "TaskTestCase.test_aenqueue_with_invalid_argument",
        "TaskTestCase.test_enqueue_with_invalid_argument",
        "TaskTestCase.test_get_missing_result",
        "TaskTestCase.test_refresh_result",
    }
)
"""Tests of Django that must fail with our backend."""

DEVIATIONS_OF_DJANGO_TASKS = frozenset(
    {
        "DummyBackendTestCase.test_validate_disallowed_async_task",
        "TaskTestCase.test_pickle_task",
        "TaskTestCase.test_pickle_task_result",
        "TaskTestCase.test_run_after_in_decorator",
        "TaskTestCase.test_unpickle_arbitrary_string",
        "TaskTestCase.test_unpickle_non_task_object",
    }
)
"""Tests that must fail where the package django-tasks takes the place of `django.tasks`: its own backends fail them."""


def found_or_skipped(find: Callable[[str], Path]) -> Path:
    """The folder of Django's tests. Without it they are skipped, but never in CI."""
    release = release_with_tasks()
    try:
        return find(release)
    except DownloadFailed as error:
        message = f"pip cannot download the source distribution of Django {release}, which has its tests: {error}"
    if os.environ.get("HOLDFAST_TEST_NO_SKIPPED_DOWNLOADS") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="module")
def folder() -> Path:
    return found_or_skipped(folder_of_tests)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    if request.param == "sqlite":
        yield in_file(str(tmp_path / "tasks.sqlite3"))
        return
    server = request.getfixturevalue("postgres_server")
    name = f"own_tests_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    server.execute(f"CREATE DATABASE {name}")
    yield on_server(server.url(name))
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def outcomes(folder: Path, database: Mapping[str, Any]) -> dict[str, str]:
    """Each test with its error; no text if it passes. Django's backends try a task once, and so do ours here."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    answer = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "tests" / "support" / "django_suite.py"), str(folder)],
        env={**others, "HOLDFAST_TASK_MAX_ATTEMPTS": "1", "PYTHONPATH": str(ROOT / "src")},
        input=json.dumps(database),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    found: dict[str, str] = json.loads(answer.stdout.splitlines()[-1])
    return found


def surprises(found: Mapping[str, str], deviations: frozenset[str]) -> list[str]:
    """Tests that fail and should not, that pass and should not, and deviations that are no tests."""
    return [
        *(f"{name} fails: {error}" for name, error in found.items() if error and name not in deviations),
        *(f"{name} passes: it is no deviation any more" for name in sorted(deviations) if found.get(name) == ""),
        *(f"{name} is no test of this release" for name in sorted(deviations - found.keys())),
    ]


@pytest.mark.time_limit(DOWNLOAD_TIMEOUT_S + 30)
def test_djangos_own_tests_pass_but_for_the_deviations_that_the_guide_names(
    folder: Path, database: dict[str, Any]
) -> None:
    import django

    deviations = DEVIATIONS if django.VERSION >= (6, 0) else DEVIATIONS | DEVIATIONS_OF_DJANGO_TASKS
    assert surprises(outcomes(folder, database), deviations) == []


def test_a_deviation_that_passes_and_a_failure_that_is_no_deviation_are_both_found() -> None:
    found = {"A.test_1": "", "A.test_2": "ValueError: 2", "A.test_3": "", "A.test_4": "ValueError: 4"}
    assert surprises(found, frozenset({"A.test_3", "A.test_4", "A.test_5"})) == [
        "A.test_2 fails: ValueError: 2",
        "A.test_3 passes: it is no deviation any more",
        "A.test_5 is no test of this release",
    ]


def test_the_guide_names_each_deviation_once_with_a_reason() -> None:
    rows = re.findall(r"^\| (`\w+TestCase\.test_.+) \| (.+) \|$", GUIDE.read_text(), re.MULTILINE)
    named = [(name, "django-tasks" in why) for tests, why in rows for name in re.findall(r"`([^`]+)`", tests)]
    expected = [(name, False) for name in DEVIATIONS] + [(name, True) for name in DEVIATIONS_OF_DJANGO_TASKS]
    assert sorted(named) == sorted(expected)
    assert all(len(why.split()) >= 5 for _, why in rows)


@pytest.mark.parametrize(("in_ci", "ends"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_the_source_of_django_its_tests_are_skipped_but_never_in_ci(
    in_ci: str, ends: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def download_fails(_: str) -> Path:
        raise DownloadFailed("no index")

    monkeypatch.setenv("HOLDFAST_TEST_NO_SKIPPED_DOWNLOADS", in_ci)
    with pytest.raises(ends, match="no index"):
        found_or_skipped(download_fails)


def downloads(monkeypatch: pytest.MonkeyPatch, build: Path, meanwhile: Callable[[], object]) -> None:
    """The source distribution is a small one, and this happens while it is downloaded."""

    def download(release: str, folder: Path) -> Path:
        source = folder / "source" / f"django-{release}" / "tests" / "tasks"
        source.mkdir(parents=True)
        (source / "test_tasks.py").write_text("")
        with tarfile.open(folder / "django.tar.gz", "w:gz") as files:
            files.add(folder / "source" / f"django-{release}", f"django-{release}")
        meanwhile()
        return folder / "django.tar.gz"

    monkeypatch.setattr(django_source, "ROOT", build.parent)
    monkeypatch.setattr(django_source, "_downloaded", download)


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_two_processes_that_download_at_once_leave_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_process() -> None:
        downloads(monkeypatch, tmp_path / "build", lambda: None)
        folder_of_tests("6.1")

    downloads(monkeypatch, tmp_path / "build", other_process)
    folder = folder_of_tests("6.1")
    assert files_in(folder) == ["tasks", "tasks/test_tasks.py"]
    assert files_in(tmp_path / "build")[0] == folder.name


def test_the_download_works_on_a_python_without_filters_for_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 12 has Python 3.11.2."""
    extract = tarfile.TarFile.extractall

    def extract_without_filter(self: tarfile.TarFile, path: str, members: list[tarfile.TarInfo]) -> None:
        extract(self, path, members)

    downloads(monkeypatch, tmp_path / "build", lambda: None)
    monkeypatch.setattr(tarfile.TarFile, "extractall", extract_without_filter)
    assert files_in(folder_of_tests("6.1")) == ["tasks", "tasks/test_tasks.py"]
