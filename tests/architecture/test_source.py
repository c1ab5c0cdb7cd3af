"""What a reader may count on in every source file: it is short, says what it is, is finished, and its examples run."""

import ast
import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = sorted((ROOT / "src").rglob("*.py"))

MOST_LINES = 600
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


WITH_EXAMPLES = [path for path in SOURCE if ">>> " in path.read_text(encoding="utf-8")]


def is_public(path: Path) -> bool:
    return path.stem == "__init__" or not path.stem.startswith("_")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_source_to_look_at() -> None:
    assert SOURCE


def test_no_source_file_is_long() -> None:
    lengths = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_every_public_module_says_what_lives_in_it() -> None:
    silent = [
        name(path)
        for path in SOURCE
        if is_public(path) and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_nothing_in_the_source_is_marked_unfinished() -> None:
    marked = [
        f"{name(path)}, line {number}: {line.strip()}"
        for path in SOURCE
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert marked == []


def test_the_mark_of_unfinished_work_is_recognised() -> None:
    assert UNFINISHED.search("# TODO: later")
    assert not UNFINISHED.search("mastodon, hacking, TODOS")


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=name)
def test_the_examples_in_docstrings_run(path: Path) -> None:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    module = import_module(".".join(parts).removesuffix(".__init__"))
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_every_folder_of_source_is_a_package() -> None:
    """import-linter does not look into a folder without `__init__.py`."""
    folders = {path.parent for path in SOURCE} - {ROOT / "src"}
    assert [name(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_the_package_ships_its_types() -> None:
    assert (ROOT / "src" / "holdfast" / "py.typed").is_file()


READING_ORDER_LINES = 2_500
"""What a newcomer is asked to read. Longer lists are not read."""


def reading_order() -> list[Path]:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = page.split("## Reading order")[1].split("\n## ")[0]
    return [ROOT / file for file in re.findall(r"`(src/[\w/]+\.py)`", table)]


def test_a_newcomer_is_sent_through_files_that_exist_and_are_few() -> None:
    files = reading_order()
    assert len(files) > 5
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= READING_ORDER_LINES


TWO_MEANINGS = {
    "Command": "a verb of the contract; for Django, the class of a management command",
    "Cancel": "the command of the model; for users, an exception that a handler raises",
    "Lease": "the answer of a claim; for users, a claimed job with its methods",
}
"""Class names that stand twice, with the reason."""


def test_a_class_name_has_one_meaning() -> None:
    """Events are left out: their names are used behind their namespace, such as `events.Started`."""
    places: dict[str, list[str]] = {}
    for path in SOURCE:
        if path.parts[-2:] != ("telemetry", "events.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(name(path))
    assert {key: found for key, found in places.items() if len(found) > 1 and key not in TWO_MEANINGS} == {}


NAMES_OF_USERS = {"id", "task", "queue", "lane", "owner", "worker", "job_id"}
"""Fields and variables that hold a name which a user chose: it may contain line breaks and control characters."""
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def unescaped_names(path: Path) -> list[str]:
    """Names of users that a log line shows without `shown(...)`."""
    return [
        f"{path.name}, line {argument.lineno}: {ast.unparse(argument)}"
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LOG_METHODS
        if isinstance(call.func.value, ast.Name) and call.func.value.id in {"_logger", "log"}
        for argument in call.args
        if (isinstance(argument, ast.Attribute) and argument.attr.lstrip("_") in NAMES_OF_USERS)
        or (isinstance(argument, ast.Name) and argument.id in NAMES_OF_USERS)
    ]


def test_log_lines_escape_the_names_of_users() -> None:
    """An id with a line break would forge a log line."""
    assert [place for path in SOURCE for place in unescaped_names(path)] == []


def test_the_check_of_log_lines_finds_an_unescaped_id(tmp_path: Path) -> None:
    source = tmp_path / "wrong.py"
    source.write_text('_logger.info("%s %s", lease.id, shown(lease.task))\n')
    assert unescaped_names(source) == ["wrong.py, line 1: lease.id"]
