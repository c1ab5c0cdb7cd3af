"""The changes of a decision are all there is to it.

A file can therefore hold changes instead of commands: a process that applies them, later or elsewhere, has the same
records and the same indexes as the process that decided. Undone, the last one first, they leave the state as it was.
"""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.engine import Engine
from holdfast.engines.ledger import Ledger
from holdfast.engines.ledger.state import Record
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.tables import Tables
from holdfast.model.command import A, Command
from holdfast.model.job import JobRecord
from holdfast.model.states import JobState
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


class WriteFailed(Exception):
    """The error that a rule meets half-way."""


class FailingTables(Tables):
    """Fails at one write, if `writes_left` says so."""

    writes_left: int | None = None

    def _count_write(self) -> None:
        if self.writes_left is not None:
            if self.writes_left == 0:
                self.writes_left = None  # so that the changes can be undone
                raise WriteFailed
            self.writes_left -= 1

    def swap_job(self, before: JobRecord | None, after: JobRecord | None) -> None:
        self._count_write()
        super().swap_job(before, after)

    def swap(self, record: Record, *, there: bool) -> None:
        self._count_write()
        super().swap(record, there=there)


class UndoingEngine(MemoryEngine):
    """Carries out each command three times: fails at a write of it, undoes it after its end, and lets it stand."""

    def __init__(self, url: str, runtime: Runtime) -> None:
        super().__init__(url, runtime)
        self._tables = FailingTables()
        self._ledger = Ledger(self._tables, record_changes=True)
        self._failures = 0

    def perform_now(self, command: Command[A]) -> A:
        now, ledger = self._time(), self._ledger
        before = records(ledger, now.wall)
        changes = ledger.decide(command, now).changes
        ledger.undo(changes)
        self._compare(before, now.wall)
        if changes:
            self._failures += 1
            self._tables.writes_left = self._failures % len(changes)
            with pytest.raises(WriteFailed):
                ledger.decide(command, now)
            self._compare(before, now.wall)
        return super().perform_now(command)

    def _compare(self, before: dict[str, object], now: int) -> None:
        assert records(self._ledger, now) == before
        assert list(self._tables.problems(now)) == []


def records(ledger: Ledger, now: int) -> dict[str, object]:
    """All records, and the keys that are taken. A key that is free may name its last job or none."""
    found = everything(ledger)
    del found["next"]
    tables = ledger.state
    assert isinstance(tables, Tables)
    found["keys"] = {
        (name, task, key): job_id
        for name, queue in tables._queues.items()
        for (task, key), job_id in queue.keys.items()
        if (job := queue.jobs[job_id]).live or (job.state is JobState.SUCCEEDED and now < job.key_until)
    }
    return found


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
        "next": {name: tables.new_arrival(name) for name in names},
    }


@pytest.mark.parametrize(("engine", "examples"), [(JournaledEngine, 60), (UndoingEngine, 30)])
def test_changes_can_be_applied_elsewhere_and_undone(engine: Callable[[str, Runtime], Engine], examples: int) -> None:
    run_state_machine_as_test(
        differential(lambda: engine("memory://", FrozenRuntime())),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            derandomize=True,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
