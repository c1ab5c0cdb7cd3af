"""The differential machine, for anyone who writes an engine: see `machine.py`.

from hypothesis.stateful import run_state_machine_as_test

def test_my_engine_answers_like_the_ledger() -> None:
    run_state_machine_as_test(differential(lambda: MyEngine(...)))
"""

from holdfast.testing.differential.machine import Differential, differential

__all__ = ["Differential", "differential"]
