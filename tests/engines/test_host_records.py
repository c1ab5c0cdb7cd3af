"""The records of a host's processes, their notifications, and the poller that notices commits without one."""

import asyncio
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually, eventually_now
from opened_engine import opened_engine

from holdfast.engines import open_engine
from holdfast.engines.host import MAX_DATAGRAM_BYTES, HostProcesses
from holdfast.engines.sqlite.connection import connect
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.poller import CommitPoller
from holdfast.engines.topics import EVERY_TOPIC, Topics
from holdfast.runtime import SystemRuntime

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no sockets between processes here")

TWO_DAYS_S = 2 * 24 * 3600


class Host:
    """Makes processes that share one file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.made: list[HostProcesses] = []
        self.received: list[frozenset[str]] = []

    def process(self) -> HostProcesses:
        self.made.append(HostProcesses(str(self._file), SystemRuntime(), self.received.append))
        return self.made[-1]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    folder = tempfile.mkdtemp()  # the path of a socket must be short
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    file = tmp_path / "jobs.db"
    file.touch()
    host = Host(file)
    yield host
    for process in host.made:
        process.close()
    shutil.rmtree(folder)


def make_old(process: HostProcesses) -> Path:
    record: Path = process._path("lock")
    long_ago_s = time.time() - TWO_DAYS_S
    os.utime(record, (long_ago_s, long_ago_s))
    return record


def test_the_old_record_of_a_living_process_stays(host: Host) -> None:
    record = make_old(host.process())
    host.process()
    assert record.exists()


def test_the_old_record_of_a_process_that_has_ended_is_removed(host: Host) -> None:
    killed = host.process()
    record = make_old(killed)
    killed._lock.close()  # as the kernel does it
    host.process()
    assert not record.exists()


def test_more_topics_than_a_datagram_holds_are_sent_as_every_topic(host: Host) -> None:
    host.process()
    topics = frozenset(f"queue:{number:0100}" for number in range(MAX_DATAGRAM_BYTES // 100))
    host.process().notify(topics)
    eventually_now(lambda: host.received)
    assert host.received == [frozenset({EVERY_TOPIC})]


async def test_a_notification_that_comes_while_a_wait_begins_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = Topics()
    loop = asyncio.get_running_loop()
    create_future = loop.create_future

    def notify_first() -> Any:
        monkeypatch.undo()
        topics.notify(frozenset({"queue:q"}))
        return create_future()

    with topics.subscribe("queue:q") as subscription:
        async with asyncio.timeout(10):
            monkeypatch.setattr(loop, "create_future", notify_first)
            assert await subscription.wait(60) == {"queue:q"}


# The poller


@pytest.mark.parametrize("topic", ["queue:q", "room:q", "reply:p"])
async def test_a_commit_that_only_the_counter_shows_wakes_every_kind_of_caller(tmp_path: Path, topic: str) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/x.db")
    assert isinstance(engine, SqliteEngine)
    topics = Topics()
    poller = CommitPoller(engine._store, SystemRuntime(), topics)
    subscription = topics.subscribe(topic)
    poller._compare((b"1",))
    poller._compare((b"2",))
    topics.on_wait = None
    assert await subscription.wait(0.01) == {topic}


async def test_the_counter_is_read_only_after_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.sqlite.poller.POLL_INTERVAL_S", 0.001)
    statements: list[str] = []

    def traced(*given: Any, **options: Any) -> Any:
        connection = connect(*given, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr("holdfast.engines.sqlite.poller.connect", traced)
    engine = open_engine(f"sqlite:///{tmp_path}/x.db")
    assert isinstance(engine, SqliteEngine)
    async with opened_engine(engine):
        with engine.subscribe("queue:q") as subscription:
            waiting = asyncio.ensure_future(subscription.wait(60))
            await eventually(lambda: statements.count("PRAGMA data_version") > 20)
            waiting.cancel()
    assert len([statement for statement in statements if "user_commits" in statement]) == 1


def test_a_lock_that_is_closed_is_free_although_a_copy_of_its_descriptor_lives(tmp_path: Path) -> None:
    """As in a child that C code has forked."""
    files = SystemRuntime().fs
    lock = files.lock(tmp_path / "lock")
    assert lock is not None
    copy = os.dup(lock.fd)
    lock.close()
    again = files.lock(tmp_path / "lock")
    os.close(copy)
    assert again is not None
    again.close()
