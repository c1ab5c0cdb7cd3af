"""Checks of settings and tasks, which need no store."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from findings import examine_app, examined, worst

from holdfast import App
from holdfast.doctor.configuration import check_switches
from holdfast.doctor.tasks import ExaminedTask, check_leases
from holdfast.model.findings import ADDRESS, ENVIRONMENT, GRACE, INTERVALS, LEASE, TIMEOUT, Check, Finding, Level
from holdfast.model.instants import MILLISECOND, SECOND


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App[Any]:
    """On a SQLite file that is never made: these checks must work without it."""
    monkeypatch.chdir(tmp_path)
    return App(f"sqlite:///{tmp_path}/jobs.db")


def summary(finding: Finding) -> tuple[Level, bool]:
    """The level, and whether the finding says what to do."""
    return finding.level, bool(finding.advice)


def test_a_plain_task_with_a_timeout_cannot_be_stopped(app: App[Any]) -> None:
    @app.task(timeout=5)
    def plain() -> None: ...

    @app.task(timeout=5)
    async def stoppable() -> None: ...

    found = examined(app, TIMEOUT)
    assert summary(found) == (Level.WARNING, True)
    assert "plain" in found.found
    assert "stoppable" not in found.found


def isolated() -> None:
    """At module level, where a child process finds it."""


def test_a_task_that_is_async_or_has_a_process_of_its_own_can_be_stopped(app: App[Any]) -> None:
    @app.task(timeout=5)
    async def stoppable() -> None: ...

    app.task(timeout=5, isolate="process")(isolated)
    assert summary(examined(app, TIMEOUT)) == (Level.OK, False)


@pytest.mark.parametrize(("grace", "level"), [("10s", Level.WARNING), ("2m", Level.OK)])
def test_the_grace_is_compared_with_the_longest_timeout(
    app: App[Any], monkeypatch: pytest.MonkeyPatch, grace: str, level: Level
) -> None:
    monkeypatch.setenv("HOLDFAST_WORKER_GRACE", grace)

    @app.task(timeout=60)
    async def slow() -> None: ...

    found = examined(app, GRACE)
    assert found.level is level
    assert ("60 s" in found.advice) is (level is Level.WARNING)


def test_a_long_lease_is_noted(app: App[Any]) -> None:
    @app.task(lease="1h")
    async def slow() -> None: ...

    found = examined(app, LEASE)
    assert summary(found) == (Level.NOTE, True)
    assert "3600 s" in found.found


def test_a_lease_must_be_longer_than_some_round_trips(app: App[Any]) -> None:
    @app.task(lease=2)
    async def short() -> None: ...

    @app.task(lease=30)
    async def usual() -> None: ...

    tasks = [ExaminedTask(task.policy, task.is_async) for task in app.registry.values()]
    assert check_leases(tasks, 399 * MILLISECOND).level is Level.OK
    found = check_leases(tasks, 401 * MILLISECOND)
    assert summary(found) == (Level.WARNING, True)
    assert "short" in found.found
    assert "usual" not in found.found
    assert "usual" in check_leases(tasks, 7 * SECOND).found


@pytest.mark.parametrize(
    ("variable", "value"), [("HOLDFAST_WORKER_POLL_INTERVAL", "2m"), ("HOLDFAST_WORKER_REAP_INTERVAL", "40s")]
)
def test_long_intervals_are_a_warning(
    app: App[Any], monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)

    @app.task
    async def usual() -> None: ...

    found = examined(app, INTERVALS)
    assert summary(found) == (Level.WARNING, True)
    assert variable.removeprefix("HOLDFAST_WORKER_").lower() in found.found


def test_usual_intervals_are_fine(app: App[Any]) -> None:
    @app.task
    async def usual() -> None: ...

    assert summary(examined(app, INTERVALS)) == (Level.OK, False)


@pytest.mark.parametrize("check", [TIMEOUT, GRACE, INTERVALS])
def test_without_tasks_nothing_is_said_about_tasks(app: App[Any], check: Check) -> None:
    assert check.name not in {finding.check for finding in examine_app(app)}


# --- The configuration ---


def test_two_addresses_are_a_warning_without_their_passwords(app: App[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://ada:secret@db.example/jobs")

    @app.task
    async def usual() -> None: ...

    found = examined(app, ADDRESS)
    assert summary(found) == (Level.WARNING, True)
    assert "db.example" in found.found
    assert "secret" not in found.found


def test_the_same_address_twice_is_fine(app: App[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def usual() -> None: ...

    assert examined(app, ADDRESS).level is Level.OK


@pytest.mark.parametrize("url", ["sqlite:///jobs.db", "sqlite:jobs.db", "file:jobs"])
def test_a_relative_address_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)
    found = examined(App(url), ADDRESS)
    assert summary(found) == (Level.NOTE, True)
    assert str(tmp_path) in found.advice


@pytest.mark.parametrize("url", ["sqlite:///{}/jobs.db", "file://{}/jobs"])
def test_an_absolute_address_is_not(tmp_path: Path, url: str) -> None:
    assert examined(App(url.format(tmp_path)), ADDRESS).level is Level.OK


def test_switches_for_debugging_are_noted(app: App[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert examined(app, ENVIRONMENT).level is Level.OK
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    monkeypatch.setenv("HOLDFAST_ALLOW_BLOCKING", "0")
    found = examined(app, ENVIRONMENT)
    assert summary(found) == (Level.NOTE, True)
    assert "HOLDFAST_DEBUG" in found.found
    assert [one.level for one in check_switches({"HOLDFAST_ALLOW_BLOCKING": "1"})] == [Level.NOTE]


def test_the_async_form_finds_the_same(app: App[Any]) -> None:
    @app.task(timeout=5)
    def plain() -> None: ...

    assert worst(asyncio.run(app.control.aexamine()), TIMEOUT).level is Level.WARNING
