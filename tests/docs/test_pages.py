"""The code in README, quickstart and guides is run, block by block.

How a page is read:

* Its `python` blocks run in their order, in one module, in an empty folder. A `text` block right after one is what it
  prints.
* `<!-- file: NAME -->` before a block: it is written to that file in the folder instead. The blocks after it may import
  it, and files named `test_*.py` are given to pytest when the page is over.
* `<!-- skip: REASON -->` before a block: it is compiled and not run.
* In a `console` block, a line that begins with `$ ` is a command, and it must exist.
* The guide on PostgreSQL has a database without a schema of ours, whose address is in `HOLDFAST_URL`. There the `sql`
  blocks are run, each committed.
* The guide on Redis has an empty server, whose address is in `HOLDFAST_URL`. Lines of `redis` blocks are sent to it.

Every Python block is compiled, whatever becomes of it, and a line of a traceback is the line of the page.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable
from unittest.mock import patch

import click
import pytest
from command_line import forget_modules

from holdfast import App
from holdfast.cli.root import root

if TYPE_CHECKING:
    from postgres import PostgresServer

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "quickstart.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"<!-- (file|skip): (.+?) -->\s*\Z")
PROGRAMS = frozenset({"pip", "python", "pytest", "uvicorn"})
"""Beside `holdfast` and `make`, whose arguments are looked at."""


@runtime_checkable
class Disposable(Protocol):
    """An engine of SQLAlchemy's, which keeps connections open."""

    def dispose(self) -> None: ...


class Block(NamedTuple):
    """A fenced block: its language and text, the line where the text begins, and what the mark before it says."""

    language: str
    text: str
    line: int
    file: str = ""
    skip: str = ""
    follows: bool = False
    """Nothing but blank lines stands between it and the block before."""


def blocks(page: str) -> Iterator[Block]:
    end = 0
    for found in FENCE.finditer(page):
        between = page[end : found.start()]
        mark = MARK.search(between)
        options = {mark[1]: mark[2]} if mark else {}
        line = page.count("\n", 0, found.start()) + 2
        yield Block(found[1], found[2], line, follows=end > 0 and not between.strip(), **options)
        end = found.end()


def play(page: Path, folder: Path) -> None:
    """Do what a page says, in this folder; whatever is wrong with it raises."""
    module = sys.modules["page"] = ModuleType("page")
    printed = ""
    try:
        for block in blocks(page.read_text(encoding="utf-8")):
            if block.language == "python":
                code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
                printed = "" if block.skip or block.file else run(code, module)
            elif block.language == "text" and block.follows:
                assert printed == block.text, f"{page.name}, line {block.line}: this was printed:\n{printed}"
            elif block.language == "sql" and not block.skip:
                run_sql(page, block)
            elif block.language == "redis" and not block.skip:
                run_redis(page, block)
            elif block.language == "console":
                check_commands(page, block)
            if block.file:
                write_file(folder, block)
        run_tests(folder)
    finally:
        for value in vars(module).values():
            if isinstance(value, App):
                value.close()
            elif isinstance(value, Disposable) and not isinstance(value, type):
                value.dispose()


def write_file(folder: Path, block: Block) -> None:
    file = folder / block.file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block.text, encoding="utf-8")


def run(code: object, module: ModuleType) -> str:
    """Run a block; answers what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, vars(module))  # type: ignore[arg-type]
    return out.getvalue()


def run_sql(page: Path, block: Block) -> None:
    import psycopg

    with psycopg.connect(os.environ["HOLDFAST_URL"], autocommit=True) as connection:
        try:
            connection.execute(block.text.encode())
        except psycopg.Error as error:
            raise AssertionError(f"{page.name}, line {block.line}: {error}") from error


def run_redis(page: Path, block: Block) -> None:
    import redis

    with redis.Redis.from_url(os.environ["HOLDFAST_URL"]) as client:
        for number, line in enumerate(block.text.splitlines(), start=block.line):
            try:
                client.execute_command(*line.split())
            except redis.ResponseError as error:
                raise AssertionError(f"{page.name}, line {number}: {error}") from error


def run_tests(folder: Path) -> None:
    """The tests that a page shows, as its reader would run them."""
    if not list(folder.glob("test_*.py")):
        return
    installed = any(entry.value == "holdfast.testing.plugin" for entry in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "holdfast.testing.plugin")
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "-p", "no:cacheprovider", "-W", "error"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


# --- Commands ---


def check_commands(page: Path, block: Block) -> None:
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        if line.startswith("$ "):
            try:
                check_command(shlex.split(line.removeprefix("$ "), comments=True))
            except (click.ClickException, LookupError) as error:
                message = error.format_message() if isinstance(error, click.ClickException) else error
                raise AssertionError(f"{page.name}, line {number}: {message}") from error


def check_command(words: list[str]) -> None:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    program, *arguments = words
    if program == "holdfast":
        check_holdfast(arguments)
    elif program == "make":
        made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
        if unknown := set(arguments) - made:
            raise LookupError(f"make knows no {', '.join(sorted(unknown))}")
    elif program not in PROGRAMS:
        raise LookupError(f"{program} is no program of ours")


def check_holdfast(arguments: list[str]) -> None:
    """Parse the command line as `holdfast` does, and stop before anything is done."""
    command: click.Command = root
    # With the settings of a real run: click keeps the option --help in the command, and the reference shows it.
    context = click.Context(root, **root.context_settings)
    while isinstance(command, click.Group):
        name, *arguments = arguments
        found = command.get_command(context, name)
        if found is None:
            raise LookupError(f"there is no command {name}")
        command = found
    command.make_context("holdfast", arguments, parent=context)


# --- The tests ---


def page_of(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "planted.md"
    page.write_text(text, encoding="utf-8")
    return page


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty one, in which a page is played. What the page imports from it or does to the environment is undone."""
    here = tmp_path / "page"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    with patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
            del os.environ[name]
        yield here
    sys.modules.pop("page", None)
    forget_modules(here)


@pytest.fixture
def database(folder: Path, postgres_server: "PostgresServer") -> Iterator[None]:
    """A new one on the run's server, and none of the roles that the page makes."""
    name = f"page_{os.getpid()}"
    postgres_server.execute(f"CREATE DATABASE {name}")
    os.environ["HOLDFAST_URL"] = postgres_server.url(name)
    yield
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    for role in ("shop_owner", "shop_app", "shop_watch"):
        postgres_server.execute(f"DROP ROLE IF EXISTS {role}")


@pytest.fixture
def redis_database(folder: Path) -> Iterator[None]:
    """A server of its own, which the page may empty and configure."""
    from redis_server import AOF_EVERYSEC, private_server

    with private_server(AOF_EVERYSEC) as server:
        os.environ["HOLDFAST_URL"] = server.url()
        yield


@pytest.fixture
def sentry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    """The functions of `sentry_sdk` that the page calls; the SDK itself changes the whole process."""
    captured: list[BaseException] = []
    sdk, integration = ModuleType("sentry_sdk"), ModuleType("sentry_sdk.integrations.logging")
    scope = SimpleNamespace(set_tags=lambda tags: None)
    vars(sdk).update(
        init=lambda dsn: None, isolation_scope=lambda: contextlib.nullcontext(scope), capture_exception=captured.append
    )
    vars(integration).update(ignore_logger=lambda name: None)
    for module in (sdk, ModuleType("sentry_sdk.integrations"), integration):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield captured
    assert [str(error) for error in captured] == ["no address for order 9"]


NEEDED = {"postgresql.md": "database", "redis.md": "redis_database", "error-trackers.md": "sentry"}
"""Pages that need a server or a package."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, folder: Path, request: pytest.FixtureRequest) -> None:
    if page.name in NEEDED:
        request.getfixturevalue(NEEDED[page.name])
    play(page, folder)


def test_the_guide_on_redis_grants_what_the_engine_needs() -> None:
    from holdfast.engines.redis.acl import CLUSTER, SHARDED_CHANNELS, acl_rules

    text = (ROOT / "docs" / "guides" / "redis.md").read_text(encoding="utf-8")
    assert f"ACL SETUSER shop on >change-me {' '.join(acl_rules('holdfast'))}\n" in text
    one_line = " ".join(text.split())
    assert " ".join(f"+{command}" for command in CLUSTER) in one_line
    assert " ".join(f"+{command}" for command in SHARDED_CHANNELS) in one_line


def test_the_project_of_the_django_guide_passes_its_checks_and_tests(folder: Path) -> None:
    page = ROOT / "docs" / "guides" / "django.md"
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.file:
            write_file(folder, block)
    (folder / "shop" / "__init__.py").touch()
    for command in (["check", "--fail-level", "WARNING"], ["test", "shop"]):
        answer = subprocess.run(
            [sys.executable, "-W", "error", "-m", "django", *command],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "DJANGO_SETTINGS_MODULE": "site_settings"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "Ran 2 tests" in answer.stderr


def test_every_guide_has_code_that_runs() -> None:
    without = [
        page.name
        for page in PAGES
        if not any(b.language == "python" and not b.skip for b in blocks(page.read_text(encoding="utf-8")))
    ]
    assert without == []


def test_blocks_share_a_module_and_their_output_is_compared(tmp_path: Path, folder: Path) -> None:
    play(page_of(tmp_path, "```python\na = 3\n```\n\n```python\nprint(a + 1)\n```\n\n```text\n4\n```\n"), folder)


def test_a_file_is_written_and_can_be_imported(tmp_path: Path, folder: Path) -> None:
    text = "<!-- file: jobs.py -->\n```python\nhere = 7\n```\n\n```python\nimport jobs\n\nassert jobs.here == 7\n```\n"
    play(page_of(tmp_path, text), folder)


def test_a_block_that_is_skipped_is_only_compiled(tmp_path: Path, folder: Path) -> None:
    play(page_of(tmp_path, "<!-- skip: needs a printer -->\n```python\nraise SystemExit\n```\n"), folder)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\n1 / 0\n```\n", ZeroDivisionError),
        ("```python\nimport holdfast\n\nholdfast.Apps\n```\n", AttributeError),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", AssertionError),
        ("```python\nprint(1)\n```\n\n```text\n```\n", AssertionError),
        ("<!-- skip: for a reason -->\n```python\nx = \n```\n", SyntaxError),
        ("<!-- file: test_it.py -->\n```python\ndef test_it():\n    assert 1 == 2\n```\n", AssertionError),
        ("```console\n$ holdfast conquer\n```\n", AssertionError),
        ("```console\n$ holdfast jobs list --colour red\n```\n", AssertionError),
        ("```console\n$ holdfast worker jobs again\n```\n", AssertionError),
        ("```console\n$ make coffee\n```\n", AssertionError),
        ("```console\n$ rm -rf jobs.db\n```\n", AssertionError),
    ],
)
def test_a_planted_mistake_is_found(text: str, error: type[Exception], tmp_path: Path, folder: Path) -> None:
    with pytest.raises(error):
        play(page_of(tmp_path, text), folder)


def test_a_traceback_names_the_line_of_the_page(tmp_path: Path, folder: Path) -> None:
    page = page_of(tmp_path, "# Title\n\nWords.\n\n```python\na = 1\nraise ValueError\n```\n")
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - where it comes from is what counts
        play(page, folder)
    assert (str(caught.traceback[-1].path), caught.traceback[-1].lineno + 1) == (str(page), 7)
