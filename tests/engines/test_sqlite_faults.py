"""Faults of the SQLite engine's surroundings: each is a clear error, and no job is lost."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from opened_engine import opened_engine

from holdfast.engines import open_engine
from holdfast.engines.engine_clock import EngineClock
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.store import StoreOptions
from holdfast.engines.sqlite.writer import Writer
from holdfast.errors import ConfigError, CorruptRecord, EngineUnavailable, SchemaMismatch, StorageFull
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Now
from holdfast.model.produce import Group, GroupAccepted, NewJob
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState
from holdfast.model.work import Claim, QueueClaim, Settlement, SettleStatus, TaskClaim
from holdfast.runtime import SystemRuntime

QUEUE = "q"


def store(path: Path, **options: Any) -> SqliteEngine:
    engine = open_engine(f"sqlite:///{path}", **options)
    assert isinstance(engine, SqliteEngine)
    return engine


def job(name: str, **options: Any) -> Group:
    return Group((NewJob(queue=QUEUE, id=name, task="t", **options),))


def a_claim(worker: str, number: int = 0) -> Claim:
    tasks = (TaskClaim(task="t", lease_len=30 * SECOND),)
    return Claim(claim_id=f"{worker}-{number:030d}", worker=worker, queues=(QueueClaim(QUEUE, tasks),), limit=10)


def limit_pages(engine: SqliteEngine, pages: int) -> None:
    """Let SQLite behave as if the disk had room for this many pages only."""
    assert engine._writer is not None
    runner = engine._writer.runner
    assert isinstance(runner, Writer)
    runner.connection.execute(f"PRAGMA max_page_count = {pages}")


def test_two_processes_that_create_the_same_file_at_once_both_succeed(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from holdfast.engines import open_engine\n"
        "async def main():\n"
        "    engine = open_engine(sys.argv[1])\n"
        "    await engine.open()\n"
        "    print((await engine.now()).wall)\n"
        "    await engine.close()\n"
        "asyncio.run(main())\n"
    )
    address = f"sqlite:///{tmp_path}/race.db"
    racers = [
        subprocess.Popen([sys.executable, "-c", program, address], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(6)
    ]
    for racer in racers:
        _, errors = racer.communicate(timeout=60)
        assert racer.returncode == 0, errors.decode()


def test_two_migrators_in_one_process_do_no_harm(tmp_path: Path) -> None:
    def migrate(_: int) -> tuple[str, ...]:
        return asyncio.run(store(tmp_path / "x.db").migrate())

    with ThreadPoolExecutor(4) as threads:
        steps = list(threads.map(migrate, range(4)))
    assert sorted(steps) == [(), (), (), ("001 create",)]


def test_opening_a_new_file_waits_for_a_connection_that_opens_it_at_the_same_time(tmp_path: Path) -> None:
    """SQLite does not use its busy handler when it switches a file to the write-ahead log."""
    path = tmp_path / "x.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE theirs (x)")
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, other.execute, ["COMMIT"])
    timer.start()
    try:
        engine = store(path)
        engine.open_now()
        engine.close_now()
    finally:
        timer.join()
        other.close()


def test_threads_that_open_a_new_file_at_once_wait_for_each_other(tmp_path: Path) -> None:
    together = threading.Barrier(4)
    options = [StoreOptions(str(tmp_path / f"{number}.db"), "holdfast", "durable", 10.0) for number in range(30)]

    def open_and_close(store: StoreOptions) -> None:
        together.wait(60)
        runtime = SystemRuntime()
        writer = Writer(store, runtime, EngineClock(runtime))
        writer.prepare(auto_migrate=True)
        writer.close()

    with ThreadPoolExecutor(4) as threads:
        for store in options:
            list(threads.map(open_and_close, [store] * 4))


async def test_a_schema_from_a_later_release_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    await store(path).migrate()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE holdfast_meta SET version = 99")
    with pytest.raises(SchemaMismatch, match="99"):
        await store(path).open()


async def test_without_migration_an_empty_file_is_refused_and_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="holdfast migrate"):
        await store(tmp_path / "x.db", auto_migrate=False).open()


async def test_a_folder_that_does_not_exist_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="missing"):
        await store(tmp_path / "missing" / "x.db").open()


async def enqueue_one(path: Path) -> None:
    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("a"))


def error_without_rights(path: Path) -> str:
    """The error of a process that opens the store as a user without rights. (Root may write anywhere.)"""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        message = "opened"
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            store(path).open_now()
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        os.write(writer, message.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        message = pipe.read().decode()
    os.waitpid(child, 0)
    return message


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_file_or_folder_that_may_only_be_read_is_a_clear_error(tmp_path: Path, what: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-"))  # pytest's own folders are closed to others
    try:
        path = folder / "x.db"
        asyncio.run(enqueue_one(tmp_path / "warm-up.db"))
        if what == "file":
            asyncio.run(enqueue_one(path))
            folder.chmod(0o777)
            for file in folder.iterdir():
                file.chmod(0o444)
        else:
            folder.chmod(0o555)
        message = error_without_rights(path)
        assert message.startswith("EngineUnavailable"), message
        assert "x.db cannot be" in message
    finally:
        folder.chmod(0o777)
        shutil.rmtree(folder)


async def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"this is not a database, it is a letter to a friend\n" * 40)
    before = path.read_bytes()
    with pytest.raises(CorruptRecord, match="no SQLite database"):
        await store(path).open()
    assert path.read_bytes() == before


async def test_a_full_disk_refuses_the_job_and_loses_nothing(tmp_path: Path) -> None:
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        await engine.enqueue(job("kept"))
        limit_pages(engine, 60)
        with pytest.raises(StorageFull, match="Nothing was written"):
            await engine.enqueue(job("too-much", payload=b"x" * 2_000_000))
        limit_pages(engine, 1_000_000)
        answer = await engine.get(JobKey(QUEUE, "kept"), JobKey(QUEUE, "too-much"))
        assert [found is not None for found in answer.jobs] == [True, False]
        await engine.enqueue(job("later"))
        assert await engine.audit() == ()


async def test_another_program_that_locks_the_file_too_long_is_a_clear_error(tmp_path: Path) -> None:
    async with opened_engine(store(tmp_path / "x.db", busy_timeout=0.2)) as engine:
        await engine.enqueue(job("before"))
        outsider = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        outsider.execute("BEGIN IMMEDIATE")
        with pytest.raises(EngineUnavailable, match="locked"):
            await engine.enqueue(job("during"))
        assert (await engine.get(JobKey(QUEUE, "before"))).jobs[0] is not None  # reading goes on
        outsider.execute("ROLLBACK")
        await engine.enqueue(job("after"))
        found = (await engine.get(JobKey(QUEUE, "during"), JobKey(QUEUE, "after"))).jobs
        assert [record is not None for record in found] == [False, True]
        outsider.close()


async def test_another_program_that_unlocks_the_file_in_time_only_delays_a_write(tmp_path: Path) -> None:
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        await engine.enqueue(job("before"))
        outsider = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        outsider.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(engine.enqueue(job("during")))
        assert (await engine.get(JobKey(QUEUE, "during"))).jobs == (None,)
        outsider.execute("COMMIT")
        answer = await waiting
        assert isinstance(answer.groups[0], GroupAccepted)
        outsider.close()


def test_a_connection_is_refused_after_a_fork(tmp_path: Path) -> None:
    engine = store(tmp_path / "x.db")
    engine.open_now()
    child = os.fork()
    if child == 0:
        refused = 1
        try:
            engine.perform_now(Now())
        except EngineUnavailable as error:
            refused = 0 if "fork" in str(error) else 2
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    engine.close_now()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize(
    "kind", ["nfs", "cifs", "9p", "glusterfs", "ceph", "virtiofs", "vboxsf", "lustre", "fuse.sshfs", "fuse.rclone"]
)
async def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    runtime = SystemRuntime()
    monkeypatch.setattr(runtime.fs, "file_system_type", lambda path: kind)
    with pytest.raises(ConfigError, match=kind):
        await open_engine(f"sqlite:///{tmp_path}/x.db", runtime=runtime).open()


@pytest.mark.parametrize("kind", ["overlay", "fuseblk", "fuse.fuse-overlayfs", ""])
async def test_a_local_file_system_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    runtime = SystemRuntime()
    monkeypatch.setattr(runtime.fs, "file_system_type", lambda path: kind)
    async with opened_engine(open_engine(f"sqlite:///{tmp_path}/x.db", runtime=runtime)):
        pass


def test_a_second_user_who_may_write_the_file_may_pass_its_gate(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    for file_mode, gate_mode in ((0o644, 0o600), (0o664, 0o660), (0o666, 0o666)):
        path.touch()
        path.chmod(file_mode)
        engine = store(path)
        engine.open_now()
        engine.close_now()
        assert (tmp_path / "x.db-gate").stat().st_mode & 0o777 == gate_mode


@pytest.mark.parametrize("namespace", ["Robert'); DROP TABLE", "x" * 32, "", "1st", "a-b"])
def test_a_namespace_that_is_no_plain_word_is_refused(tmp_path: Path, namespace: str) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        store(tmp_path / "x.db", namespace=namespace)


@pytest.mark.parametrize(
    "address", ["sqlite://host/x.db", "sqlite:", "sqlite://", "sqlite:///:memory:", "sqlite:x?a=1"]
)
def test_an_address_that_names_no_file_is_refused(address: str) -> None:
    with pytest.raises(ConfigError):
        open_engine(address)


async def test_two_namespaces_in_one_file_do_not_see_each_other(tmp_path: Path) -> None:
    one, two = store(tmp_path / "x.db", namespace="one"), store(tmp_path / "x.db", namespace="two")
    await one.open()
    await two.open()
    await one.enqueue(job("a"))
    assert (await two.get(JobKey(QUEUE, "a"))).jobs == (None,)
    await one.close()
    await two.close()


async def test_what_was_acknowledged_is_there_after_the_process_was_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, signal, sys\n"
        "from holdfast.engines import open_engine\n"
        "from holdfast.model.produce import Group, NewJob\n"
        "async def main():\n"
        "    engine = open_engine(sys.argv[1])\n"
        "    await engine.open()\n"
        "    for n in range(50):\n"
        "        await engine.enqueue(Group((NewJob(queue='q', id=f'job-{n}', task='t'),)))\n"
        "        os.write(1, f'job-{n}\\n'.encode())\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    path = tmp_path / "x.db"
    child = subprocess.run(
        [sys.executable, "-c", program, f"sqlite:///{path}"], capture_output=True, timeout=60, check=False
    )
    assert child.returncode == -signal.SIGKILL
    acknowledged = child.stdout.decode().split()
    assert len(acknowledged) == 50

    async with opened_engine(store(path)) as engine:
        found = (await engine.get(*(JobKey(QUEUE, name) for name in acknowledged))).jobs
        assert all(record is not None for record in found)
        assert await engine.audit() == ()


HOLDER = (
    "import asyncio, os, sys\n"
    "from holdfast.engines import open_engine\n"
    "from holdfast.model.instants import SECOND\n"
    "from holdfast.model.records import WorkerRecord\n"
    "from holdfast.model.work import Claim, QueueClaim, TaskClaim\n"
    "async def main():\n"
    "    engine = open_engine(sys.argv[1])\n"
    "    await engine.open()\n"
    "    await engine.heartbeat(WorkerRecord(worker='doomed', process=engine.process_name))\n"
    "    tasks = (TaskClaim(task='t', lease_len=30 * SECOND),)\n"
    "    queues = (QueueClaim('q', tasks),)\n"
    "    answer = await engine.claim(Claim(claim_id='d' * 32, worker='doomed', queues=queues, limit=1))\n"
    "    print(answer.leases[0].token, flush=True)\n"
    "    await engine.subscribe('nothing').wait()\n"
    "asyncio.run(main())\n"
)


async def test_a_killed_worker_is_noticed_at_once_and_its_late_answer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"

    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("a"))
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HOLDER, f"sqlite:///{path}", stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        token = (await child.stdout.readline()).decode().strip()
        assert await engine.ended_workers() == ()
        os.kill(child.pid, signal.SIGSTOP)
        assert await engine.ended_workers() == ()  # a stopped process has not ended: only its lease expires
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        assert await engine.ended_workers() == ("doomed",)

        assert (await engine.expired("me")).leases == ()
        assert (await engine.disown("doomed")).leases == (JobKey(QUEUE, "a"),)
        (lost,) = (await engine.expired("me")).leases
        assert lost.token == token
        reaped = await engine.settle(
            Settlement(queue=QUEUE, id="a", token=token, target=JobState.RETRYING, listed_expiry=lost.lease_expires)
        )
        assert reaped.settled == (SettleStatus.APPLIED,)
        late = await engine.settle(Settlement(queue=QUEUE, id="a", token=token, target=JobState.SUCCEEDED))
        assert late.settled == (SettleStatus.LOST,)
        (again,) = (await engine.claim(a_claim("me"))).leases
        assert (again.attempt, again.losses) == (2, 1)


# N6
async def test_a_notification_reaches_another_process(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    program = (
        "import asyncio, sys\n"
        "from holdfast.engines import open_engine\n"
        "from holdfast.model.produce import Group, NewJob\n"
        "async def main():\n"
        "    engine = open_engine(sys.argv[1])\n"
        "    await engine.open()\n"
        "    await engine.enqueue(Group((NewJob(queue='q', id='a', task='t'),)))\n"
        "    await engine.close()\n"
        "asyncio.run(main())\n"
    )

    async with opened_engine(store(path)) as engine:
        subscription = engine.subscribe("queue:q")
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, f"sqlite:///{path}")
        assert await subscription.wait(60) == {"queue:q"}
        assert await process.wait() == 0


# TM2
async def test_a_lease_of_an_earlier_boot_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as before:
        await before.enqueue(job("a"))
        assert len((await before.claim(a_claim("before"))).leases) == 1

    runtime = SystemRuntime()
    monkeypatch.setattr(runtime, "boot_id", lambda: "another boot")
    monkeypatch.setattr(runtime, "boot", lambda: 5 * SECOND)
    async with opened_engine(open_engine(f"sqlite:///{path}", runtime=runtime)) as after:
        assert [lease.id for lease in (await after.expired("after")).leases] == ["a"]
        assert await after.audit() == ()

    engine = open_engine(f"sqlite:///{path}", runtime=runtime)
    assert isinstance(engine, SqliteEngine)
    async with opened_engine(engine) as engine:
        assert [lease.id for lease in (await engine.expired("after")).leases] == ["a"]
        assert await engine.audit() == ()


async def test_a_record_without_a_process_never_counts_as_ended(tmp_path: Path) -> None:
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        await engine.heartbeat(WorkerRecord(worker="elsewhere", process="4711-deadbeef"))
        await engine.heartbeat(WorkerRecord(worker="silent", process=""))
        await engine.heartbeat(WorkerRecord(worker="me", process=engine.process_name))
        assert await engine.ended_workers() == ()


@pytest.mark.parametrize("damaged", ["head", "behind"])
async def test_a_damaged_record_is_set_aside_and_its_lane_goes_on(tmp_path: Path, damaged: str) -> None:
    """E-D17"""
    path = tmp_path / "x.db"
    names = ["head", "behind", "last"]

    async with opened_engine(store(path)) as engine:
        for name in names:
            await engine.enqueue(job(name, lane="L"))
        with sqlite3.connect(path) as outsider:
            outsider.execute("UPDATE holdfast_job SET body = x'c1c1' WHERE id = ?", (damaged,))
        outsider.close()
        done = []
        for number in range(2):
            (lease,) = (await engine.claim(a_claim("w", number))).leases
            done.append(lease.id)
            settle = Settlement(queue=QUEUE, id=lease.id, token=lease.token, target=JobState.SUCCEEDED)
            assert (await engine.settle(settle)).settled == (SettleStatus.APPLIED,)
        assert done == [name for name in names if name != damaged]
        record = (await engine.get(JobKey(QUEUE, damaged))).jobs[0]
        assert record is not None
        assert (record.state, record.reason) == (JobState.FAILED, "undecodable")
        assert (await engine.stats(QUEUE)).queues[0].totals.failed == 1
        assert await engine.audit() == ()
        with sqlite3.connect(path) as outsider:
            kept = outsider.execute("SELECT id, body FROM holdfast_damaged").fetchall()
        outsider.close()
        assert kept == [(damaged, b"\xc1\xc1")]


async def test_a_record_that_names_another_task_than_the_index_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "x.db"

    async with opened_engine(store(path)) as engine:
        for name in ("a", "b"):
            await engine.enqueue(job(name))
        with sqlite3.connect(path) as outsider:
            ((body,),) = outsider.execute("SELECT body FROM holdfast_job WHERE id = 'a'").fetchall()
            assert body.count(b"\xa1t") == 1  # the name of the task, packed
            flipped = body.replace(b"\xa1t", b"\xa1u")
            outsider.execute("UPDATE holdfast_job SET body = ? WHERE id = 'a'", (flipped,))
        outsider.close()
        (lease,) = (await engine.claim(a_claim("w", 1))).leases
        assert lease.id == "b"
        record = (await engine.get(JobKey(QUEUE, "a"))).jobs[0]
        assert record is not None
        assert (record.state, record.reason) == (JobState.FAILED, "undecodable")


async def test_reading_a_damaged_record_sets_it_aside_too(tmp_path: Path) -> None:
    path = tmp_path / "x.db"

    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("a"))
        with sqlite3.connect(path) as outsider:
            outsider.execute("UPDATE holdfast_job SET body = x'93'")
        outsider.close()
        record = (await engine.get(JobKey(QUEUE, "a"))).jobs[0]
        assert record is not None
        assert record.state is JobState.FAILED
        assert await engine.audit() == ()


async def test_a_folder_too_deep_for_a_socket_means_polling_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))

    async with opened_engine(store(tmp_path / "x.db")) as engine:
        await engine.enqueue(job("a"))
        assert (engine.process_name, await engine.ended_workers()) == ("", ())
    assert "they poll" in caplog.text


async def test_a_failing_checkpoint_does_not_undo_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.sqlite.writer.CHECKPOINT_FRAMES", 0)

    async with opened_engine(store(tmp_path / "x.db")) as engine:
        with sqlite3.connect(tmp_path / "x.db") as reader:  # an open reader keeps the log from being emptied
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM holdfast_job").fetchone()
            answer = await engine.enqueue(job("a"))
            assert isinstance(answer.groups[0], GroupAccepted)
        reader.close()


# PF3
async def test_an_unexpected_error_fails_the_batch_and_not_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_engine(store(tmp_path / "x.db")) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(Writer, "run", lambda writer, commands: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await engine.enqueue(job("a"))
        await engine.enqueue(job("b"))
