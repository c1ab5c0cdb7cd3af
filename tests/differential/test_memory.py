from hypothesis import settings, HealthCheck
from hypothesis.stateful import run_state_machine_as_test
from holdfast.engines.memory import MemoryEngine
from holdfast.testing.differential import differential
from holdfast.testing import FrozenRuntime

def test_it():
    m = differential(lambda: MemoryEngine("memory://", FrozenRuntime()))
    run_state_machine_as_test(m, settings=settings(max_examples=80, stateful_step_count=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None, print_blob=False))
    print(m.seen)
