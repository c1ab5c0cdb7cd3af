"""What both type checkers must reject, line by line. Read by `test_checkers.py`, never run.

A line that ends with an ignore comment is a mistake, and every other line is none. mypy complains by itself about an
ignore that it does not need; the test takes the comments off and compares the lines for both checkers.
"""

from datetime import timedelta

from holdfast import App, Context, events

jobs = App("memory://")


@jobs.task
def resize(image: str, width: int = 800) -> str:
    return f"{image}@{width}"


@jobs.task(queue="quick")
async def flaky(ctx: Context, n: int) -> int:
    return n


# Arguments

resize.enqueue(1)  # type: ignore[arg-type]
resize.enqueue()  # type: ignore[call-arg]
resize.enqueue("cat.png", wdith=3)  # type: ignore[call-arg]
resize.enqueue("cat.png", width="wide")  # type: ignore[arg-type]
resize.enqueue("cat.png", 3, 4)  # type: ignore[call-arg]
resize.draft(width=3)  # type: ignore[call-arg]
resize.request(None)  # type: ignore[arg-type]
resize.call("cat.png", width=None)  # type: ignore[arg-type]
resize(3)  # type: ignore[arg-type]
flaky.enqueue("one")  # type: ignore[arg-type]
flaky.enqueue(Context, 1)  # type: ignore[arg-type,call-arg]
flaky.request()  # type: ignore[call-arg]

# Results

count: int = resize.request("cat.png")  # type: ignore[assignment]
other: int = resize.enqueue("cat.png").result()  # type: ignore[assignment]
text: str = flaky.using(id="a").request(1)  # type: ignore[assignment]

# Options

resize.using(delay=b"soon")  # type: ignore[arg-type]
resize.using(dealy=3)  # type: ignore[call-arg]
resize.using(priority=1.5)  # type: ignore[arg-type]
resize.using(at=3.0)  # type: ignore[arg-type]
resize.using(metadata={"tries": 3})  # type: ignore[dict-item]
resize.enqueue("cat.png", delay=3)  # type: ignore[call-arg]
jobs.task(qeue="quick")  # type: ignore[call-overload]
jobs.task(lease=b"long")  # type: ignore[call-overload]
jobs.task(unique_for=b"always")  # type: ignore[call-overload]
jobs.task(3)  # type: ignore[call-overload]
jobs.task(transaction="yes")  # type: ignore[call-overload]
jobs.task(isolate="thread")  # type: ignore[call-overload]
App("memory://", durability="strong")  # type: ignore[arg-type]
App("memory://", modules=timedelta(seconds=1))  # type: ignore[arg-type]

# Words of other systems

resize.delay("cat.png")  # type: ignore[attr-defined]
resize.apply_async(("cat.png",))  # type: ignore[attr-defined]
resize.send("cat.png")  # type: ignore[attr-defined]
resize.enqueue("cat.png").wait()  # type: ignore[attr-defined]
resize.enqueue("cat.png").status()  # type: ignore[attr-defined]

# Handles, batches, listeners

resize.handle(7)  # type: ignore[arg-type]
resize.enqueue("cat.png").result(3)  # type: ignore[call-arg]
jobs.client.enqueue_many([resize])  # type: ignore[arg-type]
jobs.control.cancel(["a", "b"])  # type: ignore[arg-type]


@jobs.on(events.Failed)  # type: ignore[arg-type]
def listen(event: events.WorkerStopped) -> None: ...


@jobs.middleware  # type: ignore[type-var]
def no_middleware() -> None: ...
