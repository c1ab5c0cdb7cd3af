"""Async tasks: each attempt has a thread of its own for sync code and the ORM."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from eventually import eventually

pytestmark = pytest.mark.usefixtures("project")

LIMIT_S = 20.0


@asynccontextmanager
async def while_running(backend: str, name: str, *arguments: Any) -> AsyncIterator[Any]:
    """A worker runs, and this task has begun. The result is that of the task, which goes on when the block ends."""
    from django_project.shop import tasks

    from holdfast.django import get_app
    from holdfast.django.backend_apps import APPS

    tasks.STARTED.clear()
    tasks.GO_ON.clear()
    APPS[backend].declare_all()  # as the command `worker` does
    async with get_app(backend).worker():
        try:
            result = await getattr(tasks, name).using(backend=backend, max_attempts=1).aenqueue(*arguments)
            await eventually(tasks.STARTED.is_set, "the task to begin", LIMIT_S)
            yield result
        finally:
            tasks.GO_ON.set()
        await ended(result)


async def ended(result: Any) -> None:
    async def is_finished() -> bool:
        await result.arefresh()
        return bool(result.is_finished)

    await eventually(is_finished, f"the end of {result.task.name}", LIMIT_S)


async def test_an_async_task_does_not_wait_for_the_sync_code_of_another(backend: str) -> None:
    from django_project.shop.tasks import add_later

    from holdfast.django.tasks_api import task_finished

    finished: list[str] = []

    def receive(task_result: Any, **_: Any) -> None:
        finished.append(task_result.id)

    task_finished.connect(receive)
    try:
        async with while_running(backend, "hold_thread"):
            async with ThreadSensitiveContext():  # as in a request
                other = await add_later.using(backend=backend).aenqueue(1, 2)
            await eventually(lambda: other.id in finished, "the signal of the other task", LIMIT_S)
            await ended(other)
    finally:
        task_finished.disconnect(receive)
    assert other.return_value == 3


async def test_the_end_of_an_async_task_leaves_the_connections_of_others_open(backend: str) -> None:
    from django_project.shop.models import Order
    from django_project.shop.tasks import add_later

    for name in ("lamp", "chair", "table"):
        await Order.objects.using(backend).acreate(name=name)
    orders = await Order.objects.using(backend).acount()
    async with while_running(backend, "read_orders", backend) as reading:
        await ended(await add_later.using(backend=backend).aenqueue(1, 2))
    assert (reading.errors, reading.return_value) == ([], orders)


async def test_an_async_task_leaves_no_connection_open(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends with it, so a connection could not be used again."""
    from django.db import connections
    from django_project.shop.models import Order
    from django_project.shop.tasks import count_orders

    opened: list[Any] = []
    monkeypatch.setitem(connections[backend].settings_dict, "CONN_MAX_AGE", 60)
    monkeypatch.setattr("django_project.shop.tasks.OPENED", opened)
    await Order.objects.using(backend).acreate(name="lamp")
    async with while_running(backend, "hold_thread"):
        await ended(await count_orders.using(backend=backend).aenqueue(backend))
        assert [connection.connection for connection in opened] == [None]


@pytest.mark.parametrize("run", [async_to_sync, asyncio.run], ids=["async_to_sync", "asyncio.run"])
def test_a_worker_that_async_code_runs_with_sync_to_async_runs_async_tasks(
    backend: str, run: Callable[..., Any]
) -> None:
    """As an async test does: `await sync_to_async(call_command)("holdfast", "worker", "--until-empty")`."""
    from django_project.shop.tasks import add, add_later

    from holdfast.django import get_app
    from holdfast.django.tasks_api import task_finished

    finished: list[str] = []

    def receive(task_result: Any, **_: Any) -> None:
        finished.append(task_result.id)

    async def work() -> None:
        await sync_to_async(get_app(backend).worker(until_empty=True).run)()

    results = [task.using(backend=backend, max_attempts=1).enqueue(1, 2) for task in (add, add_later)]
    task_finished.connect(receive)
    try:
        run(work)() if run is async_to_sync else run(work())
    finally:
        task_finished.disconnect(receive)
    for result in results:
        result.refresh()
    assert [(result.errors, result.return_value) for result in results] == [([], 3), ([], 3)]
    assert sorted(finished) == sorted(result.id for result in results)
