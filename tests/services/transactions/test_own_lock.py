"""A plain enqueue while a transaction has SQLite's write lock: the error says whose transaction it is."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opened_engine import opened_engine
from user_transactions import Store

from holdfast import EngineUnavailable
from holdfast.engines import open_engine
from holdfast.model.produce import Group, NewJob

AT_THE_GATE = """
import sys
from holdfast.files import Files
with Files().gate(sys.argv[1] + "-gate", 10, guarded=sys.argv[1]):
    print("inside", flush=True)
    sys.stdin.read()
"""
"""A writer that holds the gate while it waits for a transaction."""

PROGRAM = """
import asyncio, sqlite3, sys, threading, time
from holdfast import App, EngineUnavailable
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

jobs = App(f"sqlite:///{sys.argv[1]}", durability="none")
Sessions = sessionmaker(create_engine(f"sqlite:///{sys.argv[1]}"))

@jobs.task
def ship(order: int) -> None: ...

def forget():
    try:
        ship.enqueue(1)
    except EngineUnavailable as error:
        print(error)

def forget_in_session():
    with Sessions.begin() as session:
        session.execute(text("INSERT INTO orders VALUES (1)"))
        forget()

with Sessions.begin() as session:
    session.execute(text("CREATE TABLE orders (number INTEGER)"))
"""

FORGOTTEN = {
    "with the store open": "jobs.open(); forget_in_session()",
    "at the first call to a new store": "forget_in_session()",
}


def run(program: str, path: Path, **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", f"{PROGRAM}\n{program}", str(path)],
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("forgotten", FORGOTTEN)
def test_a_call_in_the_callers_own_session_ends_after_the_busy_timeout_and_names_the_option(
    tmp_path: Path, forgotten: str
) -> None:
    answer = run(FORGOTTEN[forgotten], tmp_path / "shop.db", HOLDFAST_SQLITE_BUSY_TIMEOUT="0.2")
    assert "locked for too long by a transaction that your own code has open" in answer
    assert "using(transaction=session)" in answer
    assert "Traceback" not in answer


def test_a_call_waits_for_a_transaction_that_another_thread_commits(tmp_path: Path) -> None:
    program = """
jobs.open()
begun = threading.Event()

def slow():
    with Sessions.begin() as session:
        session.execute(text("INSERT INTO orders VALUES (1)"))
        begun.set()
        time.sleep(1.5)

thread = threading.Thread(target=slow)
thread.start()
begun.wait()
forget()
thread.join()
print(jobs.control.status("default").depth)
"""
    assert run(program, tmp_path / "shop.db") == "1\n"


def test_a_call_waits_for_a_transaction_of_another_task_of_its_loop(tmp_path: Path) -> None:
    program = """
async def main():
    await jobs.aopen()
    db = sqlite3.connect(sys.argv[1], isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    enqueue = asyncio.create_task(ship.aenqueue(1))
    await asyncio.sleep(1.5)
    db.execute("COMMIT")
    await enqueue

asyncio.run(main())
print(jobs.control.status("default").depth)
"""
    assert run(program, tmp_path / "shop.db") == "1\n"


@pytest.fixture
def impatient(store: Store) -> Any:
    return open_engine(store.url, busy_timeout=0.2)


async def test_after_the_whole_wait_the_error_names_the_callers_own_transaction(store: Store, impatient: Any) -> None:
    db = sqlite3.connect(store.place, isolation_level=None)
    async with opened_engine(impatient) as engine:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(EngineUnavailable, match="your own code has open in this process") as refused:
            await engine.enqueue(Group((NewJob(queue="q", id="a", task="t"),)))
        db.execute("COMMIT")
    db.close()
    assert "using(transaction=session)" in str(refused.value)


async def test_the_error_names_the_callers_own_transaction_and_not_the_writer_that_waits_for_it_inside_the_gate(
    store: Store, impatient: Any
) -> None:
    db = sqlite3.connect(store.place, isolation_level=None)
    async with opened_engine(impatient) as engine:
        db.execute("BEGIN IMMEDIATE")
        writer = subprocess.Popen(
            [sys.executable, "-c", AT_THE_GATE, store.place], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            with pytest.raises(EngineUnavailable, match="your own code has open in this process") as refused:
                await engine.enqueue(Group((NewJob(queue="q", id="a", task="t"),)))
        finally:
            db.execute("COMMIT")
            writer.communicate()
    db.close()
    assert "using(transaction=session)" in str(refused.value)


async def test_the_error_names_another_process_that_keeps_a_transaction_open(store: Store, impatient: Any) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
            "db.execute('BEGIN IMMEDIATE'); print('begun', flush=True); sys.stdin.read()",
            store.place,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        async with opened_engine(impatient) as engine:
            assert holder.stdout is not None
            holder.stdout.readline()
            with pytest.raises(EngineUnavailable, match=rf"Process {holder.pid} \("):
                await engine.enqueue(Group((NewJob(queue="q", id="a", task="t"),)))
    finally:
        holder.communicate()
