"""An engine's part in user transactions: the methods that an engine overrides if it has the capability.

An enqueue or a settlement inside a user's transaction commits or rolls back with everything else in it. While that
transaction is open, it may hold no lock that another call waits for, except on its own ids and keys. SQLite has a
single write lock, so it cannot keep this, and says so (`Capabilities.concurrent_writers`). Notifications are sent after
the commit, or not at all.
"""

from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol

from holdfast.errors import Unsupported
from holdfast.model.command import A, Command
from holdfast.transactions import Mode, UserConnection, adapt


class _Capabilities(Protocol):
    @property
    def user_transactions(self) -> bool: ...


class TransactionSupport:
    """A base class of every engine. A method that is not overridden raises `Unsupported`."""

    scheme: ClassVar[str]
    transaction_budget_s: ClassVar[float | None] = None
    """Seconds for which a `transaction` may be open before other writers have waited too long. None: no limit."""
    transactions_before_open: ClassVar[bool] = False
    """`perform_in` works before `open`. With a single write lock, `open` may fail while a user's transaction has it."""

    def perform_in(self, command: Command[A], connection: UserConnection) -> A:
        """Carry out an enqueue or a settlement as part of the user's transaction, in the caller's thread.

        Guarantees: the effect exists if, and only if, the transaction commits. A settlement is applied by this very
        call, or answered `lost`, also if the same one was applied before: else the user's effects would be committed
        twice. Raises: WrongDatabase, UsageError where nothing would be atomic, Busy; then nothing was written. Errors
        of the user's driver are not changed.
        """
        raise self._no_user_transactions()

    async def aperform_in(self, command: Command[A], connection: UserConnection) -> A:
        """`perform_in` for an async connection."""
        raise self._no_user_transactions()

    async def in_transaction(self, command: Command[A], transaction: object) -> A:
        """Carry out an enqueue or a settlement in a user's transaction: `perform_in` or `aperform_in`."""
        capabilities: _Capabilities = self.capabilities  # type: ignore[attr-defined]  # every engine has them
        if not capabilities.user_transactions:
            raise self._no_user_transactions()
        connection = adapt(transaction)
        if connection.mode is Mode.ASYNC:
            return await self.aperform_in(command, connection)
        return self.perform_in(command, connection)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A transaction of the engine's own: yields a connection for `in_transaction`; commits, or rolls back on error.

        It may be a sync context manager as well; then it also serves threads without an event loop.
        """
        raise self._no_user_transactions()

    def _no_user_transactions(self) -> Unsupported:
        return Unsupported(
            f"The {self.scheme} engine cannot take part in a transaction of yours. Leave out `transaction`, or use "
            "SQLite or PostgreSQL.",
            capability="user_transactions",
            engine=self.scheme,
        )
