"""The memory engine: ledger, tables, a lock and topics. It lives in one process and keeps nothing after it.

For tests, for embedding, and as the plainest example of an engine. It may be used from several threads and
event loops at once: a command is decided under the lock, and subscribers are notified after it.
"""

from holdfast.engine import Capabilities, Engine, RenewalConnection, Subscription
from holdfast.engines.direct_renewals import DirectRenewalConnection
from holdfast.engines.ledger import Ledger
from holdfast.engines.tables import Tables
from holdfast.engines.topics import Topics
from holdfast.errors import ConfigError
from holdfast.model.command import A, Command
from holdfast.model.findings import DURABILITY, Report
from holdfast.model.instants import At
from holdfast.runtime import Runtime


class MemoryEngine(Engine):
    scheme = "memory"
    capabilities = Capabilities(
        durable=False,
        shared_between_processes=False,
        shared_between_hosts=False,
        push=True,
        user_transactions=False,
        cross_queue_atomic=True,  # S4: one lock over all queues
        blocking_calls=True,
    )

    def __init__(
        self,
        url: str,
        runtime: Runtime,
        *,
        namespace: str = "holdfast",
        durability: str = "none",
        auto_migrate: bool = True,
    ) -> None:
        if durability != "none":
            raise ConfigError(
                f"The memory engine keeps nothing, so it cannot be {durability!r}. Use SQLite, or durability none.",
                key="durability",
            )
        self._runtime = runtime
        self._ledger = Ledger(Tables(), record_changes=True)  # recorded to undo a command that raises
        self._lock = runtime.lock()
        self._topics = Topics()

    async def perform(self, command: Command[A]) -> A:
        return self.perform_now(command)

    def perform_now(self, command: Command[A]) -> A:
        """Without a loop: nothing here waits for anything but the lock."""
        with self._lock:
            decision = self._ledger.decide(command, self._time())
        if decision.topics:
            self._topics.notify(decision.topics)  # N5: after the write
        return decision.answer

    def _time(self) -> At:
        # TM1, TM2, TM4: the wall clock, and the boot clock for leases; the runtime adds the offset.
        return At(self._runtime.wall(), self._runtime.boot())

    async def open(self) -> None: ...

    async def close(self) -> None:
        self._topics.close()

    async def migrate(self) -> tuple[str, ...]:
        return ()

    async def examine(self, report: Report) -> None:
        report(
            DURABILITY.note(
                "none: the jobs are in the memory of one process and end with it. No other process can see them.",
                "Use SQLite for a store that survives the process.",
            )
        )

    def subscribe(self, *topics: str) -> Subscription:
        return self._topics.subscribe(*topics)

    def renewal_connection(self) -> RenewalConnection:
        return DirectRenewalConnection(self.perform_now)

    @property
    def clock_offset(self) -> int:
        return self._runtime.clock_offset

    @clock_offset.setter
    def clock_offset(self, value: int) -> None:
        self._runtime.clock_offset = value
