"""What `doctor` finds on stores in files: SQLite and the file engine, before they are opened."""

import asyncio
import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from findings import examine_app, examine_engine, examined, findings_of, worst
from gate_holder import gate_holder
from small_disk import SmallDisk, runtime_on

from holdfast import App
from holdfast.engines import open_engine
from holdfast.engines.disk_checks import LOW_BYTES, MEBIBYTE
from holdfast.engines.sqlite.examine import LONG_LOG_BYTES, check_version
from holdfast.errors import EngineUnavailable
from holdfast.files import Files, FileStatus
from holdfast.model.findings import (
    CLOCK,
    CONNECTION,
    DAMAGE,
    DISK_SPACE,
    DURABILITY,
    FILE_SYSTEM,
    LOG_SIZE,
    OPENING,
    PERMISSIONS,
    SCHEMA,
    VERSION,
    WRITES,
    Finding,
    Level,
)
from holdfast.runtime import SystemRuntime

ENGINES = ["sqlite", "file"]


def url_of(engine: str, folder: Path) -> str:
    return f"sqlite:///{folder}/jobs.db" if engine == "sqlite" else f"file://{folder}/jobs"


def make(url: str, **options: Any) -> None:
    """A store with a job."""
    app: App[Any] = App(url, **options)

    @app.task
    def usual() -> None: ...

    usual.enqueue()
    app.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_new_store_has_no_problem_of_its_own(engine: str, tmp_path: Path) -> None:
    make(url_of(engine, tmp_path))
    findings = examine_app(App(url_of(engine, tmp_path)))
    for check in (DURABILITY, SCHEMA, DISK_SPACE, CONNECTION, PERMISSIONS, WRITES):
        assert worst(findings, check).level is Level.OK, worst(findings, check)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_store_is_not_made_and_the_rest_is_checked(engine: str, tmp_path: Path) -> None:
    findings = examine_app(App(url_of(engine, tmp_path)))
    assert worst(findings, CONNECTION).level is Level.PROBLEM
    assert "There is no store at" in worst(findings, CONNECTION).found
    assert worst(findings, DISK_SPACE).level is Level.OK
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("durability", "level"), [("durable", Level.OK), ("fast", Level.NOTE), ("none", Level.WARNING)]
)
def test_the_durability_class_is_named(engine: str, tmp_path: Path, durability: Any, level: Level) -> None:
    make(url_of(engine, tmp_path), durability=durability)
    found = examined(App(url_of(engine, tmp_path), durability=durability), DURABILITY)
    assert (found.level, found.found.split(":")[0]) == (level, durability)


# --- The disk ---


class OtherFileSystem(Files):
    """Files on a file system of another type: none of these can be mounted without the rights of root."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def file_system_type(self, path: str | os.PathLike[str]) -> str:
        return self._kind


def on_file_system(engine: str, folder: Path, kind: str, **options: Any) -> Finding:
    runtime = SystemRuntime()
    runtime.fs = OtherFileSystem(kind)
    findings: list[Finding] = []
    with pytest.raises(Exception, match="no store at"):
        asyncio.run(open_engine(url_of(engine, folder), runtime=runtime, **options).examine(findings.append))
    return worst(findings, FILE_SYSTEM)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("nfs4", Level.PROBLEM),
        ("fuse.sshfs", Level.PROBLEM),
        ("tmpfs", Level.WARNING),
        ("overlay", Level.WARNING),
        ("", Level.NOTE),
        ("ext4", Level.OK),
        ("xfs", Level.OK),
    ],
)
def test_the_file_system_is_judged(engine: str, tmp_path: Path, kind: str, level: Level) -> None:
    assert (on_file_system(engine, tmp_path, kind)).level is level


class Unreadable(Files):
    """As for a user who may not enter the folder."""

    def status(self, path: str | os.PathLike[str]) -> FileStatus | None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_store_that_may_not_be_read_is_reported_by_name(engine: str, tmp_path: Path) -> None:
    make(url_of(engine, tmp_path))
    runtime = SystemRuntime()
    runtime.fs = Unreadable()
    findings: list[Finding] = []
    with pytest.raises(EngineUnavailable, match=r"cannot be examined .*Permission denied"):
        asyncio.run(open_engine(url_of(engine, tmp_path), runtime=runtime).examine(findings.append))
    assert worst(findings, FILE_SYSTEM).level is Level.OK


def test_a_network_disk_that_is_allowed_is_a_warning(tmp_path: Path) -> None:
    found = on_file_system("file", tmp_path, "nfs4", allow_network_disk=True)
    assert found.level is Level.WARNING


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="This system has no file system in memory at /dev/shm.")
def test_a_real_file_system_in_memory_is_found() -> None:
    kind = Files().file_system_type("/dev/shm")
    if kind != "tmpfs":
        pytest.skip(f"/dev/shm is {kind!r} here.")
    assert examined(App("sqlite:////dev/shm/holdfast-doctor-missing.db"), FILE_SYSTEM).level is Level.WARNING


@pytest.mark.parametrize("engine", ENGINES)
def test_a_disk_with_little_space_is_a_warning(engine: str, tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 2 * LOW_BYTES)
    store = open_engine(url_of(engine, tmp_path), runtime=runtime_on(disk))
    asyncio.run(store.migrate())
    assert worst(examine_engine(store), DISK_SPACE).level is Level.OK
    disk.fill(LOW_BYTES - 1)
    assert worst(examine_engine(store), DISK_SPACE).level is Level.WARNING


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reserve_in_use_is_a_problem(engine: str, tmp_path: Path) -> None:
    make(url_of(engine, tmp_path))
    reserve = tmp_path / ("jobs.db-reserve" if engine == "sqlite" else "jobs/holdfast/reserve")
    assert reserve.stat().st_size > 0
    os.truncate(reserve, 0)
    found = worst(examine_engine(open_engine(url_of(engine, tmp_path))), DISK_SPACE)
    assert found.level is Level.PROBLEM
    assert "no job is accepted" in found.found


# --- Permissions ---


def test_others_who_can_read_the_file_are_noted(tmp_path: Path) -> None:
    make(url_of("sqlite", tmp_path))
    store, file = open_engine(url_of("sqlite", tmp_path)), tmp_path / "jobs.db"
    tmp_path.chmod(0o755)
    file.chmod(0o644)
    assert worst(examine_engine(store), PERMISSIONS).level is Level.NOTE
    tmp_path.chmod(0o750)  # nobody else can enter the folder
    assert worst(examine_engine(store), PERMISSIONS).level is Level.OK


def test_others_who_can_write_are_a_problem(tmp_path: Path) -> None:
    make(url_of("sqlite", tmp_path))
    store = open_engine(url_of("sqlite", tmp_path))
    tmp_path.chmod(0o777)
    found = worst(examine_engine(store), PERMISSIONS)
    assert (found.level, f"chmod o-w {tmp_path}" in found.advice) == (Level.PROBLEM, True)
    tmp_path.chmod(0o700)
    (tmp_path / "jobs.db").chmod(0o606)
    assert worst(examine_engine(store), PERMISSIONS).level is Level.PROBLEM


def test_a_folder_that_a_file_store_refuses_is_a_problem(tmp_path: Path) -> None:
    make(url_of("file", tmp_path))
    (tmp_path / "jobs").chmod(0o777)
    found = worst(examine_engine(open_engine(url_of("file", tmp_path))), PERMISSIONS)
    assert (found.level, "chmod go-w" in found.found) == (Level.PROBLEM, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to every file")
def test_a_file_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    make(url_of("sqlite", tmp_path))
    (tmp_path / "jobs.db").chmod(0o400)
    found = worst(examine_engine(open_engine(url_of("sqlite", tmp_path))), PERMISSIONS)
    assert (found.level, "may not write" in found.found) == (Level.PROBLEM, True)


# --- SQLite ---


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ((3, 36, 0), Level.PROBLEM),
        ((3, 40, 1), Level.NOTE),
        ((3, 44, 5), Level.NOTE),
        ((3, 44, 6), Level.OK),
        ((3, 45, 0), Level.NOTE),
        ((3, 50, 7), Level.OK),
        ((3, 51, 2), Level.NOTE),
        ((3, 51, 3), Level.OK),
        ((3, 53, 0), Level.OK),
    ],
)
def test_versions_with_the_race_of_two_checkpoints(version: tuple[int, int, int], level: Level) -> None:
    assert check_version(version, has_other_tables=False).level is level


def test_the_race_is_a_warning_if_other_programs_use_the_file(tmp_path: Path) -> None:
    make(url_of("sqlite", tmp_path))
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        db.execute("CREATE TABLE orders (id INTEGER)")
    own = worst(examine_engine(open_engine(url_of("sqlite", tmp_path))), VERSION)
    assert own == check_version(sqlite3.sqlite_version_info, has_other_tables=True)
    assert check_version((3, 40, 1), has_other_tables=True).level is Level.WARNING
    assert check_version((3, 51, 3), has_other_tables=True).level is Level.OK


def test_another_journal_mode_is_a_warning(tmp_path: Path) -> None:
    make(url_of("sqlite", tmp_path))
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        assert db.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    found = worst(examine_engine(open_engine(url_of("sqlite", tmp_path))), DURABILITY)
    assert (found.level, "journal_mode delete" in found.found) == (Level.WARNING, True)


def test_a_clock_that_was_set_back_is_a_warning(tmp_path: Path) -> None:
    make(url_of("sqlite", tmp_path))
    store = open_engine(url_of("sqlite", tmp_path))
    assert findings_of(examine_engine(store), CLOCK) == []
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db, db:
        db.execute("UPDATE holdfast_meta SET wall = wall + 60000000")
    found = worst(examine_engine(store), CLOCK)
    assert (found.level, "the clock was set back" in found.found) == (Level.WARNING, True)


def test_a_long_log_is_a_warning(tmp_path: Path) -> None:
    """A log without a valid header has no frames, so SQLite ignores its content."""
    make(url_of("sqlite", tmp_path))
    store = open_engine(url_of("sqlite", tmp_path))
    assert worst(examine_engine(store), LOG_SIZE).level is Level.OK
    with open(tmp_path / "jobs.db-wal", "wb") as log:
        log.truncate(LONG_LOG_BYTES + MEBIBYTE)  # a sparse file: it takes no space
    assert worst(examine_engine(store), LOG_SIZE).level is Level.WARNING


@pytest.mark.parametrize(
    ("sql", "words"),
    [("UPDATE holdfast_meta SET version = 99", "version 99"), ("DROP TABLE holdfast_meta", "no tables of namespace")],
)
def test_a_schema_that_does_not_fit_is_a_problem_and_stays_as_it_is(tmp_path: Path, sql: str, words: str) -> None:
    make(url_of("sqlite", tmp_path))
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as db:
        db.execute(sql)
        before = db.execute("SELECT name FROM sqlite_schema ORDER BY name").fetchall()
    findings = examine_app(App(url_of("sqlite", tmp_path)))
    assert worst(findings, SCHEMA).level is Level.PROBLEM
    assert words in worst(findings, SCHEMA).found
    assert worst(findings, OPENING).level is Level.NOTE
    assert findings_of(findings, WRITES) == []
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        assert db.execute("SELECT name FROM sqlite_schema ORDER BY name").fetchall() == before


def test_a_file_that_is_no_database_is_reported_after_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"no database at all, but long enough for a header" * 40)
    findings = examine_app(App(url_of("sqlite", tmp_path)))
    assert worst(findings, CONNECTION).level is Level.PROBLEM
    assert "damaged or no SQLite database" in worst(findings, CONNECTION).found
    assert worst(findings, FILE_SYSTEM).level is Level.OK


def test_a_stopped_writer_is_named(tmp_path: Path) -> None:
    make(url_of("sqlite", tmp_path))
    with gate_holder(tmp_path / "jobs.db") as holder:
        found = examined(App(url_of("sqlite", tmp_path)), WRITES)
        holder.leave()
    assert found.level is Level.PROBLEM
    assert str(holder.pid) in found.found


# --- The file engine ---


def test_a_failed_sync_is_a_problem_and_the_store_is_not_opened(tmp_path: Path) -> None:
    make(url_of("file", tmp_path))
    (tmp_path / "jobs/holdfast/suspect").write_text("a sync has failed")
    before = sorted(os.listdir(tmp_path / "jobs/holdfast"))
    findings = examine_app(App(url_of("file", tmp_path)))
    assert worst(findings, DAMAGE).level is Level.PROBLEM
    assert worst(findings, OPENING).level is Level.NOTE
    assert sorted(os.listdir(tmp_path / "jobs/holdfast")) == before


@pytest.mark.parametrize(("suffix", "level"), [("damaged", Level.WARNING), ("torn", Level.NOTE), ("tmp", Level.OK)])
def test_files_that_were_set_aside_are_named(tmp_path: Path, suffix: str, level: Level) -> None:
    make(url_of("file", tmp_path))
    (tmp_path / f"jobs/holdfast/0000000000000001.{suffix}").write_bytes(b"x")
    assert worst(examine_engine(open_engine(url_of("file", tmp_path))), DAMAGE).level is level


@pytest.mark.parametrize(("text", "words"), [("holdfast file store, format 9\nid {}\n", "format 9"), ("x", "damaged")])
def test_another_format_is_a_problem(tmp_path: Path, text: str, words: str) -> None:
    make(url_of("file", tmp_path))
    (tmp_path / "jobs/holdfast/format").write_text(text.format("0" * 16))
    found = worst(examine_engine(open_engine(url_of("file", tmp_path))), SCHEMA)
    assert (found.level, words in found.found) == (Level.PROBLEM, True)


def test_a_store_in_memory_is_noted_and_not_opened() -> None:
    findings = examine_app(App("memory://"))
    assert worst(findings, DURABILITY).level is Level.NOTE
    assert findings_of(findings, CONNECTION) == []
