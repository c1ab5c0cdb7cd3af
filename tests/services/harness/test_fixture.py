"""The fixture `holdfast` in a project of somebody else's, with the examples of the README as they stand there."""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import holdfast.testing
from holdfast.testing.plugin import named_app

JOBS = """
from holdfast import App, Context, exponential

jobs = App("sqlite:///there/is/no/such/folder/jobs.db")


@jobs.task(max_attempts=5, backoff=exponential(initial=0.5))
def resize(image: str, width: int = 800) -> str:
    return f"{image}@{width}"


@jobs.task
async def flaky(ctx: Context, n: int) -> int:
    if ctx.attempt < 3:
        raise ConnectionError("not yet")            # retried with back-off
    return n * 2
"""

README = """
import pytest
from holdfast import JobState, events
from holdfast.testing import Harness
from jobs import flaky, resize


def test_a_flaky_job_succeeds_on_its_third_attempt(holdfast: Harness) -> None:
    handle = flaky.enqueue(21)
    holdfast.drain(until=60)                         # moves the fake clock through the back-offs
    assert handle.result() == 42
    assert [type(e) for e in holdfast.events].count(events.Retrying) == 2


def test_a_delayed_resize_waits_for_its_time(holdfast: Harness) -> None:
    resize.using(delay=3600).enqueue("cat.png", width=64)
    holdfast.assert_enqueued(resize, "cat.png", width=64)
    assert holdfast.drain().left == 1
    holdfast.clock.advance(hours=1)
    assert holdfast.drain().succeeded == 1


def test_a_worker_killed_before_it_settles_costs_one_attempt(holdfast: Harness) -> None:
    handle = resize.enqueue("cat.png")
    with holdfast.crash("before_settle"):
        holdfast.drain(raises=False)
    holdfast.drain(until=60)                         # the lease runs out, another worker reaps and runs it
    job = handle.refresh()
    assert job.state is JobState.SUCCEEDED
    assert [a.outcome for a in job.attempts] == ["worker_lost", "succeeded"]


@pytest.mark.asyncio
async def test_one_id_is_one_job(holdfast: Harness) -> None:
    first = await resize.using(id="cat").aenqueue("cat.png")
    again = await resize.using(id="cat").aenqueue("cat.png")
    assert (first.created, again.created) == (True, False)
    await holdfast.adrain()
"""

# What pytest-asyncio does, for machines that do not have it.
COROUTINES = """
import asyncio
import inspect
from importlib.util import find_spec

import pytest

if find_spec("pytest_asyncio") is None:

    def pytest_configure(config):
        config.addinivalue_line("markers", "asyncio: a coroutine")

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(pyfuncitem):
        if inspect.iscoroutinefunction(pyfuncitem.obj):
            asyncio.run(pyfuncitem.obj(**{n: pyfuncitem.funcargs[n] for n in pyfuncitem._fixtureinfo.argnames}))
            return True
"""

SETTING = "holdfast_app = jobs:jobs\n"


def run_pytest(folder: Path, tests: str, *, settings: str = SETTING, conftest: str = "") -> tuple[int, str]:
    """Run the tests in a folder of their own; answer pytest's exit code and words."""
    files = {
        "jobs.py": JOBS,
        "test_jobs.py": tests,
        "conftest.py": conftest,
        "pytest.ini": f"[pytest]\npythonpath = .\nfilterwarnings = error\naddopts = --strict-markers -q\n{settings}",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    installed = any(entry.value == "holdfast.testing.plugin" for entry in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "holdfast.testing.plugin")
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(holdfast.testing.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.returncode, answer.stdout + answer.stderr


def test_the_examples_of_the_readme_pass_as_they_stand(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, README, conftest=COROUTINES)
    assert code == 0, said
    assert "4 passed" in said


def test_each_test_begins_with_nothing_and_a_failing_one_leaves_nothing(tmp_path: Path) -> None:
    code, said = run_pytest(
        tmp_path,
        """
from jobs import flaky, resize

def test_that_fails(holdfast):
    flaky.enqueue(1)
    holdfast.drain()

def test_afterwards(holdfast):
    assert holdfast.enqueued() == [] and holdfast.events == []
    holdfast.assert_not_enqueued(resize)
    resize.enqueue("cat.png")
    assert holdfast.drain().succeeded == 1
""",
    )
    assert code == 1
    assert "1 failed, 1 passed" in said
    assert "ConnectionError: not yet" in said
    assert "flaky) at attempt 1" in said


def test_a_project_may_choose_its_app_with_a_fixture(tmp_path: Path) -> None:
    code, said = run_pytest(
        tmp_path,
        """
import jobs

def test_it(holdfast):
    assert holdfast.app is jobs.jobs

def test_without_it():
    pass
""",
        settings="",
        conftest="""
import pytest
import jobs

@pytest.fixture
def holdfast_app():
    return jobs.jobs
""",
    )
    assert code == 0, said


TRANSACTION = """
import sqlite3
from jobs import resize

def test_it(holdfast):
    db = sqlite3.connect(holdfast.url.removeprefix("sqlite:///"))
    with db:
        resize.using(transaction=db).enqueue("cat.png")
    db.close()
    assert holdfast.drain().succeeded == 1
"""


def test_a_setting_gives_every_test_a_sqlite_file(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, TRANSACTION, settings=SETTING + "holdfast_store = sqlite\n")
    assert code == 0, said


def test_a_project_may_choose_the_file_with_a_fixture(tmp_path: Path) -> None:
    conftest = """
import pytest

@pytest.fixture
def holdfast_store(tmp_path):
    return f"sqlite:///{tmp_path}/shop.db"
"""
    code, said = run_pytest(tmp_path, TRANSACTION, conftest=conftest)
    assert code == 0, said


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("", 'holdfast_app = "shop.jobs:jobs"'),
        ("jobs", 'holdfast_app = "shop.jobs:jobs"'),
        ("no_such_shop.jobs:jobs", "there is no module 'no_such_shop'"),
        ("minimal_app:MinimalApp", "is not an App"),
        ("minimal_app:nothing.at.all", "is not an App"),
    ],
)
def test_a_setting_that_leads_nowhere_says_what_to_write(target: str, words: str) -> None:
    with pytest.raises(pytest.UsageError, match=re.escape(words)):
        named_app(target)


def test_a_mistake_inside_the_module_is_shown_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_with_a_mistake.py").write_text("import no_such_dependency\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        named_app("module_with_a_mistake:jobs")
