"""What `doctor` finds in an open store: workers, clocks, process records and queues."""

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually_now
from findings import examined, findings_of, worst

from holdfast import App, GiveUp
from holdfast.doctor.clocks import ClockReading, check_clocks
from holdfast.doctor.queues import check_queues
from holdfast.doctor.workers import check_notifications, check_workers
from holdfast.files import Files
from holdfast.model.findings import (
    CLEARING,
    CLOCK,
    DEAD_LETTERS,
    DEPTH,
    NOTIFICATIONS,
    PAUSED,
    PROCESS_RECORDS,
    QUEUES,
    TASKS,
    WAITING,
    WORKERS,
    Finding,
    Level,
)
from holdfast.model.instants import HOUR, MINUTE, SECOND
from holdfast.model.observe import QueueStats
from holdfast.model.records import Totals, WorkerRecord
from holdfast.model.states import JobState
from holdfast.operate.overview import StoreOverview, overview_of
from holdfast.runtime import SystemRuntime
from holdfast.views import WorkerStatus

NOW = 1_000 * HOUR


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def app(url: str) -> Iterator[App[Any]]:
    """An App with a task, its store open."""
    app: App[Any] = App(url)

    @app.task
    async def usual() -> None: ...

    @app.task(queue="other")
    async def gives_up() -> None:
        raise GiveUp("no use")

    with app:
        yield app


def worker(name: str = "w", **fields: Any) -> WorkerRecord:
    usual: dict[str, Any] = {"seen": NOW, "started": NOW - MINUTE, "interval": 10 * SECOND, "host": "web-1"}
    return WorkerRecord(worker=name, **usual | fields)


def stats(**fields: Any) -> QueueStats:
    usual: dict[str, Any] = {"queue": "mail", "paused": False, "counts": {}, "due": 0, "oldest_due": None}
    return QueueStats(totals=Totals(), next_due=None, **usual | fields)


def level_of(findings: Iterator[Finding]) -> Level:
    (finding,) = findings
    assert bool(finding.advice) is (finding.level is not Level.OK)
    return finding.level


# --- Workers ---


def test_a_live_worker_is_named(app: App[Any]) -> None:
    with app.worker(name="busy"):
        findings = app.control.examine()
    found = worst(findings, WORKERS)
    assert (found.level, "busy-" in found.found) == (Level.OK, True)
    for check in (PROCESS_RECORDS, CLOCK, NOTIFICATIONS, QUEUES, TASKS, WAITING, DEPTH, PAUSED):
        assert worst(findings, check).level is Level.OK, worst(findings, check)


def test_no_worker_is_a_problem_only_if_jobs_wait(app: App[Any]) -> None:
    assert worst(app.control.examine(), WORKERS).level is Level.NOTE
    app.registry["usual"].enqueue()
    findings = app.control.examine()
    assert worst(findings, WORKERS).level is Level.PROBLEM
    assert findings_of(findings, QUEUES) == []


def seen_now(
    *workers: WorkerRecord, ended: frozenset[str] = frozenset(), queues: Sequence[QueueStats] = ()
) -> StoreOverview:
    return overview_of(queues, [], workers, ended, NOW)


def test_a_silent_worker_is_a_warning_if_it_had_jobs() -> None:
    silent: dict[str, Any] = {"seen": NOW - 31 * SECOND, "pid": 17}
    alive = worker("alive")

    def levels(*workers: WorkerRecord, ended: frozenset[str] = frozenset()) -> list[Level]:
        return [finding.level for finding in check_workers(seen_now(*workers, alive, ended=ended))]

    assert levels(worker(**silent, busy=2)) == [Level.WARNING]
    assert levels(worker(**silent)) == [Level.NOTE]
    assert levels(worker(seen=NOW - 29 * SECOND, busy=2)) == [Level.OK]
    assert levels(worker("gone", busy=1), ended=frozenset({"gone"})) == [Level.WARNING]
    assert levels(worker("manager", min_children=2, max_children=4, children=("alive",))) == [Level.WARNING]
    assert levels(worker("manager", min_children=1, max_children=4, children=("alive",))) == [Level.OK]
    (text,) = [one.found for one in check_workers(seen_now(worker(**silent, busy=2), alive))]
    assert text == "1 worker lost 31 s ago, with jobs: w (on web-1, pid 17, silent)."
    (text,) = [one.found for one in check_workers(seen_now(worker("a", **silent), worker("b", **silent), alive))]
    assert text.startswith("2 workers lost, the last 31 s ago, with no jobs: a (on")


def test_a_stopped_child_of_a_live_manager_is_a_warning() -> None:
    """Nothing replaces it: its process lives."""
    manager = worker("boss", min_children=2, max_children=2, children=("first", "second"))
    stopped = worker("second", seen=NOW - MINUTE, pid=17)
    (found,) = check_workers(seen_now(manager, worker("first"), stopped))
    assert found.level is Level.WARNING
    assert found.found.startswith("Worker second (on web-1, pid 17) has sent no heartbeat for 60 s, and its manager")
    assert "kill -CONT 17" in found.advice
    (found,) = check_workers(seen_now(manager, worker("first"), stopped, ended=frozenset({"second"})))
    assert found.found.startswith("1 worker lost")


PROGRAM = """
import sys
import time
from holdfast import App

jobs = App(sys.argv[1])

@jobs.task(queue="slow")
def sleeps() -> None:
    print("running", flush=True)
    time.sleep(600)

sleeps.enqueue()
jobs.worker(name="victim").run()
"""


def test_a_manager_is_no_worker() -> None:
    manager = worker("manager", max_children=4)
    waiting = stats(counts={JobState.QUEUED: 1})
    assert level_of(check_workers(seen_now(manager, queues=[waiting]))) is Level.PROBLEM


def test_a_killed_worker_that_had_a_job_is_named(app: App[Any], url: str) -> None:
    def victim() -> WorkerStatus | None:
        return next((worker for worker in app.control.workers() if worker.name.startswith("victim")), None)

    def has_reported() -> bool:
        found = victim()
        return found is not None and found.busy == 1

    program = [sys.executable, "-c", PROGRAM, url]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        eventually_now(has_reported, "a heartbeat with the running job")
        process.kill()
    findings = app.control.examine()
    (warning,) = [one for one in findings_of(findings, WORKERS) if one.level is Level.WARNING]
    assert f"pid {process.pid}, ended)" in warning.found
    assert "s ago, with jobs: victim" in warning.found
    assert worst(findings, WORKERS).level is Level.PROBLEM  # none is alive


def test_without_notifications_workers_poll() -> None:
    assert check_notifications(push=True, poll_s=1).level is Level.OK
    assert check_notifications(push=False, poll_s=1).level is Level.NOTE


@pytest.fixture
def two_folders() -> Iterator[list[str]]:
    """Their paths are short, because those of sockets must be."""
    with Files().temporary_folder() as one, Files().temporary_folder() as two:
        yield [one, two]


async def test_a_worker_whose_record_is_in_another_folder_is_not_seen(
    url: str, two_folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with PrivateTmp of systemd: each service has a /tmp of its own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", two_folders[0])
    first: App[Any] = App(url)
    await first.aopen()
    record = worker(host=socket.gethostname(), process=first.engine.process_name, started=0)
    await first.engine.heartbeat(record)
    assert worst(await first.control.aexamine(), PROCESS_RECORDS).level is Level.OK
    monkeypatch.setenv("XDG_RUNTIME_DIR", two_folders[1])
    second: App[Any] = App(url)
    found = worst(await second.control.aexamine(), PROCESS_RECORDS)
    assert (found.level, "PrivateTmp" in found.advice) == (Level.WARNING, True)
    await second.aclose()
    await first.aclose()


def test_a_folder_without_records_is_a_warning(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of its socket would be too long."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    app: App[Any] = App(url)
    app.migrate()
    assert examined(app, PROCESS_RECORDS).level is Level.WARNING


# --- Clocks ---


def reading(ahead_us: int = 0) -> ClockReading:
    return ClockReading(NOW, ahead_us, 1000)


@pytest.mark.parametrize(("ahead_s", "level"), [(0.9, Level.OK), (1.1, Level.WARNING), (-1.1, Level.WARNING)])
def test_the_clocks_of_host_and_store_are_compared(ahead_s: float, level: Level) -> None:
    assert level_of(check_clocks(reading(round(ahead_s * SECOND)), [])) is level


@pytest.mark.parametrize(
    ("record", "level"),
    [
        (worker(), Level.OK),
        (worker(started=NOW + 3 * SECOND), Level.WARNING),  # its host is ahead
        (worker(seen=NOW + MINUTE), Level.WARNING),  # the store's clock was set back
    ],
)
def test_heartbeats_show_other_clocks(record: WorkerRecord, level: Level) -> None:
    assert level_of(check_clocks(reading(), [record])) is level


async def test_the_clock_of_a_real_worker_that_is_ahead_is_found(app: App[Any]) -> None:
    runtime = SystemRuntime()
    record = worker(host="fast-clock", started=runtime.wall() + HOUR)
    await app.engine.heartbeat(record)
    found = worst(await app.control.aexamine(), CLOCK)
    assert (found.level, "fast-clock" in found.found) == (Level.WARNING, True)


# --- Queues ---


def test_a_task_that_no_worker_knows_is_a_problem(app: App[Any], url: str) -> None:
    app.registry["usual"].enqueue()
    other: App[Any] = App(url)

    @other.task
    async def another() -> None: ...

    with other, other.worker():
        found = worst(app.control.examine(), TASKS)
    assert (found.level, "usual" in found.found) == (Level.PROBLEM, True)


def test_a_queue_that_no_worker_takes_from_is_a_problem(app: App[Any]) -> None:
    app.registry["gives_up"].enqueue()
    with app.worker(queues=["default"]):
        found = worst(app.control.examine(), QUEUES)
    assert (found.level, "queue other" in found.found) == (Level.PROBLEM, True)


def test_a_paused_queue_is_noted(app: App[Any]) -> None:
    assert worst(app.control.examine(), PAUSED).level is Level.OK
    app.control.pause("default")
    assert worst(app.control.examine(), PAUSED).level is Level.NOTE


def test_jobs_that_wait_long_are_a_warning() -> None:
    live = worker(queues=("mail",), tasks=("send",))

    def found(**fields: Any) -> dict[str, Level]:
        fields = {"due": 2, "oldest_due": NOW - HOUR, "ready_tasks": ("send",), **fields}
        queues = [stats(**fields)]
        return {one.check: one.level for one in check_queues(queues, seen_now(live, queues=queues), NOW)}

    waited = found()
    assert waited[WAITING.name] is Level.WARNING
    assert waited[QUEUES.name] is waited[TASKS.name] is Level.OK
    assert found(oldest_due=NOW - MINUTE)[WAITING.name] is Level.OK
    paused = found(paused=True)
    assert (paused[PAUSED.name], paused[WAITING.name]) == (Level.WARNING, Level.OK)
    assert found(paused=True, due=0, oldest_due=None)[PAUSED.name] is Level.NOTE


def test_an_unfinished_clear_is_noted() -> None:
    findings = list(check_queues([stats(clearing=True)], seen_now(), NOW))
    assert worst(findings, CLEARING).level is Level.NOTE
    assert findings_of(check_queues([stats()], seen_now(), NOW), CLEARING) == []


def test_failed_jobs_are_counted(app: App[Any]) -> None:
    assert worst(app.control.examine(), DEAD_LETTERS).level is Level.OK
    app.registry["gives_up"].enqueue()
    app.worker(until_empty=True).run()
    found = worst(app.control.examine(), DEAD_LETTERS)
    assert (found.level, "1 job has failed for good, in other (1)" in found.found) == (Level.NOTE, True)


@pytest.mark.parametrize(("jobs", "level"), [(1, Level.OK), (4, Level.WARNING), (5, Level.PROBLEM)])
def test_a_queue_near_its_limit_is_a_warning(
    url: str, monkeypatch: pytest.MonkeyPatch, jobs: int, level: Level
) -> None:
    monkeypatch.setenv("HOLDFAST_QUEUES_DEFAULT_MAX_DEPTH", "5")
    app: App[Any] = App(url)

    @app.task
    async def usual() -> None: ...

    for _ in range(jobs):
        usual.enqueue()
    assert examined(app, DEPTH).level is level
