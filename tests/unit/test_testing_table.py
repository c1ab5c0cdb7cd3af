"""The table of guarantees, and the orders that follow from a seed."""

from holdfast.testing.contract.guarantees import Guarantee
from holdfast.testing.contract.interleave import Dice, overlapping
from holdfast.testing.contract.table import ENGINE, GUARANTEE, GuaranteeTable


def add(table: GuaranteeTable, name: str, outcome: str, what: Guarantee, engine: str) -> None:
    table.add(name, outcome, {GUARANTEE: what.value, ENGINE: engine})


def test_an_empty_table_is_false_and_other_tests_do_not_fill_it() -> None:
    table = GuaranteeTable()

    table.add("tests/unit/test_x.py::test_y", "passed", {})

    assert not table


def test_each_guarantee_is_a_row_and_each_engine_a_column() -> None:
    table = GuaranteeTable()
    add(table, "1", "passed", Guarantee.LANES, "memory")
    add(table, "2", "passed", Guarantee.LANES, "memory")
    add(table, "3", "skipped", Guarantee.LANES, "memory")
    add(table, "4", "failed", Guarantee.LANES, "sqlite")
    add(table, "5", "passed", Guarantee.LANES, "sqlite")
    add(table, "6", "skipped", Guarantee.TRANSACTIONS, "memory")
    add(table, "7", "passed", Guarantee.WHOLE_GROUPS, "memory")

    assert list(table.lines()) == [
        "guarantee                                memory                 sqlite",
        "a group is enqueued whole or not at all  held 1",
        "a lane runs in order, one at a time      held 2, 1 not offered  FAILED 1 of 2",
        "enqueue works in a user's transaction    not offered",
    ]


def test_an_example_whose_clean_up_fails_has_failed() -> None:
    table = GuaranteeTable()
    add(table, "1", "passed", Guarantee.LANES, "memory")
    add(table, "1", "error", Guarantee.LANES, "memory")

    assert list(table.lines())[1].endswith("FAILED 1 of 1")


def test_the_dice_follow_from_their_seed() -> None:
    throws = [[Dice(seed).below(1_000) for _ in range(3)] for seed in ("a", "a", "b")]

    assert throws[0] == throws[1] != throws[2]
    assert sorted(Dice("a").shuffled(range(20))) == list(range(20))
    assert len({tuple(Dice(seed).shuffled("abc")) for seed in range(100)}) == 6


async def test_overlapping_calls_run_in_many_orders() -> None:
    async def order(seed: int) -> str:
        seen: list[str] = []

        async def call(name: str) -> None:
            seen.append(name)

        await overlapping(Dice(seed), *(call(name) for name in "abc"))
        return "".join(seen)

    assert ({await order(seed) for seed in range(100)}) == {"abc", "acb", "bac", "bca", "cab", "cba"}
