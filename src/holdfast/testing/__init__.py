"""For people who test: their App in a harness; a clock to move, a runtime that stands still, probes; the contract.

    from holdfast.testing import Harness

    def test_a_resize_is_enqueued(holdfast: Harness) -> None: ...       the fixture; `holdfast_app` in pytest's settings
    with holdfast.testing.harness(jobs) as h: ...                       without it

`holdfast.testing.contract` judges an engine by its public verbs:

    pytest --pyargs holdfast.testing.contract --holdfast-engine=memory://

`FakeClock` moves an engine's time, `FrozenRuntime` gives an engine in this process a time that only moves when told,
`Probe` and `until` wait for what should happen and say what did not.
"""

from holdfast.testing.clock import FakeClock, FrozenRuntime
from holdfast.testing.crash import CrashPoint
from holdfast.testing.harness import Drained, Harness, harness
from holdfast.testing.probes import Probe, until

__all__ = ["CrashPoint", "Drained", "FakeClock", "FrozenRuntime", "Harness", "Probe", "harness", "until"]
