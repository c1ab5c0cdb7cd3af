"""The pages in `docs/reference` are what `make reference` makes, and what they are made from is complete."""

import ast
from pathlib import Path

import click
import pytest
from tools import python_reference
from tools.python_reference import CONSTRUCTED, HIDDEN, PARTS, entries
from tools.python_sources import class_page, doc_of, public_names
from tools.reference import PAGE, commands, make_page

from holdfast.cli import exits
from holdfast.cli.root import COMMANDS, SUMMARIES, root


def test_the_reference_is_what_the_help_pages_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == make_page(), "Run `make reference`."


def test_the_reference_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    page = make_page()
    monkeypatch.setenv("COLUMNS", "40")
    assert make_page() == page


def test_the_help_page_lists_each_command_with_its_first_sentence() -> None:
    context = click.Context(root)
    assert list(SUMMARIES) == list(COMMANDS)
    for name, summary in SUMMARIES.items():
        command = root.get_command(context, name)
        assert command is not None
        assert summary == command.get_short_help_str(limit=200)


def test_every_exit_code_has_a_meaning() -> None:
    tree = ast.parse(Path(exits.__file__).read_text(encoding="utf-8"))
    numbers = [
        node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, int)
    ]
    assert list(exits.EXIT_CODES) == numbers


def test_every_command_is_in_the_reference() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for path, _ in commands():
        assert f"# {' '.join(('holdfast', *path))}\n" in text


# --- Python ---

ENTRIES = [one for part in PARTS for one in entries(part)]


def test_the_page_of_public_names_is_what_the_source_says() -> None:
    assert python_reference.PAGE.read_text(encoding="utf-8") == python_reference.make_page(), "Run `make reference`."


def test_every_public_name_of_the_package_is_on_the_page() -> None:
    parts = {part.title: {one.title for one in entries(part)} for part in PARTS}
    assert parts["holdfast"] | parts["holdfast.errors"] == set(public_names("holdfast"))
    for module in ("events", "presets", "testing", "django", "kinds"):
        assert parts[f"holdfast.{module}"] == set(public_names(f"holdfast.{module}"))


def test_every_name_and_every_method_on_the_page_has_a_docstring() -> None:
    without = [one.title for one in ENTRIES if not doc_of(one.found)]
    for one in ENTRIES:
        if isinstance(one.found.node, ast.ClassDef):
            page = class_page(one.found, HIDDEN.get(one.title, frozenset()))
            without += [f"{one.title}.{method.name}" for method in page.methods if not method.doc]
    assert without == []


def test_every_hidden_member_exists() -> None:
    classes = {one.title: one.found for one in ENTRIES if isinstance(one.found.node, ast.ClassDef)}
    assert {*HIDDEN, *CONSTRUCTED} <= set(classes)
    for name, members in HIDDEN.items():
        page = class_page(classes[name], frozenset())
        shown = {each.name for each in page.attributes} | {each.name for each in page.methods}
        assert members <= shown, f"{name} has no {', '.join(members - shown)}"
