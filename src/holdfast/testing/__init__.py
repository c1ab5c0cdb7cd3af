"""Test kit: a harness for an App, clocks that a test controls, probes, and the contract suite for engines.

    from holdfast.testing import Harness

    def test_a_resize_is_enqueued(holdfast: Harness) -> None: ...       the fixture; `holdfast_app` in pytest's settings
    with holdfast.testing.harness(jobs) as h: ...                       without it

`holdfast.testing.contract` tests an engine by its public verbs:

    pytest --pyargs holdfast.testing.contract --holdfast-engine=memory://

`FakeClock` moves an engine's time. `FrozenRuntime` gives an engine in this process a time that only the test moves.
`Probe` and `until` wait for something and fail with a message that says what they saw.
"""

from holdfast.testing.clock import FakeClock, FrozenRuntime
from holdfast.testing.crash import CrashPoint
from holdfast.testing.harness import Drained, Harness, harness
from holdfast.testing.probes import Probe, until

__all__ = ["CrashPoint", "Drained", "FakeClock", "FrozenRuntime", "Harness", "Probe", "harness", "until"]
