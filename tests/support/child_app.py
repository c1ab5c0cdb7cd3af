"""Tasks with a process of their own, for tests that run a worker in their own process."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast import App, Context, GiveUp, Next, Retry, Unsupported
from holdfast.isolation.child_error import ChildError


@asynccontextmanager
async def lifespan() -> AsyncIterator[dict[str, int]]:
    """With a task group, which has to be left in the task that entered it."""
    async with asyncio.TaskGroup() as group:
        never = group.create_task(asyncio.Event().wait())
        yield {"pid": os.getpid()}
        never.cancel()
    (Path(FOLDER) / f"left-{os.getpid()}").touch()


address = "memory://"
"""Each test has a store of its own. The child never asks for it."""
FOLDER = os.environ.get("CHILD_APP_FOLDER", "")
"""Where a handler leaves a file to say that it runs."""
jobs: App[dict[str, int]] = App(lambda: address, lifespan=lifespan)
surrounded: list[str] = []
seen: list[Any] = []
"""What the async middleware has seen. It runs in the process of the test."""


@jobs.middleware
def surround(ctx: Context) -> Iterator[None]:
    surrounded.append(ctx.job.task)
    yield


@jobs.middleware
async def onion(ctx: Context, proceed: Next) -> object:
    try:
        value = await proceed()
    except ChildError as error:
        seen.append((error.info.type, error.caused_by(LookupError), error.caused_by(OSError)))
        raise
    seen.append(value)
    return value


def pause() -> None:
    threading.Event().wait(0.01)


@jobs.task(isolate="process", timeout=60)
def facts(ctx: Context[dict[str, int]]) -> dict[str, Any]:
    ctx.progress(0.25, "a quarter")
    return {
        "pid": os.getpid(),
        "state": ctx.state["pid"],
        "surrounded": surrounded,
        "id": ctx.job.id,
        "attempt": ctx.attempt,
        "metadata": dict(ctx.job.metadata),
        "worker": ctx.worker,
        "current": Context.current() is ctx,
        "aborted": ctx.aborted,
        "fence": ctx.fence,
    }


@jobs.task(isolate="process")
async def async_pid(ctx: Context) -> list[int]:
    return [os.getpid(), ctx.state["pid"]]  # type: ignore[index]


@jobs.task(isolate="process", max_attempts=2, backoff=0)
def reads_a_log() -> None:
    logging.getLogger("shop").warning("a line of the handler")


@jobs.task(isolate="process", give_up_on=(LookupError,))
def gives_up_on_a_key() -> None:
    dict[str, int]()["x"]


@jobs.task(isolate="process", retry_on=(OSError,), max_attempts=2, backoff=0)
def retries_a_subclass_of_os_error() -> None:
    raise FileNotFoundError("nothing here")


def seconds_by_error(attempt: int, error: BaseException | None) -> float | None:
    return None if isinstance(error, KeyError) else 0.0


@jobs.task(isolate="process", backoff=seconds_by_error, max_attempts=3)
def has_a_function_as_backoff(kind: str) -> None:
    raise KeyError(kind) if kind == "key" else ValueError(kind)


@jobs.task(isolate="process", max_attempts=2)
def raises_retry(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise Retry("again", delay=0)
    raise GiveUp("enough")


@jobs.task(isolate="process", max_attempts=2, backoff=0)
def exits(ctx: Context) -> int:
    if ctx.attempt == 1:
        seen.append("used")
        sys.exit(3)
    return len(seen)


@jobs.task(isolate="process", memory_limit=256 << 20, max_attempts=2, backoff=0)
def takes_memory(ctx: Context, mebibytes: int) -> int:
    if ctx.attempt == 1:
        bytearray(mebibytes << 20)
    return os.getpid()


@jobs.task(isolate="process")
def meets(name: str, number: int) -> int:
    """Wait until this many run at the same time."""
    (Path(FOLDER) / f"{name}-{os.getpid()}").touch()
    while len(list(Path(FOLDER).glob(f"{name}-*"))) < number:
        pause()
    return os.getpid()


@jobs.task(isolate="process", max_losses=1)
def takes_memory_and_dies(mebibytes: int) -> None:
    data = b"x" * (mebibytes << 20)
    while not (Path(FOLDER) / "measured").exists():
        pause()
    os.kill(os.getpid(), data[0] and signal.SIGKILL)


def unimportable() -> None: ...


unimportable.__module__ = "no_such_module"
cannot_start = jobs.task(isolate="process")(unimportable)


class NoClassError(Exception):
    """It cannot be inspected."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")


@jobs.task(isolate="process", max_attempts=1)
def raises_what_cannot_be_read() -> None:
    raise NoClassError


@jobs.task(isolate="process", max_attempts=1)
async def raises_what_cannot_be_read_async() -> None:
    raise NoClassError


@jobs.task(isolate="process")
def stops_when_aborted(ctx: Context) -> None:
    (Path(FOLDER) / ctx.job.id).touch()
    while not ctx.aborted:
        pass
    ctx.check()


@jobs.task(isolate="process")
def uses_the_store() -> list[str]:
    texts = []
    for use in (facts.enqueue, lambda: jobs.control.status("default"), lambda: Context.current().transaction()):
        try:
            use()
        except Unsupported as error:
            texts.append(str(error))
    return texts


@jobs.task
async def plain() -> int:
    return os.getpid()
