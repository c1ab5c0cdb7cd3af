"""Test kit: a harness for an App, clocks that a test controls, probes, and the contract suite for engines.

    from holdfast.testing import Harness

    def test_a_resize_is_enqueued(holdfast: Harness) -> None: ...       the fixture; `holdfast_app` in pytest's settings
    with holdfast.testing.harness(jobs) as h: ...                       without it

`holdfast.testing.contract` tests an engine by its public verbs:

    pytest --pyargs holdfast.testing.contract --holdfast-engine=memory://

`FakeClock` moves an engine's time. `FrozenRuntime` gives an engine in this process a time that only the test moves.
`Probe` and `until` wait for something and fail with a message that says what they saw.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.app_harness import Drained, Harness, harness
    from holdfast.testing.clock import FakeClock, FrozenRuntime
    from holdfast.testing.crash import CrashPoint
    from holdfast.testing.probes import Probe, until

__all__ = ["CrashPoint", "Drained", "FakeClock", "FrozenRuntime", "Harness", "Probe", "harness", "until"]


if not TYPE_CHECKING:
    _MODULES = {
        "CrashPoint": "crash",
        "Drained": "app_harness",
        "FakeClock": "clock",
        "FrozenRuntime": "clock",
        "Harness": "app_harness",
        "Probe": "probes",
        "harness": "app_harness",
        "until": "probes",
    }
    """The module of each public name. No module has the name of a function here."""

    def __getattr__(name: str) -> Any:
        """Load a name when it is first used. Every pytest run loads this package, for the plugin."""
        if name not in _MODULES:
            raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
        return getattr(import_module(f"holdfast.testing.{_MODULES[name]}"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
