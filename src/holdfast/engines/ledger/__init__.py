"""The ledger: the rules of Holdfast, as a specification that runs. Start with `ledger.py`."""

from holdfast.engines.ledger.ledger import Decision, Ledger
from holdfast.engines.ledger.state import Change

__all__ = ["Change", "Decision", "Ledger"]
