"""A simulated worker, and its crash at a chosen point.

A process that dies does nothing more: the jobs it has claimed stay leased until the leases expire, and what it has not
sent is lost. In a test no process dies, so a crash is two things. First, `WorkerDied` is raised in the running code; it
is a BaseException, so `except Exception` does not catch it. Second, from then on the store refuses every change that
code of this worker requests: a `finally` block may still run, but a command that would change the store raises
`WorkerDied` again.

The context variable `CURRENT_WORKER` says which simulated worker the code belongs to. Tasks and threads inherit it.

    after_claim     the store has leased the job to the worker; the worker never gets the answer
    in_handler      the handler has begun: it dies at its first wait or first change of the store, or else at its end
    before_settle   the handler has ended, and all its effects are there; its outcome is never sent
    after_settle    the outcome is stored; the worker never gets the answer
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, get_args

from holdfast.context import CURRENT, Middleware
from holdfast.errors import InvalidOption
from holdfast.model.command import Answer, Command
from holdfast.model.observe import Find, Get, Lanes, Now, Stats
from holdfast.model.work import Exchange, ExchangeAnswer, Settlement, SettleStatus, Workers
from holdfast.worker.protocols import HandledTask, WorkerTaskPolicy

CrashPoint = Literal["after_claim", "in_handler", "before_settle", "after_settle"]
"""Where `Harness.crash` lets the worker die."""

CURRENT_WORKER: ContextVar["SimulatedWorker"] = ContextVar("holdfast simulated")
"""The simulated worker that the current code belongs to."""

READ_COMMANDS = (Get, Find, Stats, Lanes, Now, Workers)

OnSettled = Callable[[Settlement, SettleStatus], None]
"""Called with each settlement that the store has answered."""


class WorkerDied(BaseException):
    """The simulated worker dies here. The harness catches it; a test never sees it."""


def check_point(point: object) -> None:
    """Refuse a point that does not exist."""
    if point not in get_args(CrashPoint):
        points = ", ".join(get_args(CrashPoint))
        raise InvalidOption(f"There is no crash point {point!r}. The crash points are {points}.", option="point")


class SimulatedWorker:
    """A worker in a test: where it is to die, and whether it has died."""

    def __init__(self, point: CrashPoint | None = None) -> None:
        self.point = point
        self.dead = False
        self.on_settled: OnSettled | None = None

    def die(self) -> None:
        """From now on the store refuses its changes."""
        self.dead = True

    def check(self) -> None:
        if self.dead:
            raise WorkerDied

    def reach(self, point: CrashPoint) -> None:
        """The worker has reached this point: it dies if this is its crash point."""
        self.dead = self.dead or self.point == point
        self.check()

    def before(self, command: Command[Any]) -> None:
        """It is about to send a command. A dead worker may still read, because that changes nothing."""
        if isinstance(command, READ_COMMANDS):
            return
        self.check()
        if CURRENT.get(None) is not None:
            self.reach("in_handler")
        elif _settles(command):
            self.reach("before_settle")

    def before_in_transaction(self, command: Command[Any]) -> None:
        """It is about to send a command as part of a user's transaction, which is rolled back if the worker dies."""
        self.check()
        if _settles(command):
            self.reach("before_settle")
        if CURRENT.get(None) is not None:
            self.reach("in_handler")

    def after(self, command: Command[Any], answer: Answer) -> None:
        """The store has run the command and is about to answer."""
        if not isinstance(command, Exchange) or not isinstance(answer, ExchangeAnswer) or CURRENT.get(None) is not None:
            return
        if self.on_settled is not None:
            for settlement, status in zip(command.settlements, answer.settled, strict=True):
                self.on_settled(settlement, status)
        if _settles(command):
            self.reach("after_settle")
        if answer.leases:
            self.reach("after_claim")


def _settles(command: Command[Any]) -> bool:
    """True if the command settles the outcome of a handler (not a reaper's settlement)."""
    return isinstance(command, Exchange) and any(each.listed_expiry is None for each in command.settlements)


class CrashingTask:
    """A task whose handler dies before it returns."""

    def __init__(self, task: HandledTask, simulated: SimulatedWorker) -> None:
        self._task = task
        function = task.function
        self.function = _dying_coroutine(function, simulated) if task.is_async else _dying_function(function, simulated)

    @property
    def policy(self) -> WorkerTaskPolicy:
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


def _dying_function(function: Callable[..., Any], simulated: SimulatedWorker) -> Callable[..., Any]:
    def dying(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        finally:
            simulated.reach("in_handler")

    return dying


def _dying_coroutine(
    function: Callable[..., Coroutine[Any, Any, Any]], simulated: SimulatedWorker
) -> Callable[..., Any]:
    async def dying(*args: Any, **kwargs: Any) -> None:
        handler = function(*args, **kwargs)
        try:
            handler.send(None)  # run it until it first waits
            _unwind(handler)
        finally:
            simulated.reach("in_handler")

    return dying


def _unwind(handler: Coroutine[Any, Any, Any]) -> None:
    """Let its `finally` blocks run as far as they do not wait. How it ends does not matter."""
    try:
        handler.throw(WorkerDied())
    except BaseException:  # usually the WorkerDied just thrown
        return
    try:
        handler.close()
    except RuntimeError:
        return  # it waits again in a `finally` block
