"""Tasks of the shop."""

import asyncio
import threading
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.db.models import F

from django_project.shop.models import Order
from holdfast import GiveUp
from holdfast.django import get_app, task
from holdfast.model.states import JobState
from holdfast.model.work import Exchange, Settlement, SettleStatus


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task
async def add_later(a: int, b: int) -> int:
    return a + b


STARTED, GO_ON = threading.Event(), threading.Event()
"""For tests in the process of the worker: a task has begun, and may end."""


@task
async def hold_thread() -> None:
    """Occupies the thread for sync code."""
    await sync_to_async(_wait)()


@task
async def read_orders(database: str) -> int:
    """Reads the first order, waits, and reads the others."""
    count = 0
    async for _ in Order.objects.using(database).aiterator(chunk_size=1):
        count += 1
        if count == 1:
            await asyncio.to_thread(_wait)
    return count


OPENED: list[Any] = []
"""The connections of `count_orders`."""


@task
async def count_orders(database: str) -> int:
    await sync_to_async(lambda: OPENED.append(connections[database]))()
    count: int = await Order.objects.using(database).acount()
    return count


def _wait() -> None:
    STARTED.set()
    assert GO_ON.wait(60)


@task(max_attempts=2, backoff=0)
def fail(text: str) -> None:
    raise ValueError(text)


@task(max_attempts=2, backoff=0)
async def fail_later(text: str) -> None:
    raise ValueError(text)


@task
def give_up(text: str) -> None:
    raise GiveUp(text)


@task
def from_settings() -> None:
    raise ValueError("again")


@task(takes_context=True, max_attempts=5, backoff=0)
def describe(context: Any, until: int) -> dict[str, Any]:
    if context.attempt < until:
        raise ConnectionError("not yet")
    context.progress(0.5, "half")
    return {
        "attempt": context.attempt,
        "attempts": context.task_result.attempts,
        "args": context.task_result.args,
        "id": context.task_result.id,
        "job": context.job.id,
        "fence": context.fence,
        "aborted": context.aborted,
    }


@task(transaction=True, max_attempts=3, backoff=0)
def ship(order_id: int, database: str, mistakes: int = 0) -> str:
    """Ships the order. While it has been tried fewer times than `mistakes`, its transaction must roll back."""
    order = Order.objects.using(database).get(pk=order_id)
    order.shipped = F("shipped") + 1
    order.save(using=database)
    if mistakes:
        raise ValueError("after the write")
    return f"shipped {order.name}"


@task(transaction=True, max_attempts=2, backoff=0)
def ship_and_mark_for_rollback(order_id: int, database: str) -> None:
    Order.objects.using(database).filter(pk=order_id).update(shipped=F("shipped") + 1)
    transaction.set_rollback(True, using=database)


@task(transaction=True)
def ship_and_enqueue(order_id: int, database: str, backend: str) -> None:
    Order.objects.using(database).filter(pk=order_id).update(shipped=F("shipped") + 1)
    add.using(id=f"after-{order_id}", backend=backend).enqueue(order_id)


@task(transaction=True, takes_context=True)
def ship_while_stolen(context: Any, order_id: int, database: str) -> None:
    """In the first attempt, another caller gives the job back to the queue while this one runs."""
    Order.objects.using(database).filter(pk=order_id).update(shipped=F("shipped") + 1)
    if context.attempt == 1:
        lease = context.holdfast._attempt.lease
        release = Settlement(queue=lease.queue, id=lease.id, token=lease.token, target=JobState.RETRYING)
        answer = asyncio.run(get_app(database).engine.perform(Exchange(settlements=(release,))))
        assert answer.settled == (SettleStatus.APPLIED,)


@task
def open_connections(database: str) -> list[bool]:
    """Whether this thread had a connection before, and one that it leaves."""
    before = connections[database].connection is not None
    Order.objects.using(database).count()
    return [before, connections[database].connection is not None]


@task(aliases=["shop.tasks.sum_up"])
def total(a: int, b: int) -> int:
    return a + b
