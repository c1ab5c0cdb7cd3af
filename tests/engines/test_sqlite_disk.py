"""The disk under a SQLite store: a file that was moved or replaced, a full disk. No acknowledged job is lost."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from opened_engine import opened_engine
from sqlite_store import a_claim, job, store, writer_of

from holdfast.errors import EngineUnavailable, OutcomeUnknown
from holdfast.model.job import JobKey
from holdfast.model.records import WorkerRecord


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
