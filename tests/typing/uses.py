"""What both type checkers must accept, with the types they must find. Read by `test_checkers.py`, never run."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from holdfast import App, Context, Handle, Job, JobState, Next, Receipt, Report, events, exponential
from holdfast.draft import Draft
from holdfast.task import AsyncTask, SyncTask, Task


@asynccontextmanager
async def resources() -> AsyncIterator[dict[str, int]]:
    yield {"rooms": 3}


jobs = App("memory://")
shop = App(lifespan=resources, modules=["shop.tasks"], durability="fast")
assert_type(jobs, App[object])
assert_type(shop, App[dict[str, int]])


@jobs.task
def resize(image: str, width: int = 800) -> str:
    return f"{image}@{width}"


@jobs.task(max_attempts=None, backoff=exponential(initial=0.5), timeout=timedelta(minutes=1), unique_for="result")
async def shrink(image: str, *, quality: float = 0.8) -> bytes:
    return b""


@jobs.task
async def flaky(ctx: Context, n: int) -> int:
    return n * ctx.attempt


@shop.task(lane="room:{room}", backoff=[1, 10, timedelta(minutes=1)], give_up_on=(ValueError,))
def book(ctx: Context[dict[str, int]], room: str) -> int:
    return ctx.state[room]


@jobs.task
def untyped(anything: Any, count: int) -> str:
    return ""


@jobs.task(isolate="process", memory_limit=1 << 30)
def convert(ctx: Context, image: str) -> str:
    return image


assert_type(convert.request("cat.png"), str)


@jobs.task(queue="quick", unique_key=lambda: "only one", backoff=lambda attempt, error: 3.0 if attempt < 4 else None)
def tidy() -> None: ...


def names(task: SyncTask[..., Any], other: AsyncTask[..., Any]) -> tuple[str, str]:
    return task.name, other.queue


names(resize, shrink)
takes: SyncTask[[str], int] = book
plain: Callable[[str], str] = resize

assert_type(resize("cat.png"), str)
assert_type(resize.call("cat.png", width=1), str)
assert_type(resize.enqueue("cat.png", 320), Handle[str])
assert_type(resize.enqueue("cat.png").result(timeout=3), str)
assert_type(resize.enqueue("cat.png").receipt, Receipt | None)
assert_type(resize.enqueue("cat.png").refresh(), Job)
assert_type(resize.handle("an id").report(), Report)
assert_type(resize.draft("cat.png"), Draft[str])
assert_type(flaky.request(21), int)
assert_type(book.request("blue"), int)
assert_type(shrink.using(id="a", delay=timedelta(hours=1)).enqueue("cat.png", quality=0.5).result(), bytes)
assert_type(
    tidy.using(at=datetime.now(UTC), expires=60, metadata={"by": "cron"}, wait_for_room=3).enqueue(), Handle[None]
)
assert_type(jobs.client.enqueue_many([resize.draft(f"{n}.png") for n in range(3)]), list[Handle[str]])
assert_type(jobs.client.task("billing.send_invoice"), Task[..., Any])
assert_type(jobs.client.states(["a", "b"]), dict[str, JobState | None])
assert_type(jobs.control.requeue(all_failed=True, task="resize"), int)
untyped.enqueue(object(), 3)
jobs.client.task("billing.send_invoice").enqueue(42, anything=True)


@jobs.task(transaction=True)
def settle(ctx: Context, order: int) -> str:
    assert_type(ctx.tx, Any)
    resize.using(transaction=ctx.tx).enqueue("cat.png")
    with ctx.transaction() as connection:
        connection.execute("...")
    ctx.complete("done", transaction=connection)
    return str(ctx.fence)


def sessions() -> object: ...


@jobs.task(transaction=sessions)
async def asettle(ctx: Context, order: int) -> None:
    async with ctx.transaction() as connection:
        await ctx.acomplete(transaction=connection)


assert_type(settle.using(transaction=object()).enqueue(3), Handle[str])
assert_type(jobs.client.enqueue_many([resize.draft("a")], transaction=object()), list[Handle[str]])
jobs.queue("scans", str).enqueue("x", transaction=object(), priority=3)
jobs.pool("pool", str, lanes=2).enqueue("x", transaction=object(), key="k")


async def both_colours() -> None:
    assert_type(await resize.aenqueue("cat.png", width=3), Handle[str])
    assert_type(await (await resize.aenqueue("cat.png")).aresult(timeout=1.5), str)
    assert_type(await flaky.arequest(21), int)
    assert_type(await flaky(3), int)
    assert_type(await resize.acall("cat.png"), str)
    assert_type(await jobs.control.aget("an id", queue="default"), Job)
    async with jobs, jobs.subscribe(events.JobEvent, queue="default") as stream:
        async for event in stream:
            assert_type(event, events.JobEvent)
            print(event.at, type(event).__name__, event.job_id)


@jobs.middleware
async def timed(ctx: Context, proceed: Next) -> object:
    return await proceed()


@jobs.middleware
def connections(ctx: Context) -> Iterator[None]:
    yield


@jobs.on(events.Failed)
def page_someone(event: events.Failed) -> None:
    print(event.job_id, event.reason)


@resize.on_dead_letter
def note(job: object, error: object) -> None: ...
