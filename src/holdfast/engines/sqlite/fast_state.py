"""The state with all fast paths.

A fast path gives the same answers as `SqliteState` with fewer or smaller statements. Each is a file of its own,
`fast_*.py`, and one switch turns all of them off: `open_engine(…, fast_paths=False)`. The contract suite and the
differential machine run with the switch in both positions.

Not behind the switch: the cache inside one transaction, the batches that `flush` writes, and the numbers of names. They
are how `SqliteState` answers; without them it would be another implementation.
"""

from typing import Any

from holdfast.engines.ledger import Decision, Ledger
from holdfast.engines.sqlite.fast_cache import CacheBetweenTransactions
from holdfast.engines.sqlite.fast_enqueue import PlainEnqueues
from holdfast.engines.sqlite.fast_exchange import PlainExchanges
from holdfast.engines.sqlite.fast_fresh_ids import FreshIds
from holdfast.engines.sqlite.fast_updates import NarrowUpdates
from holdfast.model.command import Command
from holdfast.model.instants import At
from holdfast.model.produce import Enqueue
from holdfast.model.work import Exchange


class FastState(PlainEnqueues, PlainExchanges, FreshIds, NarrowUpdates, CacheBetweenTransactions):
    """Used by the writer and the renewal connections, if the switch is on."""


class FastLedger(Ledger):
    """The ledger, with short ways for plain jobs."""

    def __init__(self, state: FastState) -> None:
        super().__init__(state)
        self._plain = state
        self._rules = {**self._rules, Exchange: state.exchange}

    def decide(self, command: Command[Any], now: At) -> Decision[Any]:
        if type(command) is Enqueue:
            at = now.after(self.clock)  # TM3
            decision = self._plain.enqueue_plain(command, at)
            if decision is not None:
                self.clock = at
                return decision
        return super().decide(command, now)
