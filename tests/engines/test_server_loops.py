"""Event loops and processes around an engine with a server: which connections they use, and which they leave open."""

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Callable

import pytest
from eventually import eventually_now
from opened_engine import opened_engine
from server_stores import ServerStore

from holdfast.errors import EngineUnavailable
from holdfast.model.job import JobKey
from holdfast.model.produce import Group
from holdfast.testing.contract.builders import QUEUE, new_job


def test_an_engine_works_after_the_event_loop_that_opened_it_has_ended(server_store: ServerStore) -> None:
    before = server_store.connections()
    engine = server_store.made(notify=False)

    async def first() -> None:
        await engine.open()
        await engine.enqueue(Group((new_job("a"),)))

    async def second() -> None:
        assert (await engine.get(JobKey(QUEUE, "a"))).jobs[0] is not None

    asyncio.run(first())
    eventually_now(lambda: server_store.connections() <= before)  # its connections are closed with the loop
    asyncio.run(second())
    asyncio.run(engine.close())
    eventually_now(lambda: server_store.connections() <= before)


def test_a_loop_closed_without_shutting_down_leaves_no_connection_open(server_store: ServerStore) -> None:
    before = server_store.connections()
    engine = server_store.made(notify=False)

    async def use(name: str) -> None:
        await engine.open()
        await engine.enqueue(Group((new_job(name),)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # expected: the loop does not close its connections
        for name in ("a", "b", "c"):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(use(name))
            loop.close()
            del loop
        asyncio.run(engine.close())
        gc.collect()
        eventually_now(lambda: server_store.connections() <= before)


def test_an_engine_can_be_closed_from_another_loop(server_store: ServerStore) -> None:
    before = server_store.connections()
    engine = server_store.made()
    used, ended = threading.Event(), threading.Event()

    async def use() -> None:
        await engine.enqueue(Group((new_job("a"),)))
        used.set()
        await asyncio.to_thread(ended.wait)

    asyncio.run(engine.open())
    user = threading.Thread(target=lambda: asyncio.run(use()))
    user.start()
    used.wait(30)
    asyncio.run(engine.close())
    eventually_now(lambda: server_store.connections() <= before)
    ended.set()
    user.join()


async def test_a_closed_engine_refuses_calls_and_can_be_opened_again(server_store: ServerStore) -> None:
    async with server_store.opened() as engine:
        await engine.close()
        with pytest.raises(EngineUnavailable, match="Nothing was written"):
            await engine.enqueue(Group((new_job("a"),)))
        await engine.open()
        await engine.enqueue(Group((new_job("a"),)))


def in_forked_child(function: Callable[[], str]) -> str:
    """What the function returns in a forked child."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about a fork with threads, which is tested here
        pid = os.fork()
    if pid == 0:
        result = "it did not end"
        try:
            result = function()
        except BaseException as error:
            result = repr(error)
        finally:
            os.write(writer, result.encode())
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        result = pipe.read().decode()
    os.waitpid(pid, 0)
    return result


@pytest.mark.usefixtures("confirmed_subscriptions")
async def test_a_forked_child_opens_its_own_connections_and_does_not_touch_its_parent_s(
    server_store: ServerStore,
) -> None:
    async with server_store.opened() as engine:

        async def open_and_enqueue() -> None:
            async with opened_engine(engine):
                await engine.enqueue(Group((new_job("b"),)))

        def child() -> str:
            try:
                asyncio.run(engine.enqueue(Group((new_job("b"),))))
            except EngineUnavailable as error:
                message = str(error)
            asyncio.run(open_and_enqueue())
            return message

        await engine.enqueue(Group((new_job("a"),)))
        assert "not open in this process" in await asyncio.to_thread(in_forked_child, child)
        found = (await engine.get(JobKey(QUEUE, "a"), JobKey(QUEUE, "b"))).jobs
        assert [record is not None for record in found] == [True, True]
        with engine.subscribe(f"queue:{QUEUE}") as subscription:
            await engine.enqueue(Group((new_job("c"),)))
            assert await subscription.wait(30)


def test_an_engine_can_be_closed_without_a_loop(server_store: ServerStore) -> None:
    before = server_store.connections()
    engine = server_store.made()
    asyncio.run(engine.open())
    engine.close_now()
    eventually_now(lambda: server_store.connections() <= before)
