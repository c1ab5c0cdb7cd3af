"""Processes that fork: no lock of ours survives in the child, and the child leaves the parent's connections alone."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from eventually import eventually

from holdfast import forks
from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.store_file import LogFile
from holdfast.errors import EngineUnavailable, UsageError
from holdfast.model.produce import Enqueue, Group, NewJob

LIMIT_S = 20
"""Far more than a write takes, far less than the children here live."""

PARENT = """
import asyncio, os, sys, time
from holdfast.engines import open_engine
from holdfast.model.records import WorkerRecord

async def main():
    engine = open_engine(sys.argv[1])
    await engine.open()
    await engine.heartbeat(WorkerRecord(worker="doomed", process=engine.process_name))
    with engine.transaction():
        child = os.fork()
        if child == 0:
            time.sleep(120)
            os._exit(0)
        print(child, flush=True)
        time.sleep(120)

asyncio.run(main())
"""
"""Forks a child that lives on, and holds the gate until it is killed."""


def opened(path: Path) -> SqliteEngine:
    engine = open_engine(f"sqlite:///{path}")
    assert isinstance(engine, SqliteEngine)
    engine.open_now()
    return engine


async def enqueue(engine: Engine, name: str) -> None:
    await asyncio.wait_for(engine.enqueue(Group((NewJob(queue="q", id=name, task="t"),))), LIMIT_S)


@contextmanager
def child_that_waits() -> Iterator[int]:
    """A forked child that does nothing until the end of the block."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        yield child
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def exit_code_of_child(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


class Participant(forks.AtFork):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def before_fork(self) -> None:
        self.calls.append("before")

    def after_fork_in_parent(self) -> None:
        self.calls.append("after")


# PF1, PF2
def test_a_fork_that_waits_too_long_for_another_leaves_what_that_one_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    participant, is_forking, may_end = Participant(), threading.Event(), threading.Event()
    monkeypatch.setattr(forks, "_around", [participant])
    monkeypatch.setattr(forks, "OPENING_LIMIT_S", 0.05)

    def fork_slowly() -> None:
        forks._before_fork()
        is_forking.set()
        may_end.wait(60)
        forks._after_fork_in_parent()

    other = threading.Thread(target=fork_slowly)
    other.start()
    try:
        assert is_forking.wait(60)
        assert participant.calls == ["before"]
        with child_that_waits():
            assert participant.calls == ["before"]
    finally:
        may_end.set()
        other.join(60)
    assert participant.calls == ["before", "after"]
    with child_that_waits():
        assert participant.calls == ["before", "after", "before", "after"]


# PF2
async def test_a_child_forked_inside_a_transaction_does_not_keep_the_gate(tmp_path: Path) -> None:
    engine = opened(tmp_path / "x.db")
    with engine.transaction() as connection:
        connection.execute("CREATE TABLE mine (x)")
        waiting = child_that_waits()
        waiting.__enter__()
    try:
        await enqueue(engine, "a")
    finally:
        waiting.__exit__(None, None, None)
        engine.close_now()


# PF2
async def test_the_gate_and_the_record_of_a_killed_process_are_free_while_its_child_lives(tmp_path: Path) -> None:
    engine = opened(tmp_path / "x.db")
    parent = subprocess.Popen([sys.executable, "-c", PARENT, f"sqlite:///{tmp_path}/x.db"], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(await asyncio.to_thread(parent.stdout.readline))
    try:
        assert await engine.ended_workers() == ()
        parent.send_signal(signal.SIGKILL)
        parent.wait(LIMIT_S)
        await enqueue(engine, "a")
        assert await engine.ended_workers() == ("doomed",)
        os.kill(child, 0)  # it still lives
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()
        engine.close_now()


# PF2
def test_a_forked_child_cannot_use_or_commit_the_transaction_of_its_parent(tmp_path: Path) -> None:
    engine = opened(tmp_path / "x.db")
    transaction = engine.transaction()
    connection = transaction.__enter__()
    connection.execute("CREATE TABLE mine (x)")
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (
            lambda: connection.execute("INSERT INTO mine VALUES (1)"),
            lambda: transaction.__exit__(None, None, None),
        ):
            try:
                use()
            except UsageError as error:
                refused += "parent process" in str(error)
        os._exit(0 if refused == 2 else 1)
    assert exit_code_of_child(child) == 0
    transaction.__exit__(None, None, None)
    engine.close_now()
    with closing(sqlite3.connect(tmp_path / "x.db")) as db:
        assert db.execute("SELECT * FROM mine").fetchall() == []


def read_ids(path: Path) -> set[str]:
    """Read by another process: what is in the file, not what a connection of ours believes."""
    program = (
        f"import sqlite3; print(*[r[0] for r in sqlite3.connect({str(path)!r}).execute('SELECT id FROM holdfast_job')])"
    )
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


def enqueue_now(engine: SqliteEngine, name: str) -> None:
    engine.perform_now(Enqueue(groups=(Group((NewJob(queue="q", id=name, task="t"),)),)))


def test_what_a_forked_child_was_acknowledged_survives_the_end_of_its_parent(tmp_path: Path) -> None:
    """SQLite counts its locks per process. A child that kept its parent's connections would believe that it holds locks
    which only its parent has: the last close of the parent would remove the log that the child writes to."""
    path = tmp_path / "x.db"
    parent_engine = opened(path)
    enqueue_now(parent_engine, "parent")
    parent_closed, close_parent = os.pipe()
    child_wrote, tell_parent = os.pipe()
    child = os.fork()
    if child == 0:
        engine = opened(path)
        enqueue_now(engine, "first")
        os.write(tell_parent, b"x")
        os.read(parent_closed, 1)
        enqueue_now(engine, "second")
        os._exit(0)  # killed, as it were: it does not close
    os.read(child_wrote, 1)
    parent_engine.close_now()
    os.write(close_parent, b"x")
    assert exit_code_of_child(child) == 0
    assert read_ids(path) == {"parent", "first", "second"}


def test_a_child_forked_inside_a_transaction_is_refused_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    engine = opened(path)
    with engine.transaction():
        child = os.fork()
        if child == 0:
            try:
                opened(path)
            except EngineUnavailable as error:
                os._exit(0 if "forked while its parent had a transaction" in str(error) else 1)
            os._exit(2)
    assert exit_code_of_child(child) == 0
    enqueue_now(engine, "parent")
    engine.close_now()
    assert read_ids(path) == {"parent"}


def test_a_fork_waits_for_a_writer_that_opens_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    engine = opened(path)
    opening, forked = threading.Event(), threading.Event()
    open_log = LogFile._open

    def open_late(file: LogFile) -> None:
        opening.set()
        forked.wait(0.3)  # the fork begins meanwhile, and cannot end before this writer does
        open_log(file)

    monkeypatch.setattr(LogFile, "_open", open_late)
    writer = threading.Thread(target=enqueue_now, args=(engine, "parent"))
    writer.start()
    assert opening.wait(LIMIT_S)
    child = os.fork()
    if child == 0:
        try:
            enqueue_now(opened(path), "child")
            os._exit(0)
        except BaseException:
            os._exit(5)
    forked.set()
    assert exit_code_of_child(child) == 0
    writer.join()
    engine.close_now()
    assert read_ids(path) == {"parent", "child"}


async def test_children_forked_from_a_busy_process_can_write(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    engine = opened(path)
    stop = asyncio.Event()
    written: set[str] = set()

    async def producer(name: str) -> None:
        while not stop.is_set():
            job = f"{name}-{len(written)}"
            await enqueue(engine, job)
            written.add(job)

    producers = [asyncio.ensure_future(producer(f"producer{number}")) for number in range(4)]
    for number in range(10):
        await asyncio.sleep(0.02)
        child = os.fork()
        if child == 0:
            own = opened(path)
            enqueue_now(own, f"child-{number}")
            os._exit(0)
        assert await asyncio.to_thread(exit_code_of_child, child) == 0
        written.add(f"child-{number}")
    stop.set()
    await asyncio.gather(*producers)
    assert await engine.audit() == ()
    engine.close_now()
    assert read_ids(path) == written


SATURATED = """
import asyncio, os, sys, time
from holdfast.engines import open_engine
from holdfast.model.produce import Group, NewJob
from holdfast.model.records import WorkerRecord

async def main():
    engine = open_engine(sys.argv[1])
    await engine.open()
    await engine.heartbeat(WorkerRecord(worker=sys.argv[2], process=engine.process_name))

    async def produce():
        while True:
            name = engine._runtime.new_id()
            await engine.enqueue(Group((NewJob(queue="q", id=name, task="t"),)))
            os.write(1, f"{name}\\n".encode())

    producers = [asyncio.ensure_future(produce()) for _ in range(50)]
    await asyncio.sleep(0.2)
    child = os.fork()
    if child == 0:
        time.sleep(120)
        os._exit(0)
    os.write(1, f"child {child}\\n".encode())
    await asyncio.gather(*producers)

asyncio.run(main())
"""


@pytest.mark.chaos
async def test_twenty_saturated_writers_are_killed_while_their_children_live(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    engine = opened(path)
    acknowledged: set[str] = set()
    worst_s = 0.0
    for number in range(20):
        with open(tmp_path / "acknowledged", "w+b") as log:
            command = [sys.executable, "-c", SATURATED, f"sqlite:///{path}", f"doomed-{number}"]
            with subprocess.Popen(command, stdout=log) as parent:
                await eventually(lambda: b"child" in (tmp_path / "acknowledged").read_bytes(), limit_s=60)
                await asyncio.sleep(number * 0.003)
                parent.kill()
            log.seek(0)
            lines = [line.split() for line in log.read().decode().splitlines(keepends=True) if line.endswith("\n")]
        acknowledged |= {words[0] for words in lines if words[0] != "child"}
        (child,) = [int(words[1]) for words in lines if words[0] == "child"]
        began_s = asyncio.get_running_loop().time()
        try:
            await enqueue(engine, f"after-{number}")
            worst_s = max(worst_s, asyncio.get_running_loop().time() - began_s)
            assert f"doomed-{number}" in await engine.ended_workers()
            os.kill(child, 0)  # it still lives
        finally:
            os.kill(child, signal.SIGKILL)
    assert await engine.audit() == ()
    engine.close_now()
    assert acknowledged <= read_ids(path)
    print(f"{len(acknowledged)} jobs acknowledged by killed writers; a write after a kill took {worst_s:.2f} s at most")


FORKING_WORKER = """
import os, sys, time
from holdfast import App, Context

jobs = App(sys.argv[1])

@jobs.task(name="fork")
def fork(ctx: Context) -> None:
    with ctx.transaction():
        child = os.fork()
        if child == 0:
            time.sleep(120)
            os._exit(0)
    with open(sys.argv[2], "a") as log:
        log.write(f"{child}\\n")

@jobs.task(name="plain")
def plain() -> None: ...

jobs.worker(signals=True, until_empty=True).run()
"""


@pytest.mark.chaos
async def test_handlers_that_fork_inside_their_transaction_stop_no_other_job(tmp_path: Path) -> None:
    engine = opened(tmp_path / "x.db")
    for number in range(40):
        task = "fork" if number % 2 else "plain"
        group = Group((NewJob(queue="default", id=f"{task}-{number}", task=task, payload=b"[[],{}]"),))
        await engine.enqueue(group)
    began_s = asyncio.get_running_loop().time()
    command = [sys.executable, "-c", FORKING_WORKER, f"sqlite:///{tmp_path}/x.db", str(tmp_path / "children")]
    worker = subprocess.Popen(command)
    try:
        assert await asyncio.to_thread(worker.wait, 100) == 0
        print(f"40 jobs, 20 of them forked: {asyncio.get_running_loop().time() - began_s:.1f} s")
        totals = (await engine.stats("default")).queues[0].totals
        assert (totals.succeeded, totals.failed) == (40, 0)
        assert await engine.audit() == ()
    finally:
        worker.kill()
        for line in (tmp_path / "children").read_text().split():
            os.kill(int(line), signal.SIGKILL)
        engine.close_now()
