"""Every rule of the contract can be found by its id: on the page, in the ledger, in the SQL, in an example.

The page says where an id has to stand (docs/contract.md, section 4). In code it stands in a comment, followed by a
colon, by a comma and the next id, or by nothing: `# L3: the head keeps the lane`, `# L3, L4`.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = Path("docs/contract.md")
ENGINES = Path("src/holdfast/engines")
LEDGER = ENGINES / "ledger"
SQL = ENGINES / "postgres" / "rules"
PACKAGE = Path("src/holdfast")
MODEL = PACKAGE / "model"
EXAMPLES = Path("src/holdfast/testing/contract")
TESTS = Path("tests")

ON_PAGE = re.compile(r"\*\*([A-Z]{1,2}\d+)\*\*(?: \*\((model|engine)\)\*)?")
IN_COMMENT = re.compile(r"\b([A-Z]{1,2}\d{1,2})(?=[:,]|$)")
SQL_COMMENT = re.compile(r"--(.*)$")
SQL_OBJECT = re.compile(
    r"^CREATE (?:OR REPLACE )?(?:(FUNCTION|PROCEDURE) (?:\{\{?\w+\}?\}\.)?(\w+)|\w+)", re.IGNORECASE
)

NOT_RULES = {"__init__", "ledger", "state"}
"""Files of the ledger that call the rules, or say what they ask of a store: a server has its own."""
NOT_IN_LEDGER = {"audit", "deferred", "enqueue_locks", "missing", "types", "unlocked", "user_transactions", "versions"}
"""Files of the server that carry out no rule of the ledger: structure, installation, locks, work after a user's
commit."""
FAST_PATH = "fast_"
"""Files of the server that carry out rules a second time, as an optimisation."""


class Place(NamedTuple):
    """An id in a comment: in which file, and in which function of it."""

    id: str
    path: Path
    function: str


def rules(root: Path) -> dict[str, str]:
    """The ids of the page, and where the rule is carried out: ledger, model or engine."""
    text = (root / PAGE).read_text(encoding="utf-8")
    section = text[text.index("\n## 4.") : text.index("\n## 5.")]
    return {id: mark or "ledger" for id, mark in ON_PAGE.findall(section)}


def python_places(path: Path) -> Iterator[Place]:
    """Ids in the comments of a Python file. A comment right above a function belongs to it."""
    source = path.read_text(encoding="utf-8")
    if not any(IN_COMMENT.search(line.rstrip()) for line in source.splitlines() if "#" in line):
        return  # most files: to parse and to split them takes a hundred times as long
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lines = source.splitlines()
    owner: dict[int, str] = {}
    for function in functions:
        first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
        while first > 1 and lines[first - 2].lstrip().startswith("#"):
            first -= 1
        owner.update(dict.fromkeys(range(first, (function.end_lineno or first) + 1), function.name))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for id in IN_COMMENT.findall(token.string.rstrip()):
                yield Place(id, path, owner.get(token.start[0], ""))


def sql_places(path: Path) -> Iterator[Place]:
    """Ids in the comments of an SQL file. Comments right above a function belong to it."""
    function = ""
    above: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        created = SQL_OBJECT.match(line)
        if created:
            function = created[2] or ""
            yield from (Place(id, path, function) for id in above)
            above = []
        comment = SQL_COMMENT.search(line)
        ids = [] if comment is None else IN_COMMENT.findall(comment[1].rstrip())
        if line.startswith("--"):
            above += ids
        else:
            yield from (Place(id, path, function) for id in [*above, *ids])
            above = []
    yield from (Place(id, path, function) for id in above)


def sql_functions(path: Path) -> set[str]:
    found = (SQL_OBJECT.match(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {created[2] for created in found if created and created[2]}


def places(root: Path, folder: Path, pattern: str = "*.py") -> list[Place]:
    read = sql_places if pattern.endswith(".sql") else python_places
    return [place for path in sorted((root / folder).rglob(pattern)) for place in read(path)]


def verbs(root: Path) -> set[str]:
    """The functions that the ledger's table of rules names."""
    tree = ast.parse((root / LEDGER / "ledger.py").read_text(encoding="utf-8"))
    (table,) = (node for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "RULES")
    assert isinstance(table.value, ast.Dict)
    return {value.attr for value in table.value.values if isinstance(value, ast.Attribute)}


# The checks, each over a tree, so that they can be tried on one with a defect


def missing(root: Path) -> list[str]:
    """Ids that do not stand where the page says they stand."""
    marks = rules(root)
    ledger = {place.id for place in places(root, LEDGER)}
    above = {place.id for place in places(root, PACKAGE) if not place.path.is_relative_to(root / ENGINES)}
    engines = {place.id for place in [*places(root, ENGINES), *places(root, ENGINES, "*.sql")]}
    sql = {place.id for place in places(root, SQL, "*.sql")} if (root / SQL).exists() else None
    examples = {place.id for place in places(root, EXAMPLES, "test_*.py")}
    tests = examples | {place.id for place in places(root, TESTS, "test_*.py")}
    found = []
    for id, mark in marks.items():
        if mark == "ledger":
            found += [f"{id} is not in the ledger"] if id not in ledger else []
            found += [f"{id} is not in the SQL"] if sql is not None and id not in sql else []
            found += [f"{id} has no example in the contract suite"] if id not in examples else []
        else:
            code = above if mark == "model" else engines
            found += [f"{id} is not in the code of the {mark}"] if id not in code else []
            found += [f"{id} has no test"] if id not in tests else []
    return found


def unknown(root: Path) -> list[str]:
    """Ids in the code that the page does not have."""
    marks = rules(root)
    stated = [
        *places(root, LEDGER),
        *places(root, MODEL),
        *places(root, EXAMPLES),
        *places(root, SQL, "*.sql"),
    ]
    return [f"{place.id} in {place.path.name} is not on the page" for place in stated if place.id not in marks]


def different_files(root: Path) -> list[str]:
    """Files of the ledger and of the SQL that have no counterpart."""
    ledger = {path.stem for path in (root / LEDGER).glob("*.py")} - NOT_RULES
    sql = {path.stem for path in (root / SQL).glob("*.sql") if not path.stem.startswith(FAST_PATH)} - NOT_IN_LEDGER
    return [
        *(f"ledger/{stem}.py has no rules/{stem}.sql" for stem in sorted(ledger - sql)),
        *(f"rules/{stem}.sql has no ledger/{stem}.py" for stem in sorted(sql - ledger)),
    ]


def different_functions(root: Path) -> list[str]:
    """Verbs without a function in the SQL, and ids that stand in no function of the same name in the same file."""
    installed = set().union(*(sql_functions(path) for path in (root / SQL).glob("*.sql")))
    found = [f"the verb {verb} is no function of the server" for verb in sorted(verbs(root) - installed)]
    in_ledger = {(place.id, place.path.stem, place.function) for place in places(root, LEDGER)}
    in_sql = {(place.id, place.path.stem, place.function) for place in places(root, SQL, "*.sql")}
    for id, mark in rules(root).items():
        if mark != "ledger":
            continue
        ours = {f"{stem}.{function}" for name, stem, function in in_ledger if name == id}
        theirs = {f"{stem}.{function}" for name, stem, function in in_sql if name == id}
        if not ours & theirs:
            found.append(f"{id} is in {sorted(ours)} of the ledger and in {sorted(theirs)} of the SQL")
    return found


def test_the_page_has_rules_of_every_kind() -> None:
    assert set(rules(ROOT).values()) == {"ledger", "model", "engine"}


def test_no_id_stands_twice_on_the_page() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    ids = [id for id, _ in ON_PAGE.findall(text)]
    assert [id for id in ids if ids.count(id) > 1] == []


def test_every_rule_can_be_found_by_its_id() -> None:
    assert missing(ROOT) == []


def test_every_id_in_the_code_is_on_the_page() -> None:
    assert unknown(ROOT) == []


def test_ledger_and_sql_have_the_same_files() -> None:
    assert different_files(ROOT) == []


def test_a_verb_or_rule_has_the_same_function_in_ledger_and_sql() -> None:
    assert different_functions(ROOT) == []


# Each check can fail


PLANTED = {
    PAGE: "\n## 4. Rules\n- **L1** The first.\n- **B1** *(model)* At most ten.\n- **N1** *(engine)* Hints.\n\n## 5.\n",
    LEDGER / "ledger.py": "RULES: dict[type, object] = {Pause: scopes.pause}\n",
    LEDGER / "scopes.py": "def pause():\n    # L1: the head\n    return 1\n",
    ENGINES / "memory.py": "x = 1  # N1\n",
    MODEL / "check.py": "# B1: at most ten\nMOST = 10\n",
    SQL / "scopes.sql": "-- L1: the head\nCREATE FUNCTION pause() RETURNS int AS $$ $$;\n",
    EXAMPLES / "test_pause.py": "# L1\nasync def test_pause():\n    pass\n",
    TESTS / "unit" / "test_check.py": "def test_bounds():\n    # B1, N1\n    pass\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree in which every rule is where it belongs."""
    for path, text in PLANTED.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def problems(root: Path) -> list[str]:
    return [*missing(root), *unknown(root), *different_files(root), *different_functions(root)]


def test_a_tree_in_order_has_no_problems(tree: Path) -> None:
    assert problems(tree) == []


@pytest.mark.parametrize(
    ("path", "right", "wrong", "problem"),
    [
        (LEDGER / "scopes.py", "# L1: the head", "# the head, see L1 on the page", "L1 is not in the ledger"),
        (LEDGER / "scopes.py", "# L1: the head", "# L1, L2: the head", "L2 in scopes.py is not on the page"),
        (SQL / "scopes.sql", "-- L1: the head", "-- the head", "L1 is not in the SQL"),
        (SQL / "scopes.sql", "-- L1: the head", "-- L1, X9: the head", "X9 in scopes.sql is not on the page"),
        (EXAMPLES / "test_pause.py", "# L1", "# pause", "L1 has no example in the contract suite"),
        (MODEL / "check.py", "# B1: at most ten", "# at most ten", "B1 is not in the code of the model"),
        (ENGINES / "memory.py", "# N1", "# hints", "N1 is not in the code of the engine"),
        (TESTS / "unit" / "test_check.py", "# B1, N1", "# B1", "N1 has no test"),
        (PAGE, "- **L1**", "- **L1** First.\n- **L2**", "L2 is not in the ledger"),
        (SQL / "scopes.sql", "pause()", "stop()", "the verb pause is no function of the server"),
        (
            SQL / "scopes.sql",
            "CREATE FUNCTION pause()",
            "CREATE FUNCTION hold() RETURNS int AS $$ $$;\nCREATE FUNCTION pause()",
            "L1 is in ['scopes.pause'] of the ledger and in ['scopes.hold'] of the SQL",
        ),
    ],
)
def test_a_planted_defect_is_noticed(tree: Path, path: Path, right: str, wrong: str, problem: str) -> None:
    text = (tree / path).read_text(encoding="utf-8")
    assert text.count(right) == 1
    (tree / path).write_text(text.replace(right, wrong), encoding="utf-8")
    assert problem in problems(tree)


def test_a_file_without_a_counterpart_is_noticed(tree: Path) -> None:
    (tree / SQL / "lanes.sql").touch()
    (tree / LEDGER / "claim.py").touch()
    assert different_files(tree) == [
        "ledger/claim.py has no rules/claim.sql",
        "rules/lanes.sql has no ledger/lanes.py",
    ]


def test_files_that_only_a_server_needs_are_allowed(tree: Path) -> None:
    (tree / SQL / "fast_claim.sql").touch()
    (tree / SQL / "deferred.sql").touch()
    assert different_files(tree) == []
