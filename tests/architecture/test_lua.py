"""The Lua rules of the Redis engine are what `make lua` makes from the ledger, and mean the same.

The translator knows a part of Python and refuses the rest. The examples here are the places where Lua differs from
Python. Each is run in both languages, Lua in a real server, and the results are compared.
"""

import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import pytest
from redis_server import RedisServer, server
from tools.lua.build import RULES, DialectError, make_lua, make_rules
from tools.lua.emitter import literal
from tools.lua.sources import LEDGER, Function, find_functions, functions_of

ROOT = Path(__file__).parents[2]
RUNTIME = RULES.parent / "runtime.lua"
RULE_ID = re.compile(r"\b[A-Z]{1,2}\d{1,2}\b(?=[:,]|$)")

HEADER = """\
from collections import Counter
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.engines.ledger.step import Step
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.produce import GroupConflict, GroupOrphan
from holdfast.model.records import PoolRecord, Totals
from holdfast.model.operate import OperateResult, OperateStatus
from holdfast.model.states import TERMINAL, Hold, JobState

"""


def test_the_rules_are_those_of_the_ledger() -> None:
    assert RULES.read_text(encoding="utf-8") == make_rules(), "rules.lua is not what the ledger says: run `make lua`"


def test_the_rules_name_every_rule_that_their_functions_carry_out() -> None:
    text = RULES.read_text(encoding="utf-8")
    in_lua = {id for line in text.splitlines() if "--" in line for id in RULE_ID.findall(line.partition("--")[2])}
    in_ledger = {
        id
        for function in find_functions()
        for line, comment in function.comments.items()
        if function.node.lineno <= line <= (function.node.end_lineno or 0)
        for id in RULE_ID.findall(comment)
    }
    assert in_ledger <= in_lua


def test_the_rules_stay_below_the_limits_of_lua() -> None:
    # 200 local variables per function; the rules stand together with the state inside one.
    assert len(re.findall(r"^local ", RULES.read_text(encoding="utf-8"), re.MULTILINE)) < 60


def test_a_refusal_names_file_line_and_what_to_write() -> None:
    name = f"{LEDGER}.lanes"
    text = (ROOT / "src/holdfast/engines/ledger/lanes.py").read_text(encoding="utf-8")
    line = text.count("\n") + 4
    text += "\n\ndef wrong(queue: str | None) -> bool:\n    return not queue\n"
    with pytest.raises(DialectError) as caught:
        make_rules({name: text})
    assert f"src/holdfast/engines/ledger/lanes.py:{line}: the truth of `queue`, an optional value" in str(caught.value)
    assert "`is None`" in str(caught.value)


# What Lua does otherwise, each in both languages


class Example(NamedTuple):
    name: str
    source: str
    """Functions; the first one is called."""
    calls: list[tuple[Any, ...]]


EXAMPLES = [
    Example(
        "zero, empty text and an empty list are false",
        """
def f(number: int, text: str, items: list[int], entries: dict[str, int]) -> list[bool]:
    return [bool(number), bool(text), bool(items), bool(entries), not number, not text, not items, not entries]
""",
        [(0, "", [], {}), (1, "a", [0], {"a": 1})],
    ),
    Example(
        "`or` gives the second of two values if the first is zero or empty",
        """
def f(number: int, text: str) -> tuple[int, str]:
    return number or 7, text or "other"
""",
        [(0, ""), (3, "a")],
    ),
    Example(
        "`continue` leaves out the rest of the round",
        """
def f(numbers: list[int]) -> list[int]:
    kept: list[int] = []
    for number in numbers:
        if number < 0:
            kept.append(0)
            continue
        if number == 5:
            continue
        kept.append(number)
    return kept
""",
        [([1, -1, 5, 2],), ([],)],
    ),
    Example(
        "a conditional expression may give None or False",
        """
def f(test: bool, text: str | None, other: str) -> list[bool]:
    chosen = text if test else other
    flag = False if test else True
    return [chosen is None, chosen == other, flag]
""",
        [(True, None, "b"), (True, "a", "b"), (False, None, "b")],
    ),
    Example(
        "a value or a default where it is None",
        """
def f(number: int | None, text: str | None) -> tuple[int, str]:
    return 9 if number is None else number, text if text is not None else "none"
""",
        [(None, None), (0, "")],
    ),
    Example(
        "the variable of a comprehension is its own",
        """
def f(numbers: list[int]) -> tuple[list[int], int]:
    number = 100
    doubled = [number * 2 for number in numbers if number > 1]
    return doubled, number
""",
        [([1, 2, 3],)],
    ),
    Example(
        "two functions whose names differ by an underscore",
        """
def f(number: int) -> int:
    return _f(number) + 1


def _f(number: int) -> int:
    return number * 10
""",
        [(4,)],
    ),
    Example(
        "a tuple as key",
        """
def f(queue: str, id: str) -> tuple[int, bool, bool, bool]:
    found: dict[tuple[str, str], int] = {}
    name = (queue, id)
    found[queue, id] = 3
    seen = set()
    seen.add(name)
    return found[name], name in found, name in seen, (id, queue) in found
""",
        [("q", "a")],
    ),
    Example(
        "keyword arguments in any order, and defaults",
        """
def f() -> list[str]:
    return [g("1", c="3", b="2"), g("1", b="x"), g("1")]


def g(a: str, b: str = "B", *, c: str = "C") -> str:
    return f"{a}{b}{c}"
""",
        [()],
    ),
    Example(
        "None as an argument in the middle",
        """
def f() -> list[str]:
    return [g(None, "b"), g("a", None), g(None)]


def g(a: str | None, b: str | None = None) -> str:
    return ("-" if a is None else a) + ("-" if b is None else b)
""",
        [()],
    ),
    Example(
        "`==` compares records by their fields, `is` by identity",
        """
def f(queue: str) -> list[bool]:
    one, two = JobKey(queue, "a"), JobKey(queue, "a")
    return [one == two, one != two, one is two, one is one, one == replace(one, id="b")]
""",
        [("q",)],
    ),
    Example(
        "a copy leaves the first record as it was",
        """
def f(number: int) -> tuple[int, int, bool]:
    totals = Totals(succeeded=number)
    more = totals.plus(JobState.SUCCEEDED, 2)
    result = replace(OperateResult(OperateStatus.DONE, JobState.QUEUED), state=None)
    return totals.succeeded, more.succeeded, result.state is None
""",
        [(5,)],
    ),
    Example(
        "slices and negative positions",
        """
def f(items: list[int]) -> list[list[int]]:
    return [items[1:], items[:2], items[1:2], items[-2:], items[5:], items[:0], items[2:] + items[:2]]
""",
        [([1, 2, 3],), ([],)],
    ),
    Example(
        "positions count from 0",
        """
def f(items: list[int]) -> list[int]:
    out: list[int] = []
    for index, item in enumerate(items):
        items[index] += 10
        out.append(index * 100 + items[index])
    return out
""",
        [([1, 2],)],
    ),
    Example(
        "`sorted` compares texts by bytes, keeps the order of equal items, and orders by several keys",
        """
def f(names: list[str]) -> tuple[list[str], list[str], list[str]]:
    keys = [JobKey(name, "x") for name in names]
    by_fields = sorted(keys)
    by_one = sorted(keys, key=lambda key: key.id)
    by_two = sorted(keys, key=lambda key: (key.id, key.queue))
    return [key.queue for key in by_fields], [key.queue for key in by_one], [key.queue for key in by_two]
""",
        [(["b", "B", "a_b", "ab", "a", "é", "z", "a-b", "abcdefghij", "abcdefghia"],)],
    ),
    Example(
        "counts in the order of their first occurrence",
        """
def f(names: list[str]) -> list[str]:
    return [f"{name}{count}" for name, count in Counter(names).items()]
""",
        [(["z", "a", "z", "m", "a"],)],
    ),
    Example(
        "a heap gives the smallest first",
        """
def f(numbers: list[int]) -> list[int]:
    heap: list[tuple[tuple[int, int], int]] = []
    for one in numbers:
        heap.append(((-one, 0), one))
    heapify(heap)
    out: list[int] = []
    while heap:
        _, number = heap[0]
        out.append(number)
        if number > 100:
            heapreplace(heap, ((-(number - 100), 0), number - 100))
        else:
            heappop(heap)
    return out
""",
        [([3, 250, 7, 1, 9, 120, 4],), ([],)],
    ),
    Example(
        "flags",
        """
def f(lane: bool) -> list[bool]:
    hold = Hold.PARENTS | Hold.LANE if lane else Hold.PARENTS
    left = hold & ~Hold.PARENTS
    return [left is Hold.NONE, left == Hold.LANE, bool(hold & Hold.LANE), not hold & Hold.LANE]
""",
        [(True,), (False,)],
    ),
    Example(
        "members of a set, a tuple and a list; a comparison as value is true or false",
        """
def f(state: str, names: list[str]) -> list[bool]:
    known = JobState.FAILED if state == "failed" else JobState.QUEUED
    ended = known in TERMINAL
    return [ended, known not in TERMINAL, known in (JobState.QUEUED, JobState.RUNNING), state in names, not ended]
""",
        [("failed", ["failed"]), ("queued", [])],
    ),
    Example(
        "`any`, `all` and `sum` stop and count as in Python",
        """
def f(numbers: list[int], entries: dict[str, int]) -> tuple[bool, bool, int, int]:
    more = any(number > 2 for number in numbers)
    every = all(number > 0 for number in numbers)
    return more, every, sum(1 for number in numbers if number > 1), sum(entries.values())
""",
        [([1, 2, 3], {"a": 2, "b": 3}), ([], {}), ([0], {"a": -1})],
    ),
    Example(
        "the right side of `and` and `or` is evaluated only where Python does",
        """
def f(items: list[int]) -> list[bool]:
    first = len(items) > 0 and any(item == items[0] for item in items[1:])
    second = len(items) == 0 or any(item > 1 for item in items)
    return [first, second]
""",
        [([],), ([1, 1],), ([1, 2],)],
    ),
    Example(
        "several values are returned and assigned at once",
        """
def f(a_number: int, other: int) -> tuple[int, int]:
    low, high = order(a_number, other)
    low, high = high, low
    return low, high


def order(x: int, y: int) -> tuple[int, int]:
    return (x, y) if x < y else (y, x)
""",
        [(1, 2), (2, 1)],
    ),
    Example(
        "an assignment in the test of a loop",
        """
def f(numbers: list[int]) -> list[int]:
    out: list[int] = []
    place = 0
    while place < len(numbers) and (number := numbers[place]) != 0:
        out.append(number)
        place += 1
    return out
""",
        [([3, 4, 0, 5],), ([1],), ([],)],
    ),
    Example(
        "names that Lua keeps for itself",
        """
def f(end: int, until: int, next: int, type: int, a: int) -> int:
    repeat, local, nil = end + 1, until + 1, next + 1
    return repeat * 10000 + local * 1000 + nil * 100 + type * 10 + a
""",
        [(1, 2, 3, 4, 5)],
    ),
    Example(
        "instants keep their last digit, also as text",
        """
def f(now: int) -> tuple[int, str, int, int]:
    return now + 1, f"at {now}", now // 1000, -7 % 3
""",
        [(1_763_000_000_123_457,)],
    ),
    Example(
        "one of several classes",
        """
def f(number: int) -> list[bool]:
    found = choose(number)
    return [isinstance(found, list), isinstance(found, GroupConflict | GroupOrphan), found is None]


def choose(number: int) -> list[int] | GroupConflict | GroupOrphan | None:
    if number == 0:
        return None
    if number == 1:
        return GroupConflict(JobKey("q", "a"))
    return []
""",
        [(1,), (2,)],
    ),
    Example(
        "the variable of a branch is seen behind it",
        """
def f(number: int) -> str:
    if number > 1:
        word = "many"
    elif number == 1:
        word = "one"
    else:
        word = "none"
    match number:
        case 0:
            return word + "!"
        case _:
            return word
""",
        [(0,), (1,), (2,)],
    ),
    Example(
        "text from bytes above 127 and with quotes",
        """
def f(name: str) -> str:
    return "é\\"\\\\" + name
""",
        [("ü",)],
    ),
]


@pytest.fixture(scope="module")
def redis() -> RedisServer:
    return server()


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_both_languages_give_the_same(example: Example, redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_module(example.source, monkeypatch)
    lua = translated(module, example.source)
    for call in example.calls:
        script = f"""
            {RUNTIME.read_text(encoding="utf-8")}
            local S, R = {{}}, {{}}
            {lua}
            local results = {{ R.f({", ".join(literal(argument) for argument in call)}) }}
            return cmsgpack.pack(results)
        """
        packed = redis.client.eval(script, 0)
        result = module.f(*call)
        expected = result if isinstance(result, tuple) else (result,)
        assert plain(msgspec.msgpack.decode(packed)) == plain(expected)


def plain(value: Any) -> Any:
    """Tuples as lists; an empty table of Lua is a list."""
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


def make_module(source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("lua_example")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(HEADER + source, "example.py", "exec"), vars(module))
    return module


def translated(module: ModuleType, source: str) -> str:
    return make_lua([*totals_functions(), *functions_of(module, "example.py", HEADER + source)])


@cache
def totals_functions() -> tuple[Function, ...]:
    """For the examples that call a method."""
    return tuple(one for one in find_functions() if one.name in ("Totals_plus", "extend"))


# What is refused


REFUSED = [
    ("the truth of an optional value", "def f(x: int | None) -> bool:\n    return bool(x)\n", "is None"),
    ("None in a list", "def f(x: str | None) -> list[str | None]:\n    return [x]\n", "nil ends a list"),
    ("a loop over a dict", "def f(x: dict[str, int]) -> None:\n    for a, b in x.items():\n        g()\n", "no order"),
    ("`<` of texts", "def f(x: str, y: str) -> bool:\n    return x < y\n", "only numbers"),
    ("`is` of texts", "def f(x: str, y: str) -> bool:\n    return x is y\n", "`is`"),
    ("try", "def f() -> None:\n    try:\n        f()\n    finally:\n        f()\n", "Try"),
    ("yield", "def f() -> list[int]:\n    yield 1\n", "Expr"),
    ("a lambda", "def f() -> None:\n    g = lambda: 1\n", "Lambda"),
    ("a nested function", "def f() -> None:\n    def g() -> None:\n        pass\n", "FunctionDef"),
    ("a decorator", "@staticmethod\ndef f() -> None:\n    pass\n", "decorator"),
    ("an unknown function", "def f(x: str) -> int:\n    return hash(x)\n", "`hash`"),
    ("an unknown method", "def f(x: str) -> str:\n    return x.upper()\n", "upper"),
    ("division", "def f(x: int) -> float:\n    return x / 2\n", "operator"),
    ("the sum of a number and a bool", "def f(x: int, y: bool) -> int:\n    return x + y\n", "whole numbers"),
    (
        "a variable of a loop behind the loop",
        "def f(xs: list[int]) -> int:\n    for x in xs:\n        pass\n    return x\n",
        "`x`",
    ),
    (
        "a value of the last round",
        "def f(xs: list[int]) -> int:\n"
        "    for x in xs:\n"
        "        if x > 1:\n"
        "            y = x\n"
        "        if x > 2:\n"
        "            return y\n"
        "    return 0\n",
        "before it is assigned",
    ),
    (
        "`continue` in the middle of a branch",
        "def f(xs: list[int]) -> None:\n"
        "    for x in xs:\n"
        "        if x:\n"
        "            if x > 1:\n"
        "                continue\n"
        "            f([])\n"
        "        f([])\n",
        "continue",
    ),
    ("an attribute that is assigned", "def f(x: JobKey) -> None:\n    x.id = 'a'\n", "assigned"),
    ("an argument that does not exist", "def f(x: int) -> None:\n    f(y=1)\n", "signature"),
    ("a value of unknown type", "def f(x) -> str:\n    return x.name\n", "annotate"),
]


@pytest.mark.parametrize(("source", "message"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_what_has_no_translation_is_refused(source: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_module(source, monkeypatch)
    with pytest.raises(DialectError, match=r"src/holdfast/example\.py:\d+: ") as caught:
        translated(module, source)
    assert message in str(caught.value)


def test_two_functions_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def extend(x: int) -> int:\n    return x\n"
    with pytest.raises(DialectError, match="rename one"):
        translated(make_module(source, monkeypatch), source)
