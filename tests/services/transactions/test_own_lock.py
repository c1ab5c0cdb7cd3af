"""A plain enqueue while a transaction has SQLite's write lock: the error says whose transaction it is."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlite_store
from opened_engine import opened_engine
from user_transactions import Store

from holdfast import EngineUnavailable
from holdfast.engines import open_engine
from holdfast.engines.sqlite.lock_holder import check_wait_can_end
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
from holdfast import App, UsageError
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

jobs = App(f"sqlite:///{sys.argv[1]}", durability="none")
Sessions = sessionmaker(create_engine(f"sqlite:///{sys.argv[1]}"))

@jobs.task
def ship(order: int) -> None: ...

def forget():
    began = time.monotonic()
    try:
        ship.enqueue(1)
    except UsageError as error:
        print(error, "UsageError" if time.monotonic() - began < 8 else "late")

def forget_in_session():
    with Sessions.begin() as session:
        session.execute(text("INSERT INTO orders VALUES (1)"))
        forget()

with Sessions.begin() as session:
    session.execute(text("CREATE TABLE orders (number INTEGER)"))
"""

BESIDE_ANOTHER_THREAD = """
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
forget_in_session()  # the first call to a new store
jobs.open()
forget_in_session()

class Orders:
    def __init__(self):
        self.session = Sessions()

    def place(self):
        self.session.execute(text("INSERT INTO orders VALUES (1)"))
        forget()
        self.session.rollback()

Orders().place()
def place_by_driver():
    with sqlite3.connect(sys.argv[1]) as db:
        db.execute("INSERT INTO orders VALUES (1)")
        forget()

place_by_driver()
"""
"""As in a web server. The transaction is in a variable, in an attribute, and one of the driver itself."""

FORGOTTEN = {
    "a session, with the store open": "jobs.open(); forget_in_session()",
    "a session, at the first call to a new store": "forget_in_session()",
    "after a call that needed the loop thread": (
        """
with jobs.worker():
    ship.request(1)
forget_in_session()
"""
    ),
    "while a writer of another process waits inside the gate": (
        """
import subprocess
jobs.open()
writer = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], stdin=-1, stdout=-1)
writer.stdout.readline()
forget_in_session()
writer.communicate()
"""
    ),
}


def run(program: str, path: Path) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", f"{PROGRAM}\n{program}", str(path), AT_THE_GATE],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("forgotten", FORGOTTEN)
def test_a_call_that_would_wait_for_itself_fails_soon_and_names_the_option(tmp_path: Path, forgotten: str) -> None:
    answer = run(FORGOTTEN[forgotten], tmp_path / "shop.db")
    assert answer.startswith("This call would wait for itself")
    assert "using(transaction=session)" in answer
    assert answer.endswith("UsageError\n")


def test_a_call_that_would_wait_for_itself_fails_soon_beside_another_thread(tmp_path: Path) -> None:
    answers = run(BESIDE_ANOTHER_THREAD, tmp_path / "shop.db").splitlines()
    assert len(answers) == 4, answers
    for answer in answers:
        assert answer.startswith("This call would wait for itself")
        assert answer.endswith("UsageError")


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


def test_a_call_with_a_read_transaction_waits_for_a_transaction_that_another_thread_commits(tmp_path: Path) -> None:
    program = """
jobs.open()
begun = threading.Event()

def slow():
    with Sessions.begin() as session:
        session.execute(text("INSERT INTO orders VALUES (1)"))
        begun.set()
        time.sleep(1.5)

def read_and_forget():
    db = sqlite3.connect(sys.argv[1], isolation_level=None)
    db.execute("BEGIN")
    db.execute("SELECT * FROM orders").fetchall()
    thread = threading.Thread(target=slow)
    thread.start()
    begun.wait()
    forget()
    thread.join()

read_and_forget()
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


def test_a_call_waits_for_a_batch_of_another_engine_of_its_process(tmp_path: Path) -> None:
    """Also if its caller has a transaction of another file."""
    engine = sqlite_store.store(tmp_path / "x.db")
    engine.open_now()
    writer = sqlite_store.writer_of(engine).connection
    orders = sqlite3.connect(tmp_path / "orders.db", isolation_level=None)
    orders.execute("BEGIN IMMEDIATE")
    writer.execute("BEGIN IMMEDIATE")
    check_wait_can_end(str(tmp_path / "x.db"))
    writer.execute("ROLLBACK")
    orders.close()
    engine.close_now()


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
