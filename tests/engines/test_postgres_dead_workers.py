"""Dead workers on PostgreSQL: known by the record of their process on one host, by their session from another."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
import pytest
from eventually import eventually
from postgres import PostgresServer
from postgres_stock import Store
from postgres_stories import Stores, opened

from holdfast.engine import Engine, RenewalConnection
from holdfast.engines.postgres.connect import socket_of
from holdfast.engines.postgres.failures import FAILURES
from holdfast.engines.postgres.renewal_connection import ConnectTries
from holdfast.engines.postgres.worker_sessions import SessionHeartbeat
from holdfast.errors import EngineUnavailable
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.produce import Group
from holdfast.model.records import WorkerRecord
from holdfast.testing.contract.builders import QUEUE, claim, new_job

INTERVAL = 5 * SECOND
WATCHED = 60 * SECOND
RECORD = WorkerRecord(worker="w", interval=INTERVAL)


@pytest.fixture
def store(postgres_store: Stores) -> Store:
    return postgres_store()


@asynccontextmanager
async def session(engine: Engine, record: WorkerRecord = RECORD) -> AsyncIterator[RenewalConnection]:
    """The connection of a keeper that has sent a heartbeat."""
    connection = engine.renewal_connection()
    await asyncio.to_thread(connection.heartbeat, record)
    try:
        yield connection
    finally:
        await asyncio.to_thread(connection.close)


async def hold_a_job(engine: Engine) -> int:
    """Lease a job to the worker; returns when the lease expires."""
    await engine.enqueue(Group((new_job("a"),)))
    (lease,) = (await engine.claim(claim("1" * 32, limit=1, worker="w"))).leases
    return lease.lease_expires


async def expiry(engine: Engine) -> int:
    (job,) = (await engine.get(JobKey(QUEUE, "a"))).jobs
    assert job is not None
    return job.lease_expires or 0


def sessions(server: PostgresServer, store: Store) -> int:
    """Sessions that hold the lock of the worker."""
    query = (
        f"SELECT count(*) FROM pg_locks, {store.namespace}_rules_1.session_lock('w') AS key WHERE locktype = 'advisory'"
        " AND classid = (key >> 32 & 4294967295)::oid AND objid = (key & 4294967295)::oid"
    )
    return int(server.execute(query)[0][0])


# WK3
async def test_a_worker_without_session_is_disowned_after_two_heartbeats(
    store: Store, postgres_server: PostgresServer
) -> None:
    async with opened(store) as engine:
        async with session(engine):
            expires = await hold_a_job(engine)
        await eventually(lambda: sessions(postgres_server, store) == 0)
        engine.clock_offset = 2 * INTERVAL - SECOND
        assert await engine.disown_silent(WATCHED) == {}
        engine.clock_offset = 2 * INTERVAL + SECOND
        assert await engine.disown_silent(WATCHED) == {"w": 1}
        assert await expiry(engine) < expires
        assert (await engine.workers()).workers == ()
        assert await engine.disown_silent(WATCHED) == {}
        assert await engine.audit() == ()


async def test_a_later_heartbeat_over_another_connection_does_not_hide_the_session(
    store: Store, postgres_server: PostgresServer
) -> None:
    async with opened(store) as engine:
        async with session(engine):
            await hold_a_job(engine)
            await engine.heartbeat(RECORD)
        await eventually(lambda: sessions(postgres_server, store) == 0)
        engine.clock_offset = 2 * INTERVAL + SECOND
        assert await engine.disown_silent(WATCHED) == {"w": 1}


async def test_a_silent_worker_with_a_session_keeps_its_leases(store: Store) -> None:
    async with opened(store) as engine, session(engine):
        expires = await hold_a_job(engine)
        engine.clock_offset = 20 * INTERVAL
        assert await engine.disown_silent(WATCHED) == {}
        assert await expiry(engine) == expires


async def test_only_silence_that_the_caller_has_watched_counts(store: Store, postgres_server: PostgresServer) -> None:
    async with opened(store) as engine:
        async with session(engine):
            await hold_a_job(engine)
        await eventually(lambda: sessions(postgres_server, store) == 0)
        engine.clock_offset = 20 * INTERVAL
        assert await engine.disown_silent(2 * INTERVAL) == {}
        assert await engine.disown_silent(2 * INTERVAL + 1) == {"w": 1}


async def test_a_worker_that_has_its_session_back_keeps_its_leases(
    store: Store, postgres_server: PostgresServer
) -> None:
    async with opened(store) as engine, session(engine) as connection:
        await hold_a_job(engine)
        assert sessions(postgres_server, store) == 1
        await asyncio.to_thread(postgres_server.terminate_backends)
        await eventually(lambda: sessions(postgres_server, store) == 0)
        await asyncio.to_thread(connection.heartbeat, RECORD)
        assert sessions(postgres_server, store) == 1
        engine.clock_offset = 20 * INTERVAL
        assert await engine.disown_silent(WATCHED) == {}


async def test_a_worker_that_sends_its_heartbeat_meanwhile_is_not_disowned(
    store: Store, postgres_server: PostgresServer
) -> None:
    """Its heartbeat has written its row and is not committed: the check passes over it."""
    async with opened(store) as engine:
        async with session(engine):
            await hold_a_job(engine)
        await eventually(lambda: sessions(postgres_server, store) == 0)
        engine.clock_offset = 20 * INTERVAL
        async with engine.transaction() as other:
            await other.execute(f"UPDATE {store.namespace}.worker SET seen = seen")
            assert await engine.disown_silent(WATCHED) == {}
        assert await engine.disown_silent(WATCHED) == {"w": 1}


async def test_a_heartbeat_of_the_event_loop_has_no_session(store: Store) -> None:
    async with opened(store) as engine:
        await engine.heartbeat(RECORD)
        engine.clock_offset = 20 * INTERVAL
        assert await engine.disown_silent(WATCHED) == {}


async def test_behind_a_proxy_that_shares_sessions_a_worker_stays_with_its_lease(
    store: Store, postgres_server: PostgresServer
) -> None:
    async with opened(store, pooled=True, durability="fast") as engine, session(engine):
        assert sessions(postgres_server, store) == 0
        engine.clock_offset = 20 * INTERVAL
        assert await engine.disown_silent(WATCHED) == {}


async def test_a_session_of_another_process_than_the_handshake_named_is_not_the_worker_s_own(
    store: Store, postgres_server: PostgresServer
) -> None:
    """So it is behind a proxy, which may give the session to another client."""
    async with opened(store) as engine:
        await engine.perform(SessionHeartbeat(worker=RECORD, session_pid=1))
        assert sessions(postgres_server, store) == 0
        engine.clock_offset = 20 * INTERVAL
        assert await engine.disown_silent(WATCHED) == {}


# One host

WORKER = (
    "import asyncio, sys\n"
    "from holdfast.engines import open_engine\n"
    "from holdfast.model.records import WorkerRecord\n"
    "async def main():\n"
    "    engine = open_engine(sys.argv[1], namespace=sys.argv[2])\n"
    "    await engine.open()\n"
    "    await engine.heartbeat(WorkerRecord(worker='doomed', process=engine.process_name))\n"
    "    print('ready', flush=True)\n"
    "    await asyncio.sleep(600)\n"
    "asyncio.run(main())\n"
)


async def test_a_worker_of_this_host_is_known_to_have_ended_at_once(store: Store) -> None:
    async with opened(store) as engine:
        await engine.heartbeat(WorkerRecord(worker="me", process=engine.process_name))
        program = [sys.executable, "-c", WORKER, store.url, store.namespace]
        with subprocess.Popen(program, stdout=subprocess.PIPE) as doomed:
            assert doomed.stdout is not None
            await asyncio.to_thread(doomed.stdout.readline)
            assert await engine.ended_workers() == ()
            os.kill(doomed.pid, signal.SIGSTOP)
            assert await engine.ended_workers() == ()  # a stopped process has not ended: only its lease expires
            doomed.kill()
            await asyncio.to_thread(doomed.wait)
        assert await engine.ended_workers() == ("doomed",)
        await engine.forget_worker("doomed")
        assert await engine.ended_workers() == ()


async def test_a_check_of_this_host_sends_no_statement_while_no_process_ends(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store) as engine:
        assert engine.process_name
        for _ in range(2):
            await engine.ended_workers()  # other processes may have ended before

        async def refuse(*_: object) -> None:
            raise AssertionError("a statement was sent")

        monkeypatch.setattr(engine, "perform", refuse)
        assert await engine.ended_workers() == ()


async def test_a_process_that_looks_ended_while_it_makes_its_record_is_tested_again(store: Store) -> None:
    """Its record exists before it is locked."""
    async with opened(store) as engine:
        assert engine.process_name
        records = engine._ended_processes._records
        assert records is not None
        path = records._path("lock", "1-new")
        path.touch()
        try:
            assert await engine.ended_workers() == ()
            lock = engine._runtime.fs.lock(path)
            assert lock is not None
            assert await engine.ended_workers() == ()
            await engine.heartbeat(WorkerRecord(worker="new", process="1-new"))
            lock.close()
            assert await engine.ended_workers() == ("new",)
        finally:
            path.unlink()


async def test_a_folder_that_cannot_be_written_is_no_error(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(store) as engine:

        def refuse(name: str) -> None:
            raise PermissionError("read-only")

        monkeypatch.setattr(engine._runtime.fs, "private_folder", refuse)
        assert (engine.process_name, await engine.ended_workers()) == ("", ())
        assert engine.process_name == ""
    (record,) = caplog.records
    assert "read-only" in record.message


# WK3
async def test_the_keeper_tries_to_connect_again_before_its_silence_is_too_long() -> None:
    timeouts_s: list[float] = []

    async def connect(timeout_s: float) -> Any:
        timeouts_s.append(timeout_s)
        if len(timeouts_s) < 3:
            raise EngineUnavailable()

    tries = ConnectTries(connect)
    for _ in range(2):
        with pytest.raises(EngineUnavailable):
            await tries()
    await tries()
    await tries()
    assert timeouts_s == [2.5, 5, 5, 2.5]


# PF2
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_session_ends_with_its_process_though_a_forked_child_lives(
    store: Store, postgres_server: PostgresServer, kind: str
) -> None:
    """Else the child would keep the locks of an open transaction, and the lock that says that the worker lives."""
    ended = False
    async with opened(store, notify=False) as engine:
        if kind == "async":
            with suppress(*FAILURES):  # the transaction cannot be committed any more
                async with engine.transaction() as connection:
                    ended = await ends(postgres_server, connection.get_server_pid(), fd_of(connection))
        else:
            with suppress(psycopg.OperationalError), engine.transaction() as connection:
                ended = await ends(postgres_server, connection.info.backend_pid, connection.fileno())
    assert ended


def fd_of(connection: Any) -> int:
    found = socket_of(connection)
    assert found is not None
    return found.fileno()


async def ends(server: PostgresServer, pid: int, fd: int) -> bool:
    """Fork; close the socket without a word, as the end of the process does; wait for the end of the session."""
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends it if this test is killed
        signal.pause()
        os._exit(0)
    try:
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), fd)
        query = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}"
        await eventually(lambda: int(server.execute(query)[0][0]) == 0)
        return True
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
