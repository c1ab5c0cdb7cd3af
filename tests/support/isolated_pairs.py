"""The same handlers twice: `here.NAME` runs in the worker's process, `apart.NAME` in a process of its own."""

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from holdfast import App, Cancel, Context, GiveUp, Retry, Snooze
from holdfast.codec import MsgpackCodec

jobs: App[Any] = App(os.environ["ISOLATED_URL"])
LATER = datetime(2100, 1, 1, tzinfo=UTC)


class CustomError(Exception):
    def __init__(self, code: int, *, where: str) -> None:
        self.code, self.where = code, where
        super().__init__(f"{code} at {where}")


class DerivedError(CustomError):
    pass


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class DerivedGiveUp(GiveUp):
    pass


@dataclass
class Point:
    x: int
    y: float = 0.5


def twice(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        policy = {"max_attempts": 2, "backoff": 0, **options}
        jobs.task(name=f"here.{function.__name__}", **policy)(function)
        jobs.task(name=f"apart.{function.__name__}", isolate="process", **policy)(function)
        return function

    return declare


# --- It returns ---


@twice()
def returns_text(text: str, *, times: int = 2) -> str:
    return text * times


@twice()
async def returns_from_async(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


@twice()
def returns_nothing() -> None:
    return None


@twice()
def returns_dataclass(point: Point) -> Point:
    return Point(point.x + 1, point.y)


@twice()
def returns_too_much() -> str:
    return "x" * (17 << 20)


@twice()
def returns_an_object() -> Any:
    return object()


@twice()
def returns_another_type() -> int:
    return "text"  # type: ignore[return-value]


@twice()
def returns_an_interrupt() -> Any:
    return GiveUp("returned")


@twice()
def reports_progress(ctx: Context) -> list[Any]:
    ctx.progress(0.25, "a quarter")
    ctx.progress(0.5, "half")
    return [ctx.attempt, ctx.is_retry, ctx.job.id.partition(".")[2], ctx.job.metadata, ctx.lane, ctx.aborted]


@twice(codec=MsgpackCodec())
def takes_bytes(data: bytes) -> bytes:
    return data[::-1]


# --- It raises ---


@twice()
def raises() -> None:
    raise ValueError("not \N{EURO SIGN} good")


@twice()
async def raises_from_async() -> None:
    raise LookupError


@twice()
def raises_custom() -> None:
    raise DerivedError(7, where="here")


@twice(give_up_on=(CustomError,))
def raises_what_is_given_up_on() -> None:
    raise DerivedError(8, where="there")


@twice(retry_on=(OSError,))
def raises_what_is_not_retried() -> None:
    raise KeyError("k")


@twice()
def raises_with_a_cause() -> None:
    try:
        raise OSError(2, "no such thing")
    except OSError as error:
        raise RuntimeError("outer") from error


@twice()
def raises_unreadable() -> None:
    raise UnreadableError


@twice()
def raises_strange_text() -> None:
    raise ValueError("a\0b \ud800 c")


@twice()
def raises_a_group() -> None:
    raise ExceptionGroup("many", [ValueError("one"), TypeError("two")])


@twice()
def raises_a_group_with_an_interrupt() -> None:
    raise BaseExceptionGroup("many", [ValueError("one"), GiveUp("inside")])


@twice()
def exits_the_interpreter() -> NoReturn:
    sys.exit("bye")


@twice()
def is_interrupted_by_hand() -> None:
    raise KeyboardInterrupt


@twice()
def raises_memory_error() -> None:
    raise MemoryError("none left")


@twice(max_attempts=1)
async def cancels_itself() -> None:
    raise asyncio.CancelledError


# --- It decides itself ---


@twice()
def requests_a_retry(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise Retry("once more", delay=0)
    return ctx.attempt


@twice()
def snoozes() -> None:
    raise Snooze(at=LATER, reason="until then")


@twice()
def gives_up() -> None:
    raise GiveUp("pointless")


@twice()
def gives_up_by_a_derived_class() -> None:
    raise DerivedGiveUp("pointless, too")


@twice()
async def gives_up_with_a_reason_that_cannot_be_stored() -> None:
    raise GiveUp("a lone surrogate: \udc80")


@twice()
def cancels() -> None:
    raise Cancel("withdrawn")


@twice(timeout=0.3, max_attempts=1)
async def takes_too_long() -> None:
    await asyncio.sleep(60)
