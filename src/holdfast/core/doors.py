"""An engine for threads without an event loop.

Every verb of an engine goes through `perform`. Where an engine also has `perform_now`, which blocks the calling thread
instead of waiting on a loop, this stands in its place: the same verbs, none of which ever suspends.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from holdfast.engine import Engine, RenewalConnection, Subscription
from holdfast.model.command import A, Command
from holdfast.transactions import UserConnection


@runtime_checkable
class BlockingDoor(Protocol):
    """What an engine may offer beside the contract."""

    def perform_now(self, command: Any) -> Any: ...


class ThreadDoor(Engine):
    """The verbs of an engine, without a loop."""

    def __init__(self, engine: Engine, perform_now: Callable[[Any], Any]) -> None:
        self._engine = engine
        self._perform_now = perform_now
        self.scheme = engine.scheme  # type: ignore[misc]  # it speaks for this one engine
        self.capabilities = engine.capabilities  # type: ignore[misc]

    async def perform(self, command: Command[A]) -> A:
        answer: A = self._perform_now(command)
        return answer

    def join(self, command: Command[A], user: UserConnection) -> A:
        return self._engine.join(command, user)

    async def ajoin(self, command: Command[A], user: UserConnection) -> A:
        return await self._engine.ajoin(command, user)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return self._engine.transaction()

    async def open(self) -> None:
        raise NotImplementedError("A door is made for an engine that is open.")

    async def close(self) -> None:
        raise NotImplementedError("Close the engine itself.")

    async def migrate(self) -> tuple[str, ...]:
        raise NotImplementedError("Migrate the engine itself.")

    def subscribe(self, *topics: str) -> Subscription:
        return self._engine.subscribe(*topics)

    def renewal_connection(self) -> RenewalConnection:
        return self._engine.renewal_connection()

    @property
    def clock_offset(self) -> int:
        return self._engine.clock_offset

    @clock_offset.setter
    def clock_offset(self, value: int) -> None:
        self._engine.clock_offset = value


def thread_door(engine: Engine) -> ThreadDoor | None:
    """The door of an engine that has one."""
    return ThreadDoor(engine, engine.perform_now) if isinstance(engine, BlockingDoor) else None
