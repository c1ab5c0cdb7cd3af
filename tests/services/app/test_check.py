"""`jobs.check()`: the code of the next release reads every stored job, and the store stays as it is."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from manual_worker import take
from redis_stores import keys_of

from holdfast import App, EngineUnavailable, InvalidOption, Misfit, SchemaMismatch
from holdfast.codec import MsgpackCodec
from holdfast.model.command import Command
from holdfast.model.reads import READS
from holdfast.operate import checking

Snapshot = Callable[[], object]


@dataclass
class Release:
    """A store with the jobs of one release, Apps of the next one on it, and all that is stored there."""

    url: str
    options: dict[str, Any]
    snapshot: Snapshot
    first: App[Any]

    def next(self) -> App[Any]:
        """An App on the same store. In memory there is only one."""
        return self.first if self.url == "memory://" else App(self.url, **self.options)


def _sqlite_snapshot(path: Path, on_end: ExitStack) -> Snapshot:
    """One connection for both snapshots: its `data_version` changes with every commit of another connection."""
    db = on_end.enter_context(closing(sqlite3.connect(path, check_same_thread=False)))
    return lambda: (db.execute("PRAGMA data_version").fetchone(), list(db.iterdump()))


def _file_snapshot(folder: Path) -> Snapshot:
    return lambda: {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=["memory", "sqlite", "file", "postgres", "redis"])
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Release]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db", "file": f"file://{tmp_path}/jobs"}
    options: dict[str, Any] = {}
    url = urls.get(request.param, "")
    if not url:
        url, options["namespace"] = request.getfixturevalue(f"{request.param}_store")()
    app: App[Any] = App(url, **options)
    app.open()
    namespace = options.get("namespace", "")

    def postgres_rows() -> object:
        server = request.getfixturevalue("postgres_server")
        tables = server.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_type = 'BASE TABLE'",
            namespace,
        )
        return {
            name: sorted(map(str, server.execute(f'SELECT xmin, * FROM {namespace}."{name}"'))) for (name,) in tables
        }

    def redis_keys() -> object:
        server = request.getfixturevalue("redis_server")
        return {key: server.client.dump(key) for key in keys_of(server, namespace)}

    snapshots: dict[str, Callable[[], Snapshot]] = {
        "memory": lambda: lambda: app.control.find(limit=1000).jobs,
        "sqlite": lambda: _sqlite_snapshot(tmp_path / "jobs.db", on_end),
        "file": lambda: _file_snapshot(tmp_path / "jobs"),
        "postgres": lambda: postgres_rows,
        "redis": lambda: redis_keys,
    }
    with ExitStack() as on_end:
        on_end.callback(app.close)
        yield Release(url, options, snapshots[request.param](), app)


def fill(first: App[Any]) -> None:
    """Jobs of every live state, of known and unknown tasks, with payloads that fit and that do not."""
    resize, mail, gone = (first.client.task(name) for name in ("resize", "mail", "gone"))
    resize.using(id="running").enqueue("a.png", 3)
    asyncio.run(take(first, resize))
    resize.using(id="fits").enqueue("a.png", width=3)
    resize.using(id="no-number").enqueue("a.png", "wide")
    resize.using(id="later", delay=3600).enqueue("a.png", "wide")
    resize.using(id="missing").enqueue()
    resize.using(id="head", lane="l").enqueue("a.png", 1)
    resize.using(id="blocked", lane="l").enqueue("a.png", 1, 2, 3)
    mail.using(id="alias").enqueue("me")
    mail.using(id="other-queue", queue="mails").enqueue(7)
    gone.using(id="gone-1").enqueue()
    gone.using(id="gone-2", queue="mails").enqueue()
    first.queue("scans", dict[str, int]).enqueue({"a": 1}, id="scan")
    first.queue("scans", dict[str, str]).enqueue({"a": "b"}, id="odd-scan")
    first.queue("nowhere", int).enqueue(1, id="bare")


def declare_next(jobs: App[Any]) -> None:
    @jobs.task
    def resize(image: str, width: int = 800) -> None: ...

    @jobs.task(aliases=["mail"])
    def send(to: str) -> None: ...

    jobs.registry.payloads.clear()  # in memory the first release is the same App
    jobs.queue("scans", dict[str, int])


def test_what_does_not_fit_is_listed_and_nothing_is_written(release: Release) -> None:
    fill(release.first)
    jobs = release.next()
    declare_next(jobs)
    commands: set[type[Command[Any]]] = set()
    if jobs is not release.first:
        release.first.close()
    before = release.snapshot()
    try:
        jobs.engine  # made, not open: it would migrate  # noqa: B018
        with pytest.MonkeyPatch.context() as patch:
            engine_class = type(jobs.engine)
            perform = engine_class.perform

            async def noting(self: Any, command: Any) -> Any:
                commands.add(type(command))
                return await perform(self, command)

            patch.setattr(engine_class, "perform", noting)
            report = jobs.check()
            again = jobs.check(queues=["mails"])
    finally:
        if jobs is not release.first:
            jobs.close()
    assert release.snapshot() == before
    assert commands
    assert commands <= READS

    assert (report.checked, report.misfits, report.fits) == (14, 9, False)
    found = {(one.reason, one.task, one.field): one for one in report.problems}
    ids = {key: sorted(example.id for example in one.examples) for key, one in found.items()}
    assert ids == {
        (Misfit.DOES_NOT_FIT, "resize", "width"): ["later", "no-number"],
        (Misfit.DOES_NOT_FIT, "resize", "image"): ["missing"],
        (Misfit.DOES_NOT_FIT, "resize", ""): ["blocked"],
        (Misfit.DOES_NOT_FIT, "mail", "to"): ["other-queue"],
        (Misfit.UNKNOWN_TASK, "gone", ""): ["gone-1", "gone-2"],
        (Misfit.DOES_NOT_FIT, "", "[...]"): ["odd-scan"],
        (Misfit.UNKNOWN_TASK, "", "nowhere"): ["bare"],
    }
    assert (again.checked, again.misfits) == (2, 2)


def test_all_jobs_fit(release: Release) -> None:
    jobs = release.next()

    @jobs.task(aliases=["mail"])
    def send(to: str) -> None: ...

    for number in range(7):
        release.first.client.task("mail").enqueue(str(number))
    with closing(jobs):
        report = jobs.check()
    assert (report.checked, report.fits, report.problems) == (7, True, ())


# One engine


@pytest.fixture
def memory() -> Iterator[App[Any]]:
    with App[Any]("memory://") as jobs:
        yield jobs


def test_a_payload_that_cannot_be_read_is_listed_with_the_reason(memory: App[Any]) -> None:
    class Odd(MsgpackCodec):
        name = "odd"

    def ask() -> None: ...

    memory.task(codec=Odd())(ask).using(id="odd").enqueue()
    memory.registry.replace(App[Any]("memory://").task(ask))
    (problem,) = memory.check().problems
    assert (problem.reason, problem.task, problem.jobs) == (Misfit.UNREADABLE, "ask", 1)
    assert "`codec` 'odd' is not known here" in problem.message


def test_a_problem_names_some_jobs_and_counts_all(memory: App[Any]) -> None:
    for number in range(12):
        memory.client.task("gone").using(id=f"job-{number}").enqueue()
    memory.client.task("rare").enqueue()
    report = memory.check()
    assert [(one.task, one.jobs, len(one.examples)) for one in report.problems] == [("gone", 12, 5), ("rare", 1, 1)]


def test_different_problems_are_listed_up_to_a_limit(memory: App[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MAX_PROBLEMS", 3)
    for number in range(5):
        memory.client.task(f"gone-{number}").enqueue()
    report = memory.check()
    assert (report.misfits, len(report.problems)) == (5, 3)


def test_large_payloads_make_small_pages(memory: App[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[int] = []
    monkeypatch.setattr(checking, "PAGE_BYTES", 10_000)
    large, small = memory.client.task("large"), memory.client.task("small")
    memory.client.enqueue_many([small.using(queue="a").draft() for _ in range(2_000)])
    memory.client.enqueue_many([large.using(queue="b").draft("x" * 5_000) for _ in range(60)])
    done = 0

    def on_page(checked: int, total: int) -> None:
        nonlocal done
        pages.append(checked - done)
        done = checked
        assert total == 2_060

    assert memory.check(on_page=on_page).checked == sum(pages) == 2_060
    assert pages[0] == checking.FIRST_PAGE_JOBS
    assert max(pages) == checking.MAX_PAGE_JOBS
    assert pages[-1] == 1, "two payloads are more than a page should have"


def test_a_wrong_name_of_a_queue_is_refused(memory: App[Any]) -> None:
    with pytest.raises(InvalidOption):
        memory.check(queues=["\0"])


# Stores that must stay as they are


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/jobs.db", f"file://{tmp_path}/jobs"):
        jobs: App[Any] = App(url)
        with closing(jobs), pytest.raises(EngineUnavailable, match="There is no store"):
            jobs.check()
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_the_schema_is_not_migrated(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE mine (a)")
        db.commit()
        jobs: App[Any] = App(f"sqlite:///{path}", auto_migrate=True)
        with closing(jobs), pytest.raises(SchemaMismatch):
            jobs.check()
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
        jobs.open()  # as always, afterwards: an App that was closed makes a new engine
        jobs.close()
        assert len(db.execute("SELECT name FROM sqlite_master").fetchall()) > 1


def test_a_database_of_a_server_without_the_schema_is_not_migrated(postgres_server: Any) -> None:
    jobs: App[Any] = App(postgres_server.url(), namespace="never_made", auto_migrate=True)
    with closing(jobs), pytest.raises(SchemaMismatch):
        jobs.check()
    assert postgres_server.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ '^never_made'") == []
