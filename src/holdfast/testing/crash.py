"""A worker's life in a test, and its death at a chosen point.

A process that dies does nothing more: what it has claimed stays leased until the lease runs out, what it has not sent
is lost. Here nothing dies for real, so death is two things. The code that runs is stopped by `WorkerDied`, which no
`except Exception` catches. And from then on the store is deaf to everything that belonged to the worker: a `finally`
may still run in Python, but whatever it wants changed in the store raises `WorkerDied` again, and stays as it is.

What belongs to the worker is told by a context variable, `LIFE`. Tasks and threads inherit it, so a handler cannot
leave it behind by accident.

    after_claim     the store has given the job; the worker never hears of it
    in_handler      the handler has begun: it dies where it first waits or would change the store, or else at its end
    before_settle   the handler has ended, with all it did; its outcome is never sent
    after_settle    the outcome is in the store; the worker never hears that it is
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, get_args

from holdfast.context import CURRENT, Middleware
from holdfast.errors import InvalidOption
from holdfast.model.command import Answer, Command
from holdfast.model.observe import Find, Get, Lanes, Now, Stats
from holdfast.model.work import Exchange, ExchangeAnswer, Settlement, SettleStatus, Workers
from holdfast.worker.host import Handled, Policy

CrashPoint = Literal["after_claim", "in_handler", "before_settle", "after_settle"]

LIFE: ContextVar["Life"] = ContextVar("holdfast life")
"""The worker under test that this code belongs to."""

LOOKS = (Get, Find, Stats, Lanes, Now, Workers)

Heard = Callable[[Settlement, SettleStatus], None]
"""Told of each outcome that the store has answered."""


class WorkerDied(BaseException):
    """The worker under test died here. Raised into whatever it was doing; a test never sees it."""


def check_point(point: object) -> None:
    """Refuse a point that does not exist."""
    if point not in get_args(CrashPoint):
        known = ", ".join(get_args(CrashPoint))
        raise InvalidOption(f"There is no crash point {point!r}. Known are {known}.", option="point")


class Life:
    """Of one worker: where it is to die, and whether it has."""

    def __init__(self, point: CrashPoint | None = None) -> None:
        self.point = point
        self.dead = False
        self.heard: Heard | None = None

    def die(self) -> None:
        """From here on, nothing that belongs to it reaches the store."""
        self.dead = True

    def check(self) -> None:
        if self.dead:
            raise WorkerDied

    def reach(self, point: CrashPoint) -> None:
        """It has come to this point, and perhaps no further."""
        self.dead = self.dead or self.point == point
        self.check()

    def before(self, command: Command[Any]) -> None:
        """It is about to ask something of the store. Looking leaves no trace, so the dead may look."""
        if isinstance(command, LOOKS):
            return
        self.check()
        if CURRENT.get(None) is not None:
            self.reach("in_handler")
        elif _settles(command):
            self.reach("before_settle")

    def after(self, command: Command[Any], answer: Answer) -> None:
        """The store has done it, and is about to answer."""
        if not isinstance(command, Exchange) or not isinstance(answer, ExchangeAnswer) or CURRENT.get(None) is not None:
            return
        if self.heard is not None:
            for settlement, settled in zip(command.settlements, answer.settled, strict=True):
                self.heard(settlement, settled)
        if _settles(command):
            self.reach("after_settle")
        if answer.leases:
            self.reach("after_claim")


def _settles(command: Command[Any]) -> bool:
    """Whether it brings the outcome of a handler. What a reaper writes is none."""
    return isinstance(command, Exchange) and any(each.listed_expiry is None for each in command.settlements)


class Doomed:
    """A task whose handler does not live to return."""

    def __init__(self, task: Handled, life: Life) -> None:
        self._task = task
        function = task.function
        self.function = _dying_coroutine(function, life) if task.is_async else _dying_function(function, life)

    @property
    def policy(self) -> Policy:
        return self._task.policy

    @property
    def is_async(self) -> bool:
        return self._task.is_async

    @property
    def takes_context(self) -> bool:
        return self._task.takes_context

    @property
    def middleware(self) -> Sequence[Middleware]:
        return self._task.middleware

    @property
    def dead_letter_hooks(self) -> Sequence[Callable[[Any, Any], object]]:
        return self._task.dead_letter_hooks

    def decode_arguments(self, payload: bytes, codec: str) -> tuple[Sequence[Any], Mapping[str, Any]]:
        return self._task.decode_arguments(payload, codec)

    def encode_result(self, value: Any, codec: str) -> bytes:
        return self._task.encode_result(value, codec)


def _dying_function(function: Callable[..., Any], life: Life) -> Callable[..., Any]:
    def dying(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        finally:
            life.reach("in_handler")

    return dying


def _dying_coroutine(function: Callable[..., Coroutine[Any, Any, Any]], life: Life) -> Callable[..., Any]:
    async def dying(*args: Any, **kwargs: Any) -> None:
        handler = function(*args, **kwargs)
        try:
            handler.send(None)  # as far as it goes without waiting
            _unwind(handler)
        finally:
            life.reach("in_handler")

    return dying


def _unwind(handler: Coroutine[Any, Any, Any]) -> None:
    """Let it tidy up, where that can be done without waiting. Nobody cares any more how it ends."""
    try:
        handler.throw(WorkerDied())
    except BaseException:  # usually the one just thrown
        return
    try:
        handler.close()
    except RuntimeError:
        return  # it waits in every corner
