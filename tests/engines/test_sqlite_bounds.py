"""What the SQLite engine may cost, how its connections are set, and the time that processes share."""

import asyncio
import fcntl
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from opened_engine import opened_engine

from holdfast.engines import open_engine
from holdfast.engines.command_thread import CommandResult, CommandThread, _resolve
from holdfast.engines.sqlite import unfinished
from holdfast.engines.sqlite.connection import MAX_WAL_BYTES
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.reader import Reader
from holdfast.engines.sqlite.user_transactions import SqliteUserTransactions
from holdfast.engines.sqlite.writer import Writer
from holdfast.errors import EngineUnavailable, OutcomeUnknown
from holdfast.model.command import Command
from holdfast.model.instants import DAY, SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Now
from holdfast.model.produce import Enqueue, Group, GroupAccepted, NewJob
from holdfast.model.work import Claim, QueueClaim, TaskClaim
from holdfast.runtime import SystemRuntime
from holdfast.transactions import adapt

QUEUE = "q"


def store(path: Path, **options: Any) -> SqliteEngine:
    engine = open_engine(f"sqlite:///{path}", **options)
    assert isinstance(engine, SqliteEngine)
    return engine


def job(name: str, **options: Any) -> Group:
    return Group((NewJob(queue=QUEUE, id=name, task="t", **options),))


def a_claim(limit: int = 10) -> Claim:
    tasks = (TaskClaim(task="t", lease_len=30 * SECOND),)
    return Claim(claim_id=f"claim-{limit}", worker="w", queues=(QueueClaim(QUEUE, tasks),), limit=limit)


def writer_of(engine: SqliteEngine) -> Writer:
    assert engine._writer is not None
    runner = engine._writer.runner
    assert isinstance(runner, Writer)
    return runner


def pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


# Time


AHEAD_US = 2 * SECOND
"""By how much the clock of one process is ahead of another's."""


@asynccontextmanager
async def two_processes(path: Path) -> AsyncIterator[tuple[SqliteEngine, SqliteEngine, int]]:
    """Two engines on one file, and the time of a write by the first, whose clock is ahead."""
    ahead = SystemRuntime()
    ahead.clock_offset = AHEAD_US
    async with opened_engine(store(path, runtime=ahead)) as first, opened_engine(store(path)) as second:
        yield first, second, (await first.enqueue(job("a"))).at.wall


async def test_a_write_has_no_earlier_time_than_the_last_write_of_another_process(tmp_path: Path) -> None:
    async with two_processes(tmp_path / "x.db") as (_, second, at):
        assert (await second.enqueue(job("b"))).at.wall >= at


async def test_a_read_has_no_earlier_time_than_the_last_write_of_another_process(tmp_path: Path) -> None:
    async with two_processes(tmp_path / "x.db") as (_, second, at):
        assert (await second.get(JobKey(QUEUE, "a"))).at.wall >= at


def test_a_user_s_transaction_has_no_earlier_time_than_the_last_write_of_another_process(tmp_path: Path) -> None:
    async def write_ahead() -> int:
        async with two_processes(tmp_path / "x.db") as (_, _, at):
            return at

    at = asyncio.run(write_ahead())
    engine = store(tmp_path / "x.db")
    with closing(sqlite3.connect(tmp_path / "x.db")) as db:
        assert engine.perform_in(Enqueue(groups=(job("b"),)), adapt(db)).at.wall >= at
        db.rollback()


@pytest.mark.parametrize("uptime_us", [61 * SECOND, 365 * DAY])
async def test_a_lease_of_a_new_boot_expires_by_the_clock_of_that_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uptime_us: int
) -> None:
    """The host was up for this long, and has just restarted."""
    path = tmp_path / "x.db"
    before = SystemRuntime()
    monkeypatch.setattr(before, "boot_id", lambda: "the boot before")
    monkeypatch.setattr(before, "boot", lambda: uptime_us)
    async with opened_engine(store(path, runtime=before)) as engine:
        await engine.enqueue(job("a"))
        await engine.claim(a_claim(1))
    after = SystemRuntime()
    monkeypatch.setattr(after, "boot_id", lambda: "this boot")
    monkeypatch.setattr(after, "boot", lambda: 60 * SECOND)
    async with opened_engine(store(path, runtime=after)) as engine:
        await engine.enqueue(job("b"))
        (lease,) = (await engine.claim(a_claim(2))).leases
        assert lease.lease_expires == 90 * SECOND
        assert [lease.id for lease in (await engine.expired("w")).leases] == ["a"]


# Connections


def connections_of(engine: SqliteEngine) -> Iterator[sqlite3.Connection]:
    yield writer_of(engine).connection
    assert engine._reader is not None
    runner = engine._reader.runner
    assert isinstance(runner, Reader)
    yield runner.connection
    renewals: Any = engine.renewal_connection()
    yield renewals._writer.connection
    renewals.close()
    with engine.transaction() as connection:
        yield connection


async def test_no_connection_of_ours_checkpoints_by_itself_or_keeps_a_large_log(tmp_path: Path) -> None:
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        for connection in connections_of(engine):
            assert pragma(connection, "wal_autocheckpoint") == 0
            assert pragma(connection, "journal_size_limit") == MAX_WAL_BYTES


@pytest.mark.parametrize(("durability", "synchronous"), [("durable", 2), ("fast", 1), ("none", 0)])
async def test_every_connection_of_ours_syncs_as_the_durability_class_says(
    tmp_path: Path, durability: str, synchronous: int
) -> None:
    async with opened_engine(store(tmp_path / "x.db", durability=durability)) as engine:
        writer, reader, renewals, handler = (pragma(connection, "synchronous") for connection in connections_of(engine))
        assert (writer, reader, handler) == (synchronous,) * 3
        assert renewals <= synchronous  # a renewal may be lost in a crash of the host, which ends its leases anyway


async def test_a_durable_sync_empties_the_cache_of_the_disk_on_macos_too(tmp_path: Path) -> None:
    async with opened_engine(store(tmp_path / "x.db", durability="durable")) as engine:
        writer, _, _, handler = (pragma(connection, "fullfsync") for connection in connections_of(engine))
        assert (writer, handler) == (1, 1)


async def test_a_connection_that_reads_cannot_write(tmp_path: Path) -> None:
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        assert engine._reader is not None
        runner = engine._reader.runner
        assert isinstance(runner, Reader)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            runner.connection.execute("DELETE FROM holdfast_job")


@contextmanager
def gate_held(path: Path) -> Iterator[None]:
    """As by another process."""
    fd = os.open(f"{path}-gate", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


def test_a_file_that_is_prepared_is_opened_while_another_process_holds_the_gate(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    first, second = store(path), store(path, busy_timeout=0.2)
    first.open_now()
    with gate_held(path):
        second.open_now()
    second.close_now()
    first.close_now()


# Cost


async def test_a_claim_that_finds_nothing_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        await engine.claim(a_claim(1))
        outsider = sqlite3.connect(path)
        before = pragma(outsider, "data_version")
        await engine.claim(a_claim(2))
        assert pragma(outsider, "data_version") == before
        outsider.close()


class Checkpoints(list[str]):
    """The checkpoints that a connection runs."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(lambda sql: self.append(sql) if "wal_checkpoint" in sql else None)


async def test_a_log_that_has_grown_is_checkpointed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.sqlite.writer.CHECKPOINT_FRAMES", 250)
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        checkpoints = Checkpoints(writer_of(engine).connection)
        await engine.enqueue(job("small"))
        assert len(checkpoints) == 0
        await engine.enqueue(job("large", payload=b"x" * 1_100_000))
        assert len(checkpoints) == 1


async def test_a_checkpoint_that_a_reader_holds_up_is_tried_again_only_when_the_log_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engines.sqlite.writer.CHECKPOINT_FRAMES", 250)
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM holdfast_job").fetchone()
        checkpoints = Checkpoints(writer_of(engine).connection)
        await engine.enqueue(job("large", payload=b"x" * 1_100_000))
        for number in range(5):
            await engine.enqueue(job(f"small-{number}"))
        reader.close()
        assert len(checkpoints) == 1


async def test_the_log_is_overwritten_after_a_checkpoint_and_its_file_neither_shrinks_nor_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engines.sqlite.writer.CHECKPOINT_FRAMES", 250)
    path = tmp_path / "x.db"
    # With fast paths, the log is longer than its frames from the second commit on: see test_sqlite_log_ahead.py.
    async with opened_engine(store(path, fast_paths=False)) as engine:
        checkpoints = Checkpoints(writer_of(engine).connection)
        sizes = []
        for number in range(4):
            await engine.enqueue(job(f"{number}", payload=b"x" * 1_100_000))
            sizes.append((tmp_path / "x.db-wal").stat().st_size)
        assert len(checkpoints) == 4
        assert max(sizes) - min(sizes) < 100_000


async def test_a_log_that_another_process_has_begun_again_is_measured_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine, opened_engine(store(path)) as other:
        await engine.enqueue(job("a", payload=b"x" * 1_100_000))
        writer_of(other)._checkpoint()
        await other.enqueue(job("b"))
        await engine.enqueue(job("c"))
        assert writer_of(engine)._log_file.frames_to_move == 0


async def test_the_log_of_a_file_behind_a_link_is_checkpointed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.sqlite.writer.CHECKPOINT_FRAMES", 250)
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.db").symlink_to(tmp_path / "folder" / "real.db")
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        checkpoints = Checkpoints(writer_of(engine).connection)
        await engine.enqueue(job("large", payload=b"x" * 1_100_000))
        assert len(checkpoints) == 1


async def test_only_leased_jobs_stay_in_memory(tmp_path: Path) -> None:
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        for number in range(5):
            await engine.enqueue(job(str(number)))
        state: Any = writer_of(engine)._state
        assert state._jobs == {}
        await engine.claim(a_claim(2))
        assert len(state._jobs) == 2


async def test_a_claim_for_many_slots_reads_several_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.sqlite.ready_jobs.MAX_READY_ROWS", 2)
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        for number in range(5):
            await engine.enqueue(job(str(number)))
        assert [lease.id for lease in (await engine.claim(a_claim(5))).leases] == ["0", "1", "2", "3", "4"]


# Batches of commands


async def test_a_command_that_fails_does_not_fail_the_others_of_its_batch(tmp_path: Path) -> None:
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        no_command: Any = object()
        results = writer_of(engine).run([Enqueue(groups=(job("a"),)), no_command, Enqueue(groups=(job("b"),))])
        assert [result.error is None for result in results] == [True, False, True]
        assert None not in (await engine.get(JobKey(QUEUE, "a"), JobKey(QUEUE, "b"))).jobs


class FailingConnection:
    """A connection on which one statement fails with this error, after it was carried out."""

    def __init__(self, connection: sqlite3.Connection, statement: str, error: sqlite3.Error) -> None:
        self._connection = connection
        self._statement = statement
        self._error = error

    def execute(self, sql: str, *values: Any) -> Any:
        answer = self._connection.execute(sql, *values)
        if sql == self._statement:
            raise self._error
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def io_error() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    return error


async def test_a_commit_that_may_have_been_written_has_an_unknown_outcome(tmp_path: Path) -> None:
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        writer: Any = writer_of(engine)
        sound = writer.connection
        writer.connection = FailingConnection(sound, "COMMIT", io_error())
        with pytest.raises(OutcomeUnknown):
            await engine.enqueue(job("a"))
        writer.connection = sound
        assert (await engine.get(JobKey(QUEUE, "a"))).jobs != (None,)


async def test_a_rollback_that_fails_does_not_hide_why_the_write_failed(tmp_path: Path) -> None:
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        writer: Any = writer_of(engine)
        sound = writer.connection

        def fails(*given: Any) -> Any:
            raise sqlite3.OperationalError("the reason")

        writer.connection = FailingConnection(sound, "ROLLBACK", sqlite3.OperationalError("cannot rollback"))
        writer._decide, decide = fails, writer._decide
        with pytest.raises(EngineUnavailable, match="the reason"):
            await engine.enqueue(job("a"))
        writer.connection, writer._decide = sound, decide
        await engine.enqueue(job("b"))


async def test_a_write_waits_for_the_gate_for_a_limited_time(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path, busy_timeout=0.2)) as engine:
        with gate_held(path), pytest.raises(EngineUnavailable, match="was locked for"):
            await engine.enqueue(job("a"))
        await engine.enqueue(job("b"))


class Batches:
    """A runner that waits in its first batch, and records how many commands each batch has."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.began, self.go_on = threading.Event(), threading.Event()

    def run(self, commands: Sequence[Command[Any]]) -> list[CommandResult]:
        self.sizes.append(len(commands))
        self.began.set()
        assert self.go_on.wait(30)
        return [CommandResult(None, None, frozenset())] * len(commands)

    def recover(self) -> None: ...
    def shorten_waits(self) -> None: ...
    def close(self) -> None: ...


def test_a_batch_has_a_limited_number_of_commands_and_closing_runs_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.command_thread.MAX_BATCH", 3)
    runner = Batches()
    thread = CommandThread(lambda: runner, lambda topics: None, SystemRuntime(), "test writer")
    callers = [threading.Thread(target=thread.perform_now, args=(Now(),), daemon=True) for _ in range(8)]
    callers[0].start()
    assert runner.began.wait(30)
    for caller in callers[1:]:
        caller.start()
    while thread._pending.qsize() < 7:
        callers[1].join(0.005)
    closing = threading.Thread(target=thread.close, daemon=True)
    closing.start()
    while thread._pending.qsize() < 8:
        closing.join(0.005)
    runner.go_on.set()
    closing.join(30)
    assert not closing.is_alive()
    assert runner.sizes == [1, 3, 3, 1]


async def test_a_caller_that_was_cancelled_does_not_keep_the_others_from_their_answers() -> None:
    loop = asyncio.get_running_loop()
    cancelled, waiting = loop.create_future(), loop.create_future()
    cancelled.cancel()
    result = CommandResult("the answer", None, frozenset())
    _resolve([(cancelled, result), (waiting, result)])
    assert waiting.result() == "the answer"


# Unfinished work and users' transactions


async def test_the_end_of_a_clear_in_chunks_notifies_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished, "CHUNK_JOBS", 2)
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        for number in range(5):
            await engine.enqueue(job(str(number)))
        with engine.subscribe(f"queue:{QUEUE}") as subscription:
            assert (await engine.clear(QUEUE)).count == 5
            assert await subscription.wait(30) == {f"queue:{QUEUE}"}


async def test_a_command_that_fails_leaves_nothing_in_the_user_s_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.db"
    decide = SqliteUserTransactions._decide_in_savepoint

    def fails(self: SqliteUserTransactions, *given: Any) -> Any:
        decide(self, *given)
        raise RuntimeError("after it has written")

    async with opened_engine(store(path)) as engine:
        db = sqlite3.connect(path)
        (kept,) = (await engine.in_transaction(Enqueue(groups=(job("kept"),)), db)).groups
        assert isinstance(kept, GroupAccepted)
        with monkeypatch.context() as patch:
            patch.setattr(SqliteUserTransactions, "_decide_in_savepoint", fails)
            with pytest.raises(RuntimeError):
                await engine.in_transaction(Enqueue(groups=(job("lost"),)), db)
        db.commit()
        db.close()
        kept_record, lost_record = (await engine.get(JobKey(QUEUE, "kept"), JobKey(QUEUE, "lost"))).jobs
        assert kept_record is not None
        assert lost_record is None
        assert await engine.audit() == ()
