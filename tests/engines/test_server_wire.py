"""A wire that is cut, hangs or leads nowhere: errors say whether anything may have been written.

The short forms; `make chaos` runs them at full length.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from load import Load
from proxy import Cut, Direction, PostgresWire, Proxy, RedisWire
from server_stores import ServerStore

from holdfast import App
from holdfast.engine import Engine
from holdfast.errors import EngineUnavailable, OutcomeUnknown
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.produce import EnqueueAnswer, EnqueueStatus, Group, GroupAccepted
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState
from holdfast.model.work import SettleStatus
from holdfast.testing.contract.builders import QUEUE, claim, new_job, succeed

Story = Callable[[Engine], Awaitable[Any]]


@pytest.fixture
def proxy(server_store: ServerStore) -> Iterator[Proxy]:
    with Proxy(server_store.port, PostgresWire if server_store.kind == "postgres" else RedisWire) as made:
        yield made


@pytest.fixture
def by_proxy(server_store: ServerStore, proxy: Proxy) -> ServerStore:
    return server_store._replace(url=server_store.url.replace(f":{server_store.port}/", f":{proxy.port}/"))


def statuses(answer: EnqueueAnswer) -> list[EnqueueStatus]:
    assert isinstance(answer.groups[0], GroupAccepted)
    return [job.status for job in answer.groups[0].jobs]


@pytest.mark.parametrize("where", Cut)
@pytest.mark.parametrize("fresh", [True, False])
async def test_an_enqueue_that_is_cut_off_is_unknown_and_safe_to_repeat(
    by_proxy: ServerStore, proxy: Proxy, where: Cut, fresh: bool
) -> None:
    async with by_proxy.opened(notify=False) as engine:
        await engine.enqueue(Group((new_job("first", fresh_id=fresh),)))
        proxy.cut_at(where)
        with pytest.raises(OutcomeUnknown) as unknown:
            await engine.enqueue(Group((new_job("a", fresh_id=fresh),)))
        assert unknown.value.job_ids == ("a",)
        written = (await engine.get(JobKey(QUEUE, "a"))).jobs[0] is not None
        assert written == (where is not Cut.BEFORE_REQUEST)
        again = statuses(await engine.enqueue(Group((new_job("a", fresh_id=fresh),))))
        assert again == [EnqueueStatus.DUPLICATE if written else EnqueueStatus.CREATED]
        assert (await engine.stats(QUEUE)).queues[0].counts == {JobState.QUEUED: 2}


async def test_an_app_resolves_a_lost_answer_by_the_job_s_id(by_proxy: ServerStore, proxy: Proxy) -> None:
    app: App[Any] = App(by_proxy.url, namespace=by_proxy.namespace, durability=by_proxy.durability)

    @app.task
    async def work() -> None: ...

    async with app, by_proxy.opened(notify=False) as engine:
        await work.aenqueue()
        await engine.stats()
        proxy.cut_at(Cut.BEFORE_REPLY)
        handle = await work.aenqueue()
        proxy.wait_until_cut()
        assert (await engine.get(JobKey(handle.queue, handle.id))).jobs[0] is not None


@pytest.mark.parametrize("where", Cut)
async def test_an_exchange_that_is_cut_off_is_repeated_and_nothing_happens_twice(
    by_proxy: ServerStore, proxy: Proxy, where: Cut
) -> None:
    async with by_proxy.opened(notify=False) as engine:
        await engine.enqueue(Group(tuple(new_job(f"j{number}") for number in range(6))))
        first = (await engine.claim(claim("a" * 32, limit=2))).leases
        proxy.cut_at(where)
        with pytest.raises(OutcomeUnknown):
            await engine.exchange(map(succeed, first), claim=claim("b" * 32, limit=2))
        counts = (await engine.stats(QUEUE)).queues[0].counts
        again = await engine.exchange(map(succeed, first), claim=claim("b" * 32, limit=2))
        assert again.settled == (SettleStatus.APPLIED, SettleStatus.APPLIED)
        assert [lease.id for lease in again.leases] == ["j2", "j3"]
        if where is not Cut.BEFORE_REQUEST:
            assert (await engine.stats(QUEUE)).queues[0].counts == counts  # it had been done, and was not done again
        totals = (await engine.stats(QUEUE)).queues[0].totals
        assert (totals.finished, totals.succeeded) == (2, 2)
        assert await engine.audit() == ()


READS: dict[str, Story] = {
    "get": lambda engine: engine.get(JobKey(QUEUE, "a")),
    "stats": lambda engine: engine.stats(),
    "workers": lambda engine: engine.workers(),
    "expired": lambda engine: engine.expired("me"),
    "pools": lambda engine: engine.pools(),
}
WRITES: dict[str, Story] = {
    "cancel": lambda engine: engine.cancel(QUEUE, "a"),
    "pause": lambda engine: engine.pause(QUEUE),
    "resume": lambda engine: engine.resume(QUEUE),
    "amend": lambda engine: engine.amend(QUEUE, "a", priority=1),
    "clear": lambda engine: engine.clear(QUEUE),
    "put_pool": lambda engine: engine.put_pool("p", 2),
    "prune": lambda engine: engine.prune(),
    "heartbeat": lambda engine: engine.heartbeat(WorkerRecord(worker="w", host="h", pid=1, interval=SECOND)),
    "disown": lambda engine: engine.disown("w"),
}


@pytest.mark.parametrize("verb", READS)
async def test_a_read_that_is_cut_off_is_asked_again(by_proxy: ServerStore, proxy: Proxy, verb: str) -> None:
    async with by_proxy.opened(notify=False) as engine:
        whole = await READS[verb](engine)
        for where in Cut:
            proxy.cut_at(where)
            again = await READS[verb](engine)
            proxy.wait_until_cut()
            assert type(again) is type(whole)


@pytest.mark.parametrize("verb", WRITES)
async def test_a_write_that_is_cut_off_is_unknown(by_proxy: ServerStore, proxy: Proxy, verb: str) -> None:
    async with by_proxy.opened(notify=False) as engine:
        await engine.enqueue(Group((new_job("a"),)))
        await WRITES[verb](engine)
        for where in Cut:
            proxy.cut_at(where)
            with pytest.raises(OutcomeUnknown, match="safe"):
                await WRITES[verb](engine)
            await WRITES[verb](engine)
        assert await engine.audit() == ()


async def test_a_server_that_cannot_be_reached_is_said_to_have_written_nothing(
    by_proxy: ServerStore, proxy: Proxy
) -> None:
    async with by_proxy.opened(notify=False) as engine:
        await engine.enqueue(Group((new_job("a"),)))
        proxy.refuse()
        proxy.cut()
        with pytest.raises(EngineUnavailable, match="Nothing was written"):
            await engine.enqueue(Group((new_job("b"),)))
        proxy.accept()
        assert (await engine.get(JobKey(QUEUE, "b"))).jobs == (None,)
        await engine.enqueue(Group((new_job("b"),)))


async def cuts(store: ServerStore, proxy: Proxy, times: int) -> Load:
    async with Load(store, durability=store.durability) as load:
        for number in range(times):
            for where in Cut:
                proxy.cut_at(where, nth=1 + number % 7)
                await asyncio.to_thread(proxy.wait_until_cut)
                await load.consumes()
    print(f"{times * len(Cut)} cuts: {load}")
    return load


async def test_a_worker_cut_off_again_and_again_loses_nothing(by_proxy: ServerStore, proxy: Proxy) -> None:
    load = await cuts(by_proxy, proxy, 3)
    assert load.refused == 0  # the server could be reached all the time


@pytest.mark.chaos
async def test_nothing_is_lost_in_three_hundred_cuts_under_load(by_proxy: ServerStore, proxy: Proxy) -> None:
    await cuts(by_proxy, proxy, 100)


async def test_a_wire_that_hangs_does_not_hold_up_a_renewal_for_ever(
    by_proxy: ServerStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"postgres": "postgres.renewal_connection.STATEMENT_TIMEOUT_S", "redis": "redis.engine.CALL_TIMEOUT_S"}
    monkeypatch.setattr(f"holdfast.engines.{limits[by_proxy.kind]}", 0.5)

    async with by_proxy.opened(notify=False) as engine:
        line = engine.renewal_connection()
        record = WorkerRecord(worker="w", host="h", pid=1, interval=SECOND)
        await asyncio.to_thread(line.heartbeat, record)
        proxy.hold(Direction.TO_CLIENT)
        with pytest.raises(OutcomeUnknown):
            await asyncio.to_thread(line.heartbeat, record)
        proxy.release()
        await asyncio.to_thread(line.heartbeat, record)
        await asyncio.to_thread(line.close)
