"""What an engine is free in, it may do differently from the ledger, and the oracle follows."""

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engines.memory import MemoryEngine
from holdfast.model.command import A, Command
from holdfast.model.observe import Find, FindAnswer, Prune
from holdfast.model.work import Expired, ExpiredAnswer
from holdfast.testing import FrozenRuntime
from holdfast.testing.differential import differential


class DifferentEngine(MemoryEngine):
    """Numbers arrivals differently, lists expired leases in reverse, prunes one job at a time."""

    def perform_now(self, command: Command[A]) -> A:
        ours: Any = command
        if isinstance(ours, Find) and ours.cursor is not None:
            ours = replace(ours, cursor=(ours.cursor - 100) // 7)
        if isinstance(ours, Prune):
            ours = replace(ours, limit=1)
        if isinstance(ours, Expired):
            ours = replace(ours, limit=500)
        answer: Any = renumbered(super().perform_now(ours))
        if isinstance(answer, FindAnswer) and answer.cursor is not None:
            answer = replace(answer, cursor=7 * answer.cursor + 100)
        if isinstance(answer, ExpiredAnswer) and isinstance(command, Expired):
            answer = replace(answer, leases=answer.leases[::-1][: command.limit])
        return answer  # type: ignore[no-any-return]


def renumbered(value: Any) -> Any:
    """The answer with other arrival numbers, in the same order."""
    if isinstance(value, tuple):
        return tuple(renumbered(item) for item in value)
    if isinstance(value, Struct):
        fields = {name: renumbered(getattr(value, name)) for name in value.__struct_fields__}
        if "arrival" in fields:
            fields["arrival"] = 7 * fields["arrival"] + 100
        return type(value)(**fields)
    return value


def test_an_engine_may_use_its_freedom() -> None:
    machine = differential(lambda: DifferentEngine("memory://", FrozenRuntime()))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            derandomize=True,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert machine.seen["ExpiredLease"]
    assert machine.seen["PruneAnswer"]
    assert machine.seen["FindAnswer"]
