"""Several processes on one store folder: waits, forks, files that are moved, notifications, killed workers."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from file_engine import file_store, read_ids, runner_of
from host_stores import holder_of_gate
from opened_engine import opened_engine
from sqlite_store import a_claim, job, success

from holdfast import App, Unsupported
from holdfast.engine import Engine
from holdfast.engines.file.engine import FileEngine
from holdfast.errors import EngineError, EngineUnavailable, OutcomeUnknown
from holdfast.model.job import JobKey
from holdfast.model.operate import Clear
from holdfast.model.produce import Enqueue
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState
from holdfast.model.work import Settlement, SettleStatus

LIMIT_S = 60
"""Far more than a write takes, far less than the children here live."""


def gate_of(path: Path) -> Path:
    return path / "holdfast" / "gate"


async def is_stored(engine: Engine, name: str) -> bool:
    return (await engine.get(JobKey("q", name))).jobs[0] is not None


def enqueue_now(engine: FileEngine, name: str) -> None:
    engine.perform_now(Enqueue(groups=(job(name),)))


# --- Waits ---


async def command(engine: FileEngine) -> None:
    await engine.enqueue(job("b"))


async def clear(engine: FileEngine) -> None:
    await engine.perform(Clear(queue="q"))


async def heartbeat(engine: FileEngine) -> None:
    with closing(engine.renewal_connection()) as connection:
        connection.heartbeat(WorkerRecord(worker="w", process=""))


# PF1
@pytest.mark.parametrize("write", [command, clear, heartbeat])
async def test_every_writer_waits_at_the_gate_and_not_for_ever(
    tmp_path: Path, write: Callable[[FileEngine], Awaitable[None]]
) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path, lock_timeout=0.3)) as engine:
        await engine.enqueue(job("a"))
        expected = pytest.raises(EngineUnavailable, match=r"gate was locked for 0\.3 s, so nothing was written")
        with holder_of_gate(gate_of(path)), expected:
            await write(engine)
        await write(engine)
        assert await engine.audit() == ()


# PF1
async def test_the_error_at_the_gate_names_the_process_that_is_stopped_inside_it(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path, lock_timeout=0.3)) as engine:
        await engine.enqueue(job("a"))
        with holder_of_gate(gate_of(path)) as holder:
            with pytest.raises(EngineUnavailable, match=rf"Process {holder.pid} \(python.*\) holds it and runs"):
                await engine.enqueue(job("b"))
            os.kill(holder.pid, signal.SIGSTOP)
            with pytest.raises(
                EngineUnavailable, match=rf"Process {holder.pid} .* is stopped.*kill -CONT {holder.pid}"
            ):
                await engine.enqueue(job("b"))
            assert await is_stored(engine, "a")  # reads do not pass the gate
            blocked_by = await engine.blocked_by()
            assert f"Process {holder.pid} " in blocked_by
            assert "is stopped" in blocked_by
            os.kill(holder.pid, signal.SIGCONT)
            await asyncio.to_thread(holder.leave)
            await engine.enqueue(job("b"))
            assert await engine.blocked_by() == ""


# PF1
async def test_a_store_with_a_stopped_writer_can_be_opened_read_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path)) as engine:
        await engine.enqueue(job("a"))
    with holder_of_gate(gate_of(path)) as holder:
        os.kill(holder.pid, signal.SIGSTOP)
        async with opened_engine(file_store(path)) as engine:
            assert await is_stored(engine, "a")
            assert "is stopped" in await engine.blocked_by()


# PF1
async def test_closing_a_store_does_not_wait_as_long_as_a_write(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    engine = file_store(path, lock_timeout=300.0)
    await engine.open()
    await engine.enqueue(job("a"))
    with holder_of_gate(gate_of(path)):
        waiting = asyncio.ensure_future(engine.enqueue(job("b")))
        await asyncio.sleep(0.1)
        await asyncio.wait_for(engine.close(), LIMIT_S)
        with pytest.raises(EngineUnavailable):
            await waiting


# --- Cancellations ---


# PF3
async def test_calls_that_are_cancelled_anywhere_leave_the_store_in_order(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path)) as engine, opened_engine(file_store(path)) as other:
        for number in range(40):
            call = asyncio.ensure_future(engine.enqueue(job(f"{number}")))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await engine.enqueue(job(f"after-{number}"))
            assert await is_stored(other, f"after-{number}")
        assert await engine.audit() == await other.audit() == ()
        assert [await is_stored(engine, f"{number}") for number in range(40)] == [
            await is_stored(other, f"{number}") for number in range(40)
        ]


# --- Files that are moved, removed or replaced ---


def move_folder(path: Path) -> None:
    (path / "holdfast").rename(path / "moved")


def move_root(path: Path) -> None:
    path.rename(path.with_name("moved"))


def remove_folder(path: Path) -> None:
    shutil.rmtree(path)


def remove_gate(path: Path) -> None:
    gate_of(path).unlink()


def replace_gate(path: Path) -> None:
    gate_of(path).unlink()
    gate_of(path).touch()


def remove_segment(path: Path) -> None:
    (path / "holdfast" / f"{1:016x}.journal").unlink()


def replace_segment(path: Path) -> None:
    segment = path / "holdfast" / f"{1:016x}.journal"
    content = segment.read_bytes()
    segment.unlink()
    segment.write_bytes(content)


@pytest.mark.parametrize(
    "change",
    [move_folder, move_root, remove_folder, remove_gate, replace_gate],
)
async def test_a_write_to_files_that_are_no_longer_at_their_paths_is_refused(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path)) as engine:
        await engine.enqueue(job("before"))
        change(path)
        for _ in range(2):
            with pytest.raises(
                EngineUnavailable, match=r"was (moved or removed|replaced) while it was in use"
            ) as error:
                await engine.enqueue(job("refused"))
            assert "Nothing was written" in str(error.value)
        with pytest.raises(EngineUnavailable), closing(engine.renewal_connection()) as renewals:
            renewals.heartbeat(WorkerRecord(worker="w"))
    if change in (move_folder, move_root, remove_folder):
        assert not (path / "holdfast").exists()  # the process has made no new, empty store


async def test_a_write_to_a_segment_that_is_no_longer_at_its_path_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path)) as engine:
        await engine.enqueue(job("before"))
        replace_segment(path)
        with pytest.raises(EngineUnavailable, match=r"was replaced while it was in use\. Nothing was written"):
            await engine.enqueue(job("refused"))
        await engine.enqueue(job("after"))  # it has loaded the store from the new file
        assert await engine.audit() == ()
        assert read_ids(path) == {"before", "after"}
        remove_segment(path)
        for _ in range(2):
            with pytest.raises(EngineError, match=r"0000000000000001\.journal (was moved or removed|is missing)"):
                await engine.enqueue(job("lost otherwise"))


async def test_a_read_of_a_folder_that_is_no_longer_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path)) as engine:
        await engine.enqueue(job("before"))
        move_root(path)
        with pytest.raises(EngineUnavailable, match="moved or removed"):
            await engine.get(JobKey("q", "before"))


async def test_a_folder_that_was_replaced_by_another_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path)) as engine:
        await engine.enqueue(job("old"))
        move_root(path)
        async with opened_engine(file_store(path)) as other:
            await other.enqueue(job("new"))
        with pytest.raises(EngineUnavailable, match="was replaced"):
            await engine.enqueue(job("refused"))
    assert read_ids(path) == {"new"}
    assert read_ids(tmp_path / "moved") == {"old"}


async def test_a_folder_that_is_moved_back_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path)) as engine:
        await engine.enqueue(job("before"))
        move_root(path)
        with pytest.raises(EngineUnavailable):
            await engine.enqueue(job("refused"))
        (tmp_path / "moved").rename(path)
        await engine.enqueue(job("after"))
        assert await engine.audit() == ()
    assert read_ids(path) == {"before", "after"}


async def test_an_engine_that_is_closed_and_opened_again_uses_the_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    engine = file_store(path)
    async with opened_engine(engine):
        await engine.enqueue(job("in the old folder".replace(" ", "-")))
    move_root(path)
    async with opened_engine(engine):
        await engine.enqueue(job("in-the-new-folder"))
    assert (read_ids(tmp_path / "moved"), read_ids(path)) == ({"in-the-old-folder"}, {"in-the-new-folder"})


async def test_a_folder_replaced_while_jobs_are_appended_leaves_their_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path)) as engine:
        await engine.enqueue(job("before"))
        journal = runner_of(engine).journal
        append = journal.append

        def move_and_append(*args: object, **options: object) -> None:
            move_root(path)
            append(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(journal, "append", move_and_append)
        with pytest.raises(OutcomeUnknown, match="look them up by id"):
            await engine.enqueue(job("during"))
    assert read_ids(tmp_path / "moved") == {"before", "during"}


PRODUCER = """
import sys
from holdfast.engines import open_engine
from holdfast.errors import EngineError
from holdfast.model.produce import Enqueue, Group, NewJob

engine = open_engine(sys.argv[1])
engine.open_now()
number = 0
while True:
    name = f"{sys.argv[2]}-{number}"
    try:
        engine.perform_now(Enqueue(groups=(Group((NewJob(queue="q", id=name, task="t"),)),)))
    except EngineError as error:
        print(type(error).__name__, error, file=sys.stderr)
        break
    print(name, flush=True)
    number += 1
engine.close_now()
"""
"""Enqueues until the store refuses, and prints the id of each job that was acknowledged."""


@contextmanager
def producers(path: Path, count: int) -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that have each enqueued a job, and go on."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PRODUCER, f"file://{path}", f"p{number}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline()
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


async def replace_under_load(path: Path) -> None:
    async with opened_engine(file_store(path)):
        pass
    acknowledged: set[str] = set()
    with producers(path, 2) as started:
        move_root(path)
        async with opened_engine(file_store(path)):
            pass
        for process in started:
            out, errors = process.communicate(timeout=LIMIT_S)
            acknowledged |= set(out.split())
            assert process.returncode == 0, errors
            assert errors.startswith(("EngineUnavailable", "OutcomeUnknown")), errors
    missing = acknowledged - read_ids(path.with_name("moved"))
    assert not missing, f"acknowledged and lost: {sorted(missing)[:5]}"
    assert read_ids(path) == set()


async def test_no_acknowledged_job_is_lost_when_the_folder_is_replaced_under_load(tmp_path: Path) -> None:
    await replace_under_load(tmp_path / "jobs")


@pytest.mark.chaos
@pytest.mark.parametrize("number", range(15))
async def test_no_acknowledged_job_is_lost_however_often_the_folder_is_replaced(tmp_path: Path, number: int) -> None:
    await replace_under_load(tmp_path / "jobs")


# --- Forks ---


PARENT = """
import asyncio, os, sys, time
from holdfast.engines import open_engine
from holdfast.model.records import WorkerRecord

async def main():
    engine = open_engine(sys.argv[1])
    await engine.open()
    await engine.heartbeat(WorkerRecord(worker="doomed", process=engine.process_name))
    with engine._thread.runner._gate:
        child = os.fork()
        if child == 0:
            time.sleep(120)
            os._exit(0)
        print(child, flush=True)
        time.sleep(120)

asyncio.run(main())
"""
"""Forks a child that lives on, and holds the gate until it is killed."""


# PF2
async def test_the_gate_and_the_record_of_a_killed_process_are_free_while_its_child_lives(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path)) as engine:
        parent = subprocess.Popen([sys.executable, "-c", PARENT, f"file://{path}"], stdout=subprocess.PIPE)
        assert parent.stdout is not None
        child = int(await asyncio.to_thread(parent.stdout.readline))
        try:
            assert await engine.ended_workers() == ()
            parent.kill()
            parent.wait(LIMIT_S)
            await asyncio.wait_for(engine.enqueue(job("a")), LIMIT_S)
            assert await engine.ended_workers() == ("doomed",)
            os.kill(child, 0)  # it still lives
        finally:
            os.kill(child, signal.SIGKILL)
            parent.stdout.close()


def exit_code_of_child(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


# PF2
def test_an_engine_is_refused_in_a_forked_child_which_can_open_its_own(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    engine = file_store(path)
    engine.open_now()
    enqueue_now(engine, "parent")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            enqueue_now(engine, "refused")
        except EngineUnavailable as error:
            own = file_store(path)
            own.open_now()
            enqueue_now(own, "child")
            code = 0 if "belongs to the parent process" in str(error) else 2
        finally:
            os._exit(code)
    assert exit_code_of_child(child) == 0
    enqueue_now(engine, "after")
    engine.close_now()
    assert read_ids(path) == {"parent", "child", "after"}


# PF2
async def test_children_forked_from_a_busy_process_can_write(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    engine = file_store(path)
    await engine.open()
    stop = asyncio.Event()
    written: set[str] = set()

    async def producer(name: str) -> None:
        while not stop.is_set():
            job_id = f"{name}-{len(written)}"
            await engine.enqueue(job(job_id))
            written.add(job_id)

    tasks = [asyncio.ensure_future(producer(f"producer{number}")) for number in range(4)]
    for number in range(10):
        await asyncio.sleep(0.02)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                own = file_store(path)
                own.open_now()
                enqueue_now(own, f"child-{number}")
                code = 0
            finally:
                os._exit(code)
        assert await asyncio.to_thread(exit_code_of_child, child) == 0
        written.add(f"child-{number}")
    stop.set()
    await asyncio.gather(*tasks)
    assert await engine.audit() == ()
    await engine.close()
    assert read_ids(path) == written


# --- Workers of other processes ---


async def test_a_killed_worker_is_noticed_at_once_and_its_late_answer_is_refused(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from holdfast.engines import open_engine
from holdfast.model.records import WorkerRecord
sys.path.insert(0, sys.argv[2])
from sqlite_store import a_claim

async def main():
    engine = open_engine(sys.argv[1])
    await engine.open()
    await engine.heartbeat(WorkerRecord(worker="doomed", process=engine.process_name))
    (lease,) = (await engine.claim(a_claim("doomed"))).leases
    print(lease.token, flush=True)
    sys.stdin.read()

asyncio.run(main())
"""
    path = tmp_path / "jobs"
    support = str(Path(__file__).parents[1] / "support")
    async with opened_engine(file_store(path)) as engine:
        await engine.enqueue(job("a"))
        worker = subprocess.Popen(
            [sys.executable, "-c", program, f"file://{path}", support], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert worker.stdout is not None
        assert worker.stdin is not None
        token = (await asyncio.to_thread(worker.stdout.readline)).decode().strip()
        assert await engine.ended_workers() == ()
        worker.kill()
        worker.wait(LIMIT_S)
        worker.stdout.close()
        worker.stdin.close()
        assert await engine.ended_workers() == ("doomed",)
        assert (await engine.disown("doomed")).leases == (JobKey("q", "a"),)
        (lost,) = (await engine.expired("me")).leases
        assert lost.token == token
        reap = Settlement(queue="q", id="a", token=token, target=JobState.FAILED, listed_expiry=lost.lease_expires)
        assert (await engine.settle(reap)).settled == (SettleStatus.APPLIED,)
        late = await engine.settle(Settlement(queue="q", id="a", token=token, target=JobState.SUCCEEDED))
        assert late.settled == (SettleStatus.LOST,)


async def test_the_record_of_another_process_with_the_same_number_is_not_its_own(tmp_path: Path) -> None:
    """A process number is used again some day: the name of a record also has a random part."""
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path)) as engine:
        ended = f"{os.getpid()}-00000000"
        await engine.heartbeat(WorkerRecord(worker="alive", process=engine.process_name))
        await engine.heartbeat(WorkerRecord(worker="unknown", process=ended))
        assert await engine.ended_workers() == ()  # there is no record of it: it may be anywhere


async def test_a_notification_reaches_another_process(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    program = """
import asyncio, sys
from holdfast.engines import open_engine

async def main():
    engine = open_engine(sys.argv[1])
    await engine.open()
    with engine.subscribe("queue:q") as subscription:
        print("ready", flush=True)
        print(*await subscription.wait(60), flush=True)
    await engine.close()

asyncio.run(main())
"""
    async with opened_engine(file_store(path)) as engine:
        listener = subprocess.Popen(
            [sys.executable, "-c", program, f"file://{path}"], stdout=subprocess.PIPE, text=True
        )
        assert listener.stdout is not None
        assert await asyncio.to_thread(listener.stdout.readline) == "ready\n"
        await engine.enqueue(job("a"))
        assert (await asyncio.to_thread(listener.communicate, None, LIMIT_S))[0] == "queue:q\n"


async def test_processes_that_create_the_same_store_at_once_all_succeed(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    with producers(path, 3) as started:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline()  # a second job: the store works
    assert {name.split("-")[0] for name in read_ids(path)} == {"p0", "p1", "p2"}


async def test_what_was_acknowledged_is_there_after_every_process_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    acknowledged: set[str] = set()
    with producers(path, 2) as started:
        for process in started:
            assert process.stdout is not None
            acknowledged |= set(process.stdout.readline().split())  # it writes
        for process in started:
            assert process.stdout is not None
            process.kill()
            acknowledged |= set(process.stdout.read().split())
    assert len(acknowledged) >= 2
    assert acknowledged <= read_ids(path)


async def test_copies_of_all_processes_agree_after_many_writes_and_new_segments(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with (
        opened_engine(file_store(path, segment_bytes=65_536)) as first,
        opened_engine(file_store(path, segment_bytes=65_536)) as second,
    ):
        for number in range(30):
            await (first, second)[number % 2].enqueue(
                *(job(f"{number}-{more}", payload=b"x" * 200) for more in range(20))
            )
            for lease in (await (second, first)[number % 2].claim(a_claim(f"w{number}", number, limit=15))).leases:
                await first.settle(success(lease))
        for engine in (first, second):
            assert await engine.audit() == ()
        assert (await first.stats()).queues == (await second.stats()).queues
        total = sum((await first.stats()).queues[0].counts.values())
    assert total == 600
    assert len(read_ids(path)) == 600


# --- What it does not offer ---


def test_a_users_transaction_is_unsupported_and_the_text_says_what_to_use(tmp_path: Path) -> None:
    jobs = App(f"file://{tmp_path}/jobs")

    @jobs.task
    def work() -> None: ...

    with jobs, closing(sqlite3.connect(":memory:")) as db, pytest.raises(Unsupported) as error:
        work.using(transaction=db).enqueue()
    assert "transaction" in str(error.value)
    assert (error.value.capability, error.value.engine) == ("user_transactions", "file")


# --- Two releases ---

LATER_RELEASE = """
import asyncio, sys
import msgspec
from file_engine import file_store
from sqlite_store import a_claim, job, success
from holdfast.engines.file import changes
from holdfast.model.job import JobRecord

pack = msgspec.msgpack.encode

def encode(value):
    data = pack(value)
    return pack([*msgspec.msgpack.decode(data), "a later field"]) if type(value) is JobRecord else data

changes._encode = encode

async def main():
    engine = file_store(sys.argv[1], segment_bytes=4096)
    await engine.open()
    for turn in range(int(sys.argv[2])):
        await engine.enqueue(job(f"later-{turn}"))
        leases = (await engine.claim(a_claim(f"{turn:032}"))).leases
        await engine.settle(*map(success, leases))
    assert await engine.audit() == ()
    await engine.close()

asyncio.run(main())
"""
"""A process of a release whose jobs have one field more."""


async def test_processes_of_two_releases_share_a_store(tmp_path: Path) -> None:
    turns = 40
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    later = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LATER_RELEASE, str(tmp_path / "jobs"), str(turns), env=environment
    )
    async with opened_engine(file_store(tmp_path / "jobs", segment_bytes=4096)) as engine:
        for turn in range(turns):
            await engine.enqueue(job(f"now-{turn}"))
            leases = (await engine.claim(a_claim(f"f{turn:031}"))).leases
            await engine.settle(*map(success, leases))
        assert await asyncio.wait_for(later.wait(), LIMIT_S) == 0
        while leases := (await engine.claim(a_claim("e" * 32))).leases:
            await engine.settle(*map(success, leases))
        assert (await engine.stats("q")).queues[0].counts == {JobState.SUCCEEDED: 2 * turns}
        assert await engine.audit() == ()
    async with opened_engine(file_store(tmp_path / "jobs", segment_bytes=4096)) as engine:
        assert (await engine.stats("q")).queues[0].counts == {JobState.SUCCEEDED: 2 * turns}
