"""For people who test: a clock to move, a runtime that stands still, probes, and the contract as a test suite.

`holdfast.testing.contract` judges an engine by its public verbs:

    pytest --pyargs holdfast.testing.contract --holdfast-engine=memory://

`FakeClock` moves an engine's time, `FrozenRuntime` gives an engine in this process a time that only moves when told,
`Probe` and `until` wait for what should happen and say what did not.
"""

from holdfast.testing.clock import FakeClock, FrozenRuntime
from holdfast.testing.probes import Probe, until

__all__ = ["FakeClock", "FrozenRuntime", "Probe", "until"]
