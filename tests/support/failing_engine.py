"""A memory engine that fails where a test wants it to: before or after it has carried out a command."""

from collections.abc import Callable
from typing import Any

from holdfast.engines.memory import MemoryEngine
from holdfast.model.command import A, Command
from holdfast.model.work import Exchange
from holdfast.runtime import Runtime

Fault = Callable[[Command[Any]], BaseException | None]
"""Takes a command. Returns the error to raise, or None."""


class FailingEngine(MemoryEngine):
    """`before` raises instead of carrying out the command. `after` carries it out, and the answer is lost."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("memory://", runtime)
        self.before: Fault | None = None
        self.after: Fault | None = None
        self.commands: list[Command[Any]] = []

    def perform_now(self, command: Command[A]) -> A:
        self.commands.append(command)
        if self.before is not None and (error := self.before(command)) is not None:
            raise error
        answer = super().perform_now(command)
        if self.after is not None and (error := self.after(command)) is not None:
            raise error
        return answer

    @property
    def exchanges(self) -> list[Exchange]:
        return [command for command in self.commands if isinstance(command, Exchange)]


def fail_times(count: int, kind: type[Command[Any]], error: Callable[[], BaseException]) -> Fault:
    """Fails the first `count` commands of this kind."""
    left = count

    def fault(command: Command[Any]) -> BaseException | None:
        nonlocal left
        if isinstance(command, kind) and left:
            left -= 1
            return error()
        return None

    return fault
