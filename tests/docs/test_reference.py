"""`docs/reference/cli.md` is what `make reference` makes, and the tables that it is made from are complete."""

import ast
from pathlib import Path

import click
import pytest
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
