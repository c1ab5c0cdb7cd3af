"""The oracle can fail: an engine that is wrong in one way is found out, one test for each way.

Some lies change one field of an answer; the rest is true. Others do something else than they were asked, and
answer as if nothing were amiss. Each is told in a scenario that has an occasion for all of them, and the oracle's
line must name the place. A few are told to the machine as well, to show that it would come across them.
"""

from typing import Any

import pytest
from every_verb import use_every_verb
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from wrong_engines import ANSWERS, WRONG_ACTIONS, WrongAnswer, WrongAnswerEngine

from holdfast.engines.memory import MemoryEngine
from holdfast.testing import FrozenRuntime
from holdfast.testing.differential import differential

MACHINE = settings(
    max_examples=200,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    report_multiple_bugs=False,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


def liar(lie: WrongAnswer) -> type[MemoryEngine]:
    kind: Any = type("WrongAnswerEngine", (WrongAnswerEngine,), {"lie": lie})
    return kind  # type: ignore[no-any-return]


def test_right_answers_are_accepted() -> None:
    use_every_verb(MemoryEngine("memory://", FrozenRuntime()))


@pytest.mark.parametrize("lie", ANSWERS, ids=[lie.name for lie in ANSWERS])
def test_a_wrong_answer_is_found_out(lie: WrongAnswer) -> None:
    with pytest.raises(AssertionError, match=f"^{lie.found_in}"):
        use_every_verb(liar(lie)("memory://", FrozenRuntime()))


@pytest.mark.parametrize("deed", WRONG_ACTIONS, ids=[deed.__name__ for deed in WRONG_ACTIONS])
def test_a_wrong_deed_is_found_out(deed: type[MemoryEngine]) -> None:
    with pytest.raises(AssertionError, match=r"^\w+: .*(the ledger has|is left|which|not among)"):
        use_every_verb(deed("memory://", FrozenRuntime()))


@pytest.mark.parametrize("name", ["attempt", "late-called-applied", "dropped-lease", "depth", "kept-for-longer"])
def test_the_machine_comes_across_a_lie(name: str) -> None:
    lie = next(lie for lie in ANSWERS if lie.name == name)
    with pytest.raises(AssertionError, match=f"^{lie.found_in}"):
        run_state_machine_as_test(differential(lambda: liar(lie)("memory://", FrozenRuntime())), settings=MACHINE)
