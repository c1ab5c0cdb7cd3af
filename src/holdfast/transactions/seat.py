"""An engine's part in transactions that are not its own: the seats that each engine fills, or leaves empty.

An enqueue or a settlement that is joined commits or rolls back with everything else in the user's transaction. While
that is open it may hold no lock that another call waits for, except on its own ids and keys; SQLite, which has a single
write lock, cannot keep this and says so (`Capabilities.concurrent_writers`). Bells ring after the commit or not at all.
"""

from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol

from holdfast.errors import Unsupported
from holdfast.model.command import A, Command
from holdfast.transactions import Colour, UserConnection, adapt


class _Capabilities(Protocol):
    @property
    def joins_transactions(self) -> bool: ...


class JoinsTransactions:
    """The base of every engine. What is not overridden answers `Unsupported`."""

    scheme: ClassVar[str]
    capabilities: ClassVar[Any]
    transaction_budget: ClassVar[float | None] = None
    """Seconds for which a `transaction` may be open before it is in everybody's way."""
    joins_unopened: ClassVar[bool] = False
    """`join` needs no `open` before it. A store with a single write lock may be unable to open while a user has it."""

    def join(self, command: Command[A], user: UserConnection) -> A:
        """Carry out an enqueue or a settlement as part of the user's transaction, in the caller's thread.

        Guarantees: its effect is there if, and only if, that commits. A settlement is applied by this very call, or
        answered `lost`, also where the same one was applied before: else the user's effects would be committed twice.
        Raises: WrongDatabase, UsageError where nothing would be atomic, Busy; nothing was written then. Errors of the
        user's driver pass as they are.
        """
        raise self._cannot_join()

    async def ajoin(self, command: Command[A], user: UserConnection) -> A:
        """The same for a connection that is awaited."""
        raise self._cannot_join()

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A transaction of the engine's own: gives a connection that `joined` takes; commits, or rolls back on error.

        It may be a plain context manager as well; then it also serves threads without an event loop.
        """
        raise self._cannot_join()

    async def joined(self, command: Command[A], given: object) -> A:
        """`join` or `ajoin`, whichever suits what the user gave."""
        capabilities: _Capabilities = self.capabilities
        if not capabilities.joins_transactions:
            raise self._cannot_join()
        user = adapt(given)
        return await self.ajoin(command, user) if user.colour is Colour.ASYNC else self.join(command, user)

    def _cannot_join(self) -> Unsupported:
        said = f"The {self.scheme} engine cannot take part in a transaction of yours."
        said = f"{said} Leave out `transaction`, or use SQLite or PostgreSQL."
        return Unsupported(said, capability="joins_transactions", engine=self.scheme)
