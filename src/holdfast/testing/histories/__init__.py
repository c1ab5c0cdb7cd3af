"""Overlapping calls, judged: what an engine may answer when several callers are at it at once.

The oracle of the differential machine needs one call after the other. Here several callers go at once. Each call is
written down with when it was asked and when it was answered, and afterwards the whole history is held against what must
be true whatever the order was. `record.py` writes it down, `callers.py` makes the calls, `lives.py` reads out of the
answers who lived, who held what and how it ended, `check.py` and its neighbours judge. Nothing here knows the ledger.

    history = await overlap(engines, seed=7)
    assert check(history).problems == []

`wild.py` has callers that use every verb; of their histories less can be said, and `check_roughly` says it.
"""

from holdfast.testing.histories.all_verbs import AllVerbsCaller
from holdfast.testing.histories.callers import Load, overlap
from holdfast.testing.histories.check import Verdict, check, check_roughly
from holdfast.testing.histories.record import History, RecordedCall

__all__ = ["AllVerbsCaller", "History", "Load", "RecordedCall", "Verdict", "check", "check_roughly", "overlap"]
