"""The gate of a SQLite file: every writer passes it, and no wait for it is endless."""

import asyncio
import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import pytest
from eventually import eventually_now
from gate_holder import gate_holder
from opened_engine import opened_engine

from holdfast import file_locks
from holdfast.engines import open_engine
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.errors import EngineUnavailable
from holdfast.file_locks import WAIT_STEP_S, _KernelWaiter
from holdfast.files import Files
from holdfast.model.job import JobKey
from holdfast.model.operate import Clear
from holdfast.model.produce import Enqueue, Group, NewJob
from holdfast.model.records import WorkerRecord
from holdfast.transactions import adapt


def store(path: Path, *, busy_timeout_s: float = 0.3, namespace: str = "holdfast") -> SqliteEngine:
    engine = open_engine(f"sqlite:///{path}", busy_timeout=busy_timeout_s, namespace=namespace)
    assert isinstance(engine, SqliteEngine)
    return engine


def job(name: str) -> Group:
    return Group((NewJob(queue="q", id=name, task="t"),))


async def command(engine: SqliteEngine, path: Path) -> None:
    await engine.enqueue(job("b"))


async def clear(engine: SqliteEngine, path: Path) -> None:
    await engine.perform(Clear(queue="q"))


async def heartbeat(engine: SqliteEngine, path: Path) -> None:
    with closing(engine.renewal_connection()) as connection:
        connection.heartbeat(WorkerRecord(worker="w", process=""))


async def renewal(engine: SqliteEngine, path: Path) -> None:
    with closing(engine.renewal_connection()) as connection:
        connection.renew(())


async def migration(engine: SqliteEngine, path: Path) -> None:
    await store(path, namespace="other").migrate()


async def handler_transaction(engine: SqliteEngine, path: Path) -> None:
    with engine.transaction():
        pass


async def async_handler_transaction(engine: SqliteEngine, path: Path) -> None:
    async with engine.transaction():
        pass


async def user_transaction(engine: SqliteEngine, path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        engine.perform_in(Enqueue(groups=(job("b"),)), adapt(db))


WRITERS = (
    command,
    clear,
    heartbeat,
    renewal,
    migration,
    handler_transaction,
    async_handler_transaction,
    user_transaction,
)


# PF1
@pytest.mark.parametrize("write", WRITERS)
async def test_every_writer_waits_at_the_gate_and_not_for_ever(
    tmp_path: Path, write: Callable[[SqliteEngine, Path], Awaitable[None]]
) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("a"))
        expected = pytest.raises(EngineUnavailable, match=r"x\.db-gate was locked for 0\.3 s, so nothing was written")
        with closing(Files().gate(f"{path}-gate", 1, guarded=path)) as gate, gate, expected:
            await write(engine, path)
        await write(engine, path)


# PF1
async def test_the_error_at_the_gate_names_the_process_that_is_stopped_inside_it(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("a"))
        with gate_holder(path) as holder:
            with pytest.raises(EngineUnavailable, match=rf"Process {holder.pid} \(python.*\) holds it and runs"):
                await engine.enqueue(job("b"))
            os.kill(holder.pid, signal.SIGSTOP)
            with pytest.raises(
                EngineUnavailable, match=rf"Process {holder.pid} .* is stopped.*kill -CONT {holder.pid}"
            ):
                await engine.enqueue(job("b"))
            assert (await engine.get(JobKey("q", "a"))).jobs[0] is not None  # reads do not pass the gate
            os.kill(holder.pid, signal.SIGCONT)
            await asyncio.to_thread(holder.leave)
            await engine.enqueue(job("b"))


# PF1
async def test_a_store_with_a_stopped_writer_can_be_opened_read_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("a"))
    with gate_holder(path) as holder:
        os.kill(holder.pid, signal.SIGSTOP)
        async with opened_engine(store(path)) as engine:
            assert (await engine.get(JobKey("q", "a"))).jobs[0] is not None
            blocked_by = await engine.blocked_by()
            assert f"Process {holder.pid} " in blocked_by
            assert "is stopped" in blocked_by


# PF1
async def test_tasks_that_wait_for_the_gate_one_after_the_other_end_together(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        with closing(Files().gate(f"{path}-gate", 1, guarded=path)) as gate, gate:
            waiting = [async_handler_transaction(engine, path) for _ in range(100)]
            results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
        assert {type(result) for result in results} == {EngineUnavailable}
        assert "Other tasks of this process wait for it, too. A transaction of this process holds it." in str(
            results[-1]
        )
        await async_handler_transaction(engine, path)


# PF1
async def test_closing_a_store_does_not_wait_as_long_as_a_write(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    engine = store(path, busy_timeout_s=600)
    await engine.open()
    with closing(Files().gate(f"{path}-gate", 1, guarded=path)) as gate, gate:
        waiting = asyncio.ensure_future(engine.enqueue(job("a")))
        await asyncio.sleep(0)
        await asyncio.wait_for(engine.close(), 60)
        with pytest.raises(EngineUnavailable, match=r"x\.db-gate was locked"):
            await waiting


async def test_a_busy_gate_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        assert await engine.blocked_by() == ""
        await asyncio.gather(*(engine.enqueue(job(f"{number}")) for number in range(50)), engine.blocked_by())
        assert await engine.blocked_by() == ""


# PF1
def test_a_caller_that_stopped_waiting_leaves_the_gate_to_others(tmp_path: Path) -> None:
    """The thread that waited for it in the kernel gets it later, and gives it back."""
    path = tmp_path / "gate"
    files = Files()
    with closing(files.gate(path, 0.1, guarded=path)) as late, closing(files.gate(path, 30, guarded=path)) as other:
        with other:
            for _ in range(3):
                with pytest.raises(EngineUnavailable), late:
                    pass
        with other:  # waits until `late` has given it back
            pass
        with late:
            pass
        with other:
            pass


def test_a_gate_that_is_closed_while_its_thread_waits_is_free_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "gate"
    files = Files()
    with closing(files.gate(path, 30, guarded=path)) as other:
        late = files.gate(path, 0.1, guarded=path)
        with other:
            with pytest.raises(EngineUnavailable), late:
                pass
            late.close()
        with other:
            pass


# PF2
def test_a_gate_that_is_closed_while_its_thread_waits_is_not_kept_by_a_forked_child(tmp_path: Path) -> None:
    path = tmp_path / "gate"
    files = Files()
    with closing(files.gate(path, 5, guarded=path)) as other:
        late = files.gate(path, 0.1, guarded=path)
        copy = os.dup(late.fd)  # as a child has it
        with other:
            with pytest.raises(EngineUnavailable), late:
                pass
            waiter = late._waiter
            assert waiter is not None
            late.close()
        eventually_now(lambda: not waiter.is_waiting, "the thread to get the gate")
        with other:
            pass
        os.close(copy)


def test_a_caller_does_not_take_a_gate_that_its_thread_is_about_to_give_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has the lock and unlocks it. A caller that locks the same opening in between would have nothing."""
    path = tmp_path / "gate"
    files = Files()
    with closing(files.gate(path, 0.1, guarded=path)) as late, closing(files.gate(path, 30, guarded=path)) as other:
        waited_at_unlock: list[bool] = []
        flock = file_locks._flock

        def record_and_flock(fd: int, *, unlock: bool = False) -> None:
            if unlock and late._waiter is not None:
                waited_at_unlock.append(late._waiter.is_waiting)
            flock(fd, unlock=unlock)

        monkeypatch.setattr(file_locks, "_flock", record_and_flock)
        with other, pytest.raises(EngineUnavailable), late:
            pass
        eventually_now(lambda: waited_at_unlock, "the thread to give the gate back")
        assert waited_at_unlock == [True]


# PF1
def test_a_gate_that_is_closed_while_a_caller_waits_is_free_afterwards(tmp_path: Path) -> None:
    """A task that was cancelled closes the gate that its thread still waits for."""
    path = tmp_path / "gate"
    files = Files()
    with closing(files.gate(path, 30, guarded=path)) as other, ThreadPoolExecutor(1) as pool:
        late = files.gate(path, 5 * WAIT_STEP_S, guarded=path)
        with other:
            waiting = pool.submit(late.__enter__)
            eventually_now(lambda: late._waiter is not None and late._waiter.is_waiting, "the caller to wait")
            late.close()
            wait([waiting], 2 * WAIT_STEP_S)  # the caller waits again meanwhile, if it does not notice
        with pytest.raises(EngineUnavailable):
            waiting.result()
        with closing(files.gate(path, 5, guarded=path)) as third, third:
            pass


def test_a_gate_that_is_handed_over_when_the_time_is_over_is_held(tmp_path: Path) -> None:
    """Also if the caller handles another error meanwhile: the lock must not be released behind its back."""
    path = tmp_path / "gate"
    files = Files()
    with closing(files.gate(path, 30, guarded=path)) as gate, closing(files.gate(path, 0.1, guarded=path)) as other:
        gate._waiter = waiter = _KernelWaiter(gate.fd)
        handed_over = waiter._handed_over

        class LateSemaphore:
            """Its wait ends, without success, in the moment of the release."""

            def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
                if blocking:
                    eventually_now(lambda: not waiter._wanted, "the thread to get the lock")
                    return False
                return handed_over.acquire(blocking=False)

            def release(self) -> None:
                handed_over.release()

        waiter._handed_over = LateSemaphore()  # type: ignore[assignment]
        try:
            raise ValueError("the error that the caller handles")
        except ValueError:
            assert waiter.wait(1)
        assert not other.try_lock()
