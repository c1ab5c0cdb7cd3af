"""The harness over a SQLite file, for code that uses `transaction=`.

The store is the SQLite engine with the clock of the test. The sessions of the code under test must be bound to the same
file. Only times are frozen: waits for locks take real seconds.
"""

import asyncio

from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.model.command import A, Command
from holdfast.testing.crash import CURRENT_WORKER
from holdfast.testing.harness_engine import HarnessEngine, HarnessRuntime
from holdfast.transactions import UserConnection

ATTEMPT_NAMESPACE = "holdfast_one_attempt"
"""Tables in the same file for `Harness.attempt`, because a transaction of the handler must be on the same file."""


class SqliteHarnessEngine(HarnessEngine, SqliteEngine):
    def __init__(self, url: str, runtime: HarnessRuntime, namespace: str) -> None:
        super().__init__(url, runtime, namespace=namespace, durability="none")
        self._url = url
        self._time_of_test = runtime
        self.observe()
        self.open_now()

    def answer_now(self, command: Command[A]) -> A:
        return SqliteEngine.perform_now(self, command)

    async def perform(self, command: Command[A]) -> A:
        if asyncio._get_running_loop() is None:
            return self.perform_now(command)
        self.before(command)
        answer = await SqliteEngine.perform(self, command)  # the loop goes on: it may have to commit a transaction
        self.after(command, answer)
        return answer

    def perform_in(self, command: Command[A], user: UserConnection) -> A:
        _before_in_transaction(command)
        return super().perform_in(command, user)

    async def aperform_in(self, command: Command[A], user: UserConnection) -> A:
        _before_in_transaction(command)
        return await super().aperform_in(command, user)

    async def close(self) -> None:
        self._topics.close()  # the test still reads what is stored

    def new_store(self) -> "SqliteHarnessEngine":
        return SqliteHarnessEngine(self._url, self._time_of_test, ATTEMPT_NAMESPACE)

    def end(self) -> None:
        self.close_now()


def _before_in_transaction(command: Command[A]) -> None:
    simulated = CURRENT_WORKER.get(None)
    if simulated is not None:
        simulated.before_in_transaction(command)
