"""Processes that fork: no lock of ours survives in the child, and the child leaves the parent's connections alone."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.errors import UsageError
from holdfast.model.produce import Group, NewJob

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
