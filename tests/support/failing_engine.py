"""A memory engine that fails where a test wants it to: before or after it has carried out a command."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.engines.memory import MemoryEngine
from holdfast.model.command import A, Command
from holdfast.model.work import Exchange, Renew, RenewResult, RenewStatus, SettleStatus
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
        self.locked: set[str] = set()
        """Ids of jobs that another transaction has locked: their settlements and renewals are answered `busy`."""

    def perform_now(self, command: Command[A]) -> A:
        self.commands.append(command)
        if self.before is not None and (error := self.before(command)) is not None:
            raise error
        answer = self._perform_beside_locks(command) if self.locked else super().perform_now(command)
        if self.after is not None and (error := self.after(command)) is not None:
            raise error
        return answer

    def _perform_beside_locks(self, command: Command[A]) -> A:
        """As an engine with concurrent writers answers."""
        answer: Any
        if isinstance(command, Exchange):
            free = tuple(one for one in command.settlements if one.id not in self.locked)
            answer = super().perform_now(replace(command, settlements=free))
            statuses = iter(answer.settled)
            settled = [SettleStatus.BUSY if s.id in self.locked else next(statuses) for s in command.settlements]
            answer = replace(answer, settled=tuple(settled))
        else:
            answer = super().perform_now(command)
            if isinstance(command, Renew):
                results = zip(command.jobs, answer.jobs, strict=True)
                busy = RenewResult(RenewStatus.BUSY)
                answer = replace(answer, jobs=tuple(busy if one.id in self.locked else found for one, found in results))
        beside_locks: A = answer
        return beside_locks

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
