"""The ledger: all rules of Holdfast over plain Python, deterministic.

`decide` carries out a command: from the state, the command and the time it makes changes and an answer. Each change is
applied at once, because the next rule must see it. With `record_changes` the decision also lists the changes, so that
an engine can write them to a journal, and a command that raises an error is undone. `apply` applies changes that come
from a journal or from another process.

The memory engine is the ledger over tables in memory, the SQLite engine the ledger over a database. Engines whose rules
run in a server decide by themselves, and `testing/oracle.py` compares their answers with the ledger's.

A comment such as `# L3` names the rule of docs/contract.md, section 4, that the line carries out.

The files: `state.py` is what the rules ask of a store, `step.py` how a rule writes; `enqueue.py`, `claim.py` and
`settle.py` take a job from its enqueue to its end; `lanes.py`, `pools.py` and `parents.py` are what holds a job back,
`ends.py` how it ends; `leases.py` is ownership; `operate.py` and `scopes.py` are the operator's verbs on jobs and on
queues; `prune.py` and `reading.py` are the rest.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic

from msgspec import Struct

from holdfast.engines.ledger import enqueue, leases, operate, pools, prune, reading, scopes, settle
from holdfast.engines.ledger.state import Change, State
from holdfast.engines.ledger.step import Step
from holdfast.model import observe, produce, work
from holdfast.model import operate as operate_model
from holdfast.model.command import A, Command
from holdfast.model.instants import At

RULES: dict[type[Command[Any]], Callable[[Step, Any], Any]] = {
    produce.Enqueue: enqueue.enqueue,
    work.Exchange: settle.exchange,
    work.Renew: leases.renew,
    work.Expired: leases.expired,
    work.Disown: leases.disown,
    work.Heartbeat: leases.heartbeat,
    work.Workers: leases.workers,
    work.StopWorker: leases.stop_worker,
    work.ForgetWorker: leases.forget_worker,
    operate_model.Cancel: operate.cancel,
    operate_model.Requeue: operate.requeue,
    operate_model.Trigger: operate.trigger,
    operate_model.Delete: operate.delete,
    operate_model.Amend: operate.amend,
    operate_model.Pause: scopes.pause,
    operate_model.Resume: scopes.resume,
    operate_model.Clear: scopes.clear,
    operate_model.Emptied: scopes.emptied,
    operate_model.RemoveQueue: scopes.remove_queue,
    operate_model.PutPool: pools.put_pool,
    operate_model.Resize: pools.resize,
    operate_model.Pools: pools.pools,
    observe.Get: reading.get,
    observe.Find: reading.find,
    observe.Stats: reading.stats,
    observe.Lanes: reading.lanes,
    observe.Prune: prune.prune,
    observe.Audit: reading.audit,
    observe.Now: reading.now,
}
"""One rule per verb."""


class Decision(Struct, Generic[A], frozen=True):
    """The result of a command: the answer, the changes it made, and the topics to notify once they are durable."""

    answer: A
    changes: tuple[Change, ...]
    """Empty unless the ledger records them."""
    topics: frozenset[str]


class Ledger:
    """A state and its time.

    `record_changes` is for an engine that cannot roll back, or that writes the changes of each decision to a journal.
    """

    def __init__(self, state: State, *, record_changes: bool = False) -> None:
        self.state = state
        self.clock = At(0, 0)
        self._record_changes = record_changes
        self._rules = RULES

    def decide(self, command: Command[A], now: At) -> Decision[A]:
        """Carry out a command at this time, or at the last one if that was later."""
        # TM3: time never goes back.
        self.clock = now.after(self.clock)
        step = Step(self.state, self.clock, record_changes=self._record_changes)
        try:
            answer: A = self._rules[type(command)](step, command)
            step.close()
        except BaseException:
            self.undo(step.changes or ())
            raise
        return Decision(answer, tuple(step.changes or ()), frozenset(step.topics))

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes that another ledger decided."""
        for change in changes:
            self.state.apply(change)

    def undo(self, changes: Sequence[Change]) -> None:
        """Undo changes that were decided or applied, and no others since: the last one first."""
        for change in reversed(changes):
            self.state.apply(Change(change.after, change.before))
