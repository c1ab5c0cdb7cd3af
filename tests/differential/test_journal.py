"""The changes of a decision are all there is to it.

A file can therefore hold changes instead of commands: whoever applies them, later or elsewhere, knows the same
records, and has the same indexes, as the one who decided.
"""

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.engines.ledger import Ledger
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.tables import Tables
from holdfast.model.command import A, Command
from holdfast.runtime import Runtime
from holdfast.testing import FrozenRuntime
from holdfast.testing.differential import differential


class JournaledEngine(MemoryEngine):
    """A second ledger applies the changes that the first one decided."""

    def __init__(self, url: str, runtime: Runtime) -> None:
        super().__init__(url, runtime)
        self._ledger = Ledger(Tables(), record_changes=True)
        self.replica = Ledger(Tables())

    def perform_now(self, command: Command[A]) -> A:
        decision = self._ledger.decide(command, self._time())
        self.replica.apply(decision.changes)
        assert everything(self.replica) == everything(self._ledger)
        assert list(self.replica.state.problems(decision.answer.at.wall)) == []
        return decision.answer


def everything(ledger: Ledger) -> dict[str, object]:
    """All records, and the number that the next job will get."""
    tables = ledger.state
    assert isinstance(tables, Tables)
    names = [record.queue for record in tables.queues()]
    return {
        "queues": tables.queues(),
        "jobs": {name: tables._queues[name].jobs for name in names},
        "keys": {name: tables._queues[name].keys for name in names},
        "lanes": {name: tables.lanes(name) for name in names},
        "edges": tables._children,
        "pools": tables.pools(),
        "workers": tables.workers(),
        "schedules": tables.schedules(),
        "next": {name: tables.new_arrival(name) for name in names},
    }


def test_applying_the_changes_is_as_good_as_deciding() -> None:
    run_state_machine_as_test(
        differential(lambda: JournaledEngine("memory://", FrozenRuntime())),
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            derandomize=True,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
