"""The connections of each event loop (`engines/by_loop.py`)."""

from dataclasses import dataclass

from holdfast.engines.by_loop import ByLoop
from holdfast.engines.postgres.connections import Connections


@dataclass(eq=False, slots=True)
class LoopConnections:
    """The connections of one event loop.

    `commands` carries commands. `transactions` is for users' transactions: they may last long, and must not take a
    connection away from commands.
    """

    commands: Connections
    transactions: Connections

    def close(self) -> None:
        """Call it in the thread of the loop."""
        self.commands.close()
        self.transactions.close()


ConnectionsByLoop = ByLoop[LoopConnections]
