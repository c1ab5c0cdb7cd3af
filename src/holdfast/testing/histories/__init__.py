"""Overlapping calls, checked: what an engine may answer when several callers use it at once.

The oracle of the differential machine needs one call after the other. Here several callers call at the same time. Each
call is recorded with when it was sent and when it was answered. Afterwards the whole history is checked against rules
that hold for every order. `record.py` records the calls, `callers.py` makes them, `generations.py` reads from the
answers which jobs lived, who held leases and how they ended; `check.py`, `order.py` and `limits.py` check the rules.
Nothing here uses the ledger.

    history = await overlap(engines, seed=7)
    assert check(history).problems == []

The callers of `all_verbs.py` use every verb. Fewer rules can be checked for their histories; `check_roughly` does it.
Those of `open_transactions.py` keep users' transactions open; `check_transactions` checks that no other call waits.
"""

from holdfast.testing.histories.all_verbs import AllVerbsCaller
from holdfast.testing.histories.callers import Load, overlap
from holdfast.testing.histories.check import Verdict, check, check_roughly
from holdfast.testing.histories.open_transactions import OpenTransactionCaller, check_transactions
from holdfast.testing.histories.record import History, RecordedCall

__all__ = [
    "AllVerbsCaller",
    "History",
    "Load",
    "OpenTransactionCaller",
    "RecordedCall",
    "Verdict",
    "check",
    "check_roughly",
    "check_transactions",
    "overlap",
]
