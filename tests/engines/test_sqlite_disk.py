"""The disk under a SQLite store: a file that was moved or replaced, a full disk. No acknowledged job is lost."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from opened_engine import opened_engine
from sqlite_store import a_claim, job, store, success, writer_of

from holdfast.engines.sqlite.engine import SqliteRenewalConnection
from holdfast.engines.sqlite.reader import Reader
from holdfast.engines.sqlite.reserve import Reserve
from holdfast.errors import EngineUnavailable, OutcomeUnknown, StorageFull
from holdfast.files import AppendFile
from holdfast.model.job import JobKey
from holdfast.model.records import WorkerRecord
from holdfast.model.work import SettleStatus


def ids_in(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as db:
        return {row[0] for row in db.execute("SELECT id FROM holdfast_job")}


def move(path: Path, to: Path) -> None:
    """Move a database, with its log, as an operator would."""
    for suffix in ("", "-wal", "-shm"):
        if path.with_name(path.name + suffix).exists():
            shutil.move(path.with_name(path.name + suffix), to.with_name(to.name + suffix))


# --- A file that is moved, replaced or restored ---


@pytest.mark.parametrize("what", ["moved", "removed", "replaced"])
async def test_a_write_to_a_file_that_is_no_longer_at_its_path_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("before"))
        move(path, tmp_path / "old.db")
        if what == "removed":
            os.remove(tmp_path / "old.db")
        if what == "replaced":
            async with opened_engine(store(path)) as other:
                await other.enqueue(job("of another process"))
        with pytest.raises(EngineUnavailable, match=r"x\.db was (moved|replaced).*Nothing was written") as caught:
            await engine.enqueue(job("refused"))
        assert "rollback" not in str(caught.value)
        with pytest.raises(EngineUnavailable, match=r"x\.db was (moved|replaced)"):
            await engine.get(JobKey("q", "before"))
        with pytest.raises(EngineUnavailable, match=r"x\.db was (moved|replaced)"):
            engine.renewal_connection()
    if what == "replaced":
        assert ids_in(path) == {"of another process"}
    else:
        assert not path.exists()  # no connection of the process has made a new, empty file


async def test_every_connection_of_a_process_refuses_a_replaced_file(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("before"))
        renewals = engine.renewal_connection()
        move(path, tmp_path / "old.db")
        async with opened_engine(store(path)):
            pass
        with pytest.raises(EngineUnavailable, match="was replaced"):
            renewals.heartbeat(WorkerRecord(worker="w"))
        renewals.close()
        with pytest.raises(EngineUnavailable, match="was replaced"):
            engine.renewal_connection()
        with pytest.raises(EngineUnavailable, match="was replaced"), engine.transaction():
            pass


async def test_a_file_that_is_moved_back_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("before"))
        move(path, tmp_path / "old.db")
        with pytest.raises(EngineUnavailable):
            await engine.enqueue(job("refused"))
        move(tmp_path / "old.db", path)
        await engine.enqueue(job("after"))
        assert await engine.audit() == ()
    assert ids_in(path) == {"before", "after"}


async def test_an_engine_that_is_closed_and_opened_again_uses_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    engine = store(path)
    async with opened_engine(engine):
        await engine.enqueue(job("in the old file"))
    move(path, tmp_path / "old.db")
    async with opened_engine(engine):
        await engine.enqueue(job("in the new file"))
    assert (ids_in(tmp_path / "old.db"), ids_in(path)) == ({"in the old file"}, {"in the new file"})


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_file_replaced_while_a_write_is_committed_leaves_its_outcome_unknown(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("before"))
        writer, moved = writer_of(engine), path.with_name(path.name + suffix)

        def move_at_commit(statement: str) -> None:
            if statement == "COMMIT":
                moved.rename(tmp_path / "moved")

        writer.connection.set_trace_callback(move_at_commit)
        with pytest.raises(OutcomeUnknown, match="log was moved or replaced"):
            await engine.enqueue(job("during"))
        writer.connection.set_trace_callback(None)
        (tmp_path / "moved").rename(moved)
        assert (await engine.get(JobKey("q", "during"))).jobs[0] is not None


async def test_a_removed_log_is_noticed_before_the_next_acknowledgement(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("before"))
        os.remove(tmp_path / "x.db-wal")
        with pytest.raises(OutcomeUnknown, match="log was moved or replaced"):
            await engine.enqueue(job("lost otherwise"))
        with pytest.raises(EngineUnavailable, match=r"x\.db-wal"):
            await engine.claim(a_claim("w"))


async def test_queues_of_a_store_that_was_restored_to_an_earlier_state_are_not_mixed_up(tmp_path: Path) -> None:
    """`.restore` and the backup API write through SQLite's locks: the file stays, its content goes back."""
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine, opened_engine(store(path)) as other:
        with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
            live.backup(backup)
            await engine.enqueue(job("a", queue="first"))
            await engine.enqueue(job("b", queue="second"))
            backup.backup(live)
        await other.enqueue(job("c", queue="second"))  # gets the number that "first" had
        await engine.enqueue(job("d", queue="first"))
        assert await engine.audit() == ()
        assert [lease.id for lease in (await engine.claim(a_claim("w", queue="first"))).leases] == ["d"]


# --- A full disk ---


class FullDisk(NamedTuple):
    accepted: list[str]
    settled: int
    errors: dict[str, int]
    recovered: bool
    messages: dict[str, str]


def play_full_disk(path: Path, what: str) -> FullDisk:
    program = Path(__file__).parents[1] / "support" / "full_disk_app.py"
    played = subprocess.run(
        [sys.executable, program, path, what], capture_output=True, text=True, timeout=100, check=False
    )
    assert played.returncode == 0, played.stderr
    return FullDisk(*json.loads(played.stdout))


def test_a_full_disk_refuses_jobs_as_storage_full_and_keeps_every_accepted_one(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    played = play_full_disk(path, "enqueue")
    assert set(played.errors) == {"StorageFull"}
    assert "Nothing was written" in played.messages["StorageFull"]
    assert played.recovered
    assert ids_in(path) == set(played.accepted)


def test_jobs_are_still_claimed_and_settled_while_the_disk_is_full(tmp_path: Path) -> None:
    played = play_full_disk(tmp_path / "x.db", "settle")
    assert (set(played.errors), played.recovered) == ({"StorageFull"}, True)
    assert played.settled == len(played.accepted) - 1  # one is enqueued at the end


async def test_no_process_enqueues_while_the_reserve_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine, opened_engine(store(path)) as other:
        await engine.enqueue(job("before"))
        writer_of(engine)._reserve.release()
        with monkeypatch.context() as full_disk:
            full_disk.setattr(Reserve, "grow", lambda *_, **__: False)
            for refusing in (engine, other):
                with pytest.raises(StorageFull, match="Nothing was written"):
                    await refusing.enqueue(job("refused"))
            (lease,) = (await other.claim(a_claim("w"))).leases
            assert (await engine.settle(success(lease))).settled == (SettleStatus.APPLIED,)
        for number, accepting in enumerate((engine, other)):
            writer_of(accepting)._reserve._refill_at_us = 0
            await accepting.enqueue(job(f"after-{number}"))
        assert (tmp_path / "x.db-reserve").stat().st_size > 0
        assert await engine.audit() == ()


async def test_a_reserve_that_another_process_has_emptied_is_filled_again_before_a_job_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.db"

    def no_space(file: object, length: int) -> None:
        raise OSError("no space left")

    async with opened_engine(store(path)) as engine, opened_engine(store(path)) as other:
        for number, process in enumerate((engine, other)):  # both know how large it is
            await process.enqueue(job(f"before-{number}"))
        writer_of(engine)._reserve.release()
        with monkeypatch.context() as full_disk:
            full_disk.setattr(AppendFile, "allocate", no_space)
            with pytest.raises(StorageFull):
                await other.enqueue(job("refused"))
        writer_of(other)._reserve._refill_at_us = 0
        await other.enqueue(job("after"))
        assert (tmp_path / "x.db-reserve").stat().st_size > 0


async def test_checkpoints_go_on_after_one_that_failed_on_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("before"))
        with closing(sqlite3.connect(path)) as reader:  # a reader keeps pages in the log, as a failed write does
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM holdfast_job").fetchone()
            await engine.enqueue(job("later"))
            writer_of(engine)._use_reserve()
        writer_of(engine)._reserve.is_released()  # there is space again
        for number in range(20):
            await engine.enqueue(job(f"{number}", payload=b"x" * 1_000_000))
        assert path.stat().st_size > 10_000_000  # the log was moved into the database


def test_a_handlers_transaction_on_a_full_disk_is_not_an_unknown_outcome(tmp_path: Path) -> None:
    errors = play_full_disk(tmp_path / "x.db", "transaction").errors
    assert not [name for name in errors if "OutcomeUnknown" in name]
    assert [name for name in errors if name.startswith("transaction")]


async def test_the_reserve_covers_what_the_log_has_to_move_into_the_database(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        for number in range(4):
            await engine.enqueue(job(f"{number}", payload=b"x" * 1_000_000))
        with closing(sqlite3.connect(path)) as db:
            pages, page_bytes = db.execute("SELECT * FROM pragma_page_count, pragma_page_size").fetchone()
        missing = pages * page_bytes - path.stat().st_size
        status = (tmp_path / "x.db-reserve").stat()
        assert status.st_size >= missing > 3_000_000
        assert status.st_blocks * 512 >= missing  # it occupies the space


# --- Transactions that end badly ---


class FailingCommit:
    """A connection whose next COMMIT takes effect and reports an error all the same, as a failed sync does."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.fails = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *values: Any) -> Any:
        cursor = self._connection.execute(statement, *values)
        if statement == "COMMIT" and self.fails:
            self.fails = False
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return cursor


async def test_a_commit_with_an_unknown_outcome_is_not_reported_as_nothing_written(tmp_path: Path) -> None:
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        await engine.enqueue(job("before"))
        writer_of(engine).connection = FailingCommit(writer_of(engine).connection)  # type: ignore[assignment]
        with pytest.raises(OutcomeUnknown, match="may or may not have been written"):
            await engine.enqueue(job("during"))
        assert (await engine.get(JobKey("q", "during"))).jobs[0] is not None
        await engine.enqueue(job("after"))
        assert await engine.audit() == ()


async def test_after_a_rollback_two_new_queues_do_not_share_a_number(tmp_path: Path) -> None:
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        pages = writer_of(engine).connection.execute("PRAGMA page_count").fetchone()[0]
        writer_of(engine).connection.execute(f"PRAGMA max_page_count = {pages + 20}")
        with pytest.raises(StorageFull):
            await engine.enqueue(job("too large", queue="first", payload=b"x" * 1_000_000))
        await engine.enqueue(job("b", queue="second"))  # gets the number that "first" did not get
        await engine.enqueue(job("a", queue="first"))
        assert [lease.id for lease in (await engine.claim(a_claim("w", queue="first"))).leases] == ["a"]
        assert [lease.id for lease in (await engine.claim(a_claim("w", 1, queue="second"))).leases] == ["b"]
        assert await engine.audit() == ()


@pytest.mark.parametrize(("durability", "level"), [("durable", 2), ("fast", 1), ("none", 0)])
async def test_every_connection_syncs_as_its_durability_class_says(tmp_path: Path, durability: str, level: int) -> None:
    """2 is FULL, 1 is NORMAL, 0 is OFF. A lease need not survive a restart of the host, so a renewal is never FULL."""

    def level_of(connection: sqlite3.Connection) -> int:
        (found,) = connection.execute("PRAGMA synchronous").fetchone()
        return int(found)

    async with opened_engine(store(tmp_path / "x.db", durability=durability)) as engine:
        renewals = engine.renewal_connection()
        assert isinstance(renewals, SqliteRenewalConnection)
        assert engine._reader is not None
        assert isinstance(engine._reader.runner, Reader)
        with engine.transaction() as own:
            assert level_of(own) == level
        assert level_of(writer_of(engine).connection) == level
        assert level_of(engine._reader.runner.connection) == level
        assert level_of(renewals._writer.connection) == min(level, 1)
        renewals.close()
