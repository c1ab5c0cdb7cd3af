"""No command prints the password of a store: not in its output, not in an error while the server is down."""

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest
from command_line import Run, forget_modules
from tools.reference import commands

PASSWORD = "s3cret-of-the-store"
ARGUMENTS = {
    "enqueue": ["work"],
    "why": ["some-job"],
    "jobs cancel": ["--all", "--yes"],
    "jobs delete": ["--all", "--yes"],
    "jobs report": ["some-job"],
    "jobs requeue": ["--all", "--yes"],
    "jobs show": ["some-job"],
    "jobs trigger": ["--all", "--yes"],
    "queues clear": ["default", "--yes"],
    "queues pause": ["default"],
    "queues remove": ["default", "--yes"],
    "queues resume": ["default"],
    "pools resize": ["ledger", "3"],
    "workers stop": ["some-worker"],
    "worker": ["--until-empty", "--lines"],
    "top": ["--once", "--interval", "10ms"],
    "events": ["--job", "some-job"],
    "completion": ["bash"],
    "file compact": ["nowhere"],
    "file inspect": ["nowhere"],
}
NO_STORE = {"demo", "manager"}
"""`demo` has a store of its own; a manager starts workers, which are tested here."""
COMMANDS = [
    " ".join(path)
    for path, context in commands()
    if not isinstance(context.command, click.Group) and " ".join(path) not in NO_STORE
]


SHOP = "from holdfast import App\njobs = App()\n@jobs.task\ndef work() -> None: ...\n"


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which no server listens: it is bound, and refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_the_password_of_a_server_that_is_down(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int, command: str, scheme: str
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_APP", "shop")
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    monkeypatch.setenv("HOLDFAST_URL", f"{scheme}://me:{PASSWORD}@127.0.0.1:{closed_port}/0?connect_timeout=1")
    answer = run(*command.split(), *ARGUMENTS.get(command, []))
    assert PASSWORD not in answer.out + answer.err
    if command not in ("config", "completion", "file compact", "file inspect"):
        assert answer.code == 3, answer.err


@pytest.mark.parametrize("engine", ["postgres", "redis"])
def test_no_command_prints_the_password_of_a_store_that_it_uses(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, engine: str
) -> None:
    store = request.getfixturevalue(f"{engine}_store")()
    password = urlsplit(store.url).password
    assert password, "the server of the tests has a password"
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_APP", "shop")
    monkeypatch.setenv("HOLDFAST_URL", store.url)
    monkeypatch.setenv("HOLDFAST_NAMESPACE", store.namespace)
    more = ["--json"] if engine == "redis" else []
    for command in COMMANDS:
        forget_modules(tmp_path)
        answer = run(*command.split(), *ARGUMENTS.get(command, []), *more)
        assert password not in answer.out + answer.err, command
        assert answer.code in (0, 1, 4), (command, answer.err)
