"""A server that has lost acknowledged jobs: every process that used it is told, and goes on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from eventually import eventually
from opened_engine import opened_engine
from proxy import Direction, Proxy, RedisWire
from redis_binaries import versions
from redis_replicas import cut_off, has_everything, promote, start_replica
from redis_server import AOF_ALWAYS, WITHOUT_PERSISTENCE, RedisServer, private_server

from holdfast import App, Context, Handle, events
from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.engines.redis import history as history_module
from holdfast.engines.redis.history import StoreHistory
from holdfast.errors import HistoryLost, OutcomeUnknown
from holdfast.model.job import JobKey
from holdfast.model.produce import Enqueue, EnqueueAnswer, EnqueueStatus, Group, GroupAccepted
from holdfast.model.work import SettleStatus
from holdfast.testing.contract.builders import QUEUE, claim, new_job, succeed


@pytest.fixture(scope="module", params=versions())
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with private_server(WITHOUT_PERSISTENCE, name=request.param) as private:
        yield private


@pytest.fixture(autouse=True)
def empty(server: RedisServer) -> None:
    server.execute("FLUSHALL")


class Watched:
    """An engine and the events of its store."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.events: list[events.StoreEvent] = []
        engine.report_to(self.events.append)

    async def enqueue(self, *ids: str) -> EnqueueAnswer:
        return await self.engine.enqueue(Group(tuple(new_job(one) for one in ids)))

    async def ids(self, *ids: str) -> list[str]:
        """Which of these jobs the store has."""
        answer = await self.engine.get(*(JobKey(QUEUE, one) for one in ids))
        return [job.id for job in answer.jobs if job is not None]


@asynccontextmanager
async def watched(url: str, **options: Any) -> AsyncIterator[Watched]:
    async with opened_engine(open_engine(url, durability="none", **options)) as engine:
        yield Watched(engine)


async def is_told_once(process: Watched) -> None:
    """Its next call is refused and has written nothing; the one after it is carried out."""
    told = len(process.events)
    with pytest.raises(HistoryLost, match="has lost acknowledged jobs"):
        await process.enqueue("refused")
    assert len(process.events) == told + 1
    assert isinstance(process.events[-1], events.HistoryLost)
    assert await process.ids("refused") == []
    assert len(process.events) == told + 1


async def test_every_process_is_told_of_a_flush_and_goes_on(server: RedisServer) -> None:
    async with watched(server.url()) as one, watched(server.url()) as other, watched(server.url()) as third:
        await one.enqueue("a")
        await other.enqueue("b")
        server.execute("FLUSHALL")
        await is_told_once(one)
        await is_told_once(other)
        await one.enqueue("c")
        assert await other.ids("a", "b", "c") == ["c"]
        await is_told_once(third)


async def test_all_calls_under_way_are_refused_and_one_event_is_emitted(server: RedisServer) -> None:
    async with watched(server.url()) as process:
        await process.enqueue("a")
        server.execute("FLUSHALL")
        calls = [process.enqueue(f"job-{number}") for number in range(20)]
        calls += [process.ids("a") for _ in range(5)]  # type: ignore[misc]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {HistoryLost}
        assert len(process.events) == 1


async def test_calls_on_two_connections_cause_no_false_alarm(server: RedisServer) -> None:
    async with watched(server.url(), namespace="calm") as one, watched(server.url(), namespace="calm") as other:
        for first in range(0, 200, 20):
            numbers = range(first, first + 20)
            await asyncio.gather(
                *(
                    process.enqueue(f"{name}-{number}")
                    for number in numbers
                    for name, process in enumerate((one, other))
                ),
                *(
                    process.engine.claim(claim(f"{name}-{n}"))
                    for n in numbers
                    for name, process in enumerate((one, other))
                ),
            )
        assert one.events == other.events == []


async def test_a_restart_without_persistence_is_told(server: RedisServer) -> None:
    async with watched(server.url()) as process:
        await process.enqueue("a")
        server.restart()
        await is_told_once(process)
        await process.enqueue("b")
        assert await process.ids("a", "b") == ["b"]


async def test_a_restart_with_an_append_only_file_loses_nothing(server: RedisServer) -> None:
    with private_server(AOF_ALWAYS, name=server.name) as durable:
        async with watched(durable.url()) as process:
            await process.enqueue("a")
            durable.restart()
            await process.enqueue("b")
            assert await process.ids("a", "b") == ["a", "b"]
            assert process.events == []


async def test_each_queue_with_keys_of_its_own_is_told_of(server: RedisServer) -> None:
    async with watched(f"{server.url()}?cluster=queues") as process:
        await process.engine.enqueue(Group((new_job("a", queue="one"),)))
        await process.engine.enqueue(Group((new_job("a", queue="two"),)))
        server.execute("FLUSHALL")
        for queue in ("one", "two"):
            with pytest.raises(HistoryLost):
                await process.engine.enqueue(Group((new_job("b", queue=queue),)))
            await process.engine.enqueue(Group((new_job("b", queue=queue),)))
        keys = {event.keys for event in process.events if isinstance(event, events.HistoryLost)}
        assert {"holdfast:{one}:*", "holdfast:{two}:*"} <= keys


# Failover


@asynccontextmanager
async def with_replica(server: RedisServer) -> AsyncIterator[tuple[RedisServer, Proxy]]:
    """A replica that copies the server, and a proxy in front of the server."""
    with start_replica(server, WITHOUT_PERSISTENCE) as replica, Proxy(server.port, RedisWire) as proxy:
        yield replica, proxy


def take_over(replica: RedisServer, proxy: Proxy) -> None:
    promote(replica)
    proxy.redirect(replica.port)


async def test_a_failover_that_loses_nothing_is_not_told(server: RedisServer) -> None:
    async with with_replica(server) as (replica, proxy), watched(server.url(port=proxy.port)) as process:
        await process.enqueue("a")
        await eventually(lambda: has_everything(replica, server), "the replica")
        take_over(replica, proxy)
        await process.enqueue("b")
        assert await process.ids("a", "b") == ["a", "b"]
        assert process.events == []


async def test_a_failover_to_a_replica_that_was_behind_is_told_and_old_leases_are_refused(server: RedisServer) -> None:
    async with with_replica(server) as (replica, proxy), watched(server.url(port=proxy.port)) as process:
        await process.enqueue("a")
        await eventually(lambda: has_everything(replica, server), "the replica")
        cut_off(replica)
        (lease,) = (await process.engine.claim(claim("c"))).leases
        await process.enqueue("b")
        take_over(replica, proxy)
        await is_told_once(process)
        settled = await process.engine.settle(succeed(lease))
        assert settled.settled == (SettleStatus.LOST,)
        assert await process.ids("a", "b") == ["a"]
        (again,) = (await process.engine.claim(claim("again"))).leases
        assert again.token != lease.token


async def test_writes_of_other_processes_do_not_hide_what_a_failover_has_lost(server: RedisServer) -> None:
    async with with_replica(server) as (replica, proxy):
        url = server.url(port=proxy.port)
        async with watched(url) as one, watched(url) as other, watched(url) as idle:
            await one.enqueue("a")
            assert await other.ids("a") == await idle.ids("a") == ["a"]
            await eventually(lambda: has_everything(replica, server), "the replica")
            cut_off(replica)
            await one.enqueue("lost")
            take_over(replica, proxy)
            for number in range(10):  # it has seen nothing that is lost
                await other.enqueue(f"new-{number}")
            assert other.events == []
            await is_told_once(one)
            # From now on it is known to all.
            await is_told_once(other)
            await is_told_once(idle)


async def fail_back(server: RedisServer, replica: RedisServer, proxy: Proxy) -> None:
    """The first primary, which has become a replica of the second one, takes over again."""
    server.execute("REPLICAOF", "127.0.0.1", replica.port)
    try:
        await eventually(lambda: has_everything(server, replica), "the first primary to be in step")
    finally:
        promote(server)
    proxy.redirect(server.port)


@pytest.mark.parametrize("lost", [1, 7])
async def test_an_idle_process_is_told_of_a_loss_when_the_first_primary_is_back(server: RedisServer, lost: int) -> None:
    """Also if it had seen more writes than there were when the first primary came back."""
    async with with_replica(server) as (replica, proxy):
        url = server.url(port=proxy.port)
        async with watched(url) as idle, watched(url) as other:
            await idle.enqueue("a")
            assert await other.ids("a") == ["a"]
            await eventually(lambda: has_everything(replica, server), "the replica")
            cut_off(replica)
            for number in range(lost):
                await idle.enqueue(f"lost-{number}")
            take_over(replica, proxy)
            for number in range(5):
                await other.enqueue(f"second-{number}")
            await fail_back(server, replica, proxy)
            for number in range(5):
                await other.enqueue(f"third-{number}")
            assert other.events == []
            await is_told_once(idle)
            await is_told_once(other)


async def test_an_idle_process_is_not_told_if_two_failovers_lose_nothing(server: RedisServer) -> None:
    async with with_replica(server) as (replica, proxy):
        url = server.url(port=proxy.port)
        async with watched(url) as idle, watched(url) as other:
            await idle.enqueue("a")
            assert await other.ids("a") == ["a"]
            await eventually(lambda: has_everything(replica, server), "the replica")
            take_over(replica, proxy)
            await other.enqueue("b")
            await fail_back(server, replica, proxy)
            await other.enqueue("c")
            assert await idle.ids("a", "b", "c") == ["a", "b", "c"]
            assert idle.events == other.events == []


@pytest.mark.parametrize("first", ["old", "new"])
def test_answers_of_two_runs_that_cross_hide_nothing(first: str) -> None:
    """Two calls are under way during a failover. The old primary counts to 100, and the new one began with 90."""
    old, new = ("old", "0"), ("new", "90")
    history = StoreHistory("place", lambda: 0)
    history.note("root:", None, "b", 90, old)
    sent = history.seen("root:")
    answers = [(100, old), (150, new)]
    for tip, run in answers if first == "old" else reversed(answers):
        history.note("root:", sent, "b", tip, run)
    sent = history.seen("root:")
    options = history.options("root:", "new")
    assert (options["born"], options["tip"]) == ("b", 150)
    assert sorted(map(str, options["seen"])) == sorted(["old", "0", "100", "new", "90", "150"])

    history.note("root:", sent, "b", 151, new)  # the server has compared them
    assert history.options("root:", "new") == {"run": "new", "born": "b", "tip": 151, "begin": "90"}


def test_a_process_remembers_a_limited_number_of_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MOST_ROOTS", 3)
    history = StoreHistory("place", lambda: 0)
    for number in range(5):
        history.note(f"root-{number}:", None, "b", 1, ("run", "0"))
    assert [history.seen(f"root-{number}:") is None for number in range(5)] == [True, True, False, False, False]


# Workers


async def test_a_worker_goes_on_after_its_jobs_are_lost(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    jobs = App[Any](server.url(), namespace="shop", durability="none")
    told: list[events.HistoryLost] = []
    jobs.on(events.HistoryLost)(told.append)
    running, finish = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def wait(ctx: Context) -> str:
        running.set()
        await finish.wait()
        return "waited"

    @jobs.task
    async def add(left: int, right: int) -> int:
        return left + right

    async with jobs, jobs.worker():
        await wait.aenqueue()
        await running.wait()
        server.execute("FLUSHALL")
        await eventually(lambda: told, "the event")
        finish.set()
        while True:
            try:
                handle = await add.aenqueue(2, 3)
            except HistoryLost:
                continue  # the worker may not have made a call yet
            break
        assert await handle.aresult(timeout=30) == 5
    assert len(told) == 1
    assert told[0].keys == "shop:*"
    lines = [record for record in caplog.records if "lost acknowledged jobs" in record.message]
    assert [(record.name, record.levelname) for record in lines if record.levelno > logging.DEBUG] == [
        ("holdfast.redis", "ERROR")
    ]


async def test_the_callers_of_a_task_are_told(server: RedisServer) -> None:
    """Also those whose jobs share a write."""
    with Proxy(server.port, RedisWire) as proxy:
        jobs = App[Any](server.url(port=proxy.port), namespace="caller", durability="none")

        @jobs.task
        def add(left: int, right: int) -> int:
            return left + right

        async with jobs:
            await add.aenqueue(1, 2)
            proxy.hold(Direction.TO_CLIENT)
            calls = [asyncio.ensure_future(add.aenqueue(3, number)) for number in range(10)]
            await eventually(lambda: server.execute("HGET", "caller:meta", "tip") == b"2", "the first write")
            server.execute("FLUSHALL")
            proxy.release()
            first, *others = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(first, Handle)
            assert {type(answer) for answer in others} == {HistoryLost}
            await add.aenqueue(5, 6)
            assert (await jobs.control.astatus("default")).depth == 1


async def test_a_history_that_one_of_two_queues_has_lost_does_not_hide_what_was_written_in_the_other(
    server: RedisServer,
) -> None:
    def groups(job_id: str) -> Enqueue:
        return Enqueue(groups=tuple(Group((new_job(job_id, queue=queue),)) for queue in ("kept", "lost")))

    async with watched(server.url(), cluster="queues") as process:
        await process.engine.perform(groups("before"))
        server.execute("DEL", *server.execute("KEYS", "holdfast:{lost}:*"))
        with pytest.raises(OutcomeUnknown, match="carried out for some queues, but not for 'lost'"):
            await process.engine.perform(groups("after"))
        assert [type(event) for event in process.events] == [events.HistoryLost]
        answer = await process.engine.perform(groups("after"))
        statuses = [group.jobs[0].status for group in answer.groups if isinstance(group, GroupAccepted)]
        assert statuses == [EnqueueStatus.DUPLICATE, EnqueueStatus.CREATED]
