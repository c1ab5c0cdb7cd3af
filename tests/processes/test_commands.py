"""Every command through a real process: `python -m holdfast …` on one SQLite store; then with `--json`.

The JSON of a command that ends by itself is printed in the process of the test, because a start of Python takes most
of the time; `make chaos` runs it in a process of its own. A new command needs a row in ROWS. Details of a command are
tested in `tests/edges/test_cli_*.py`.
"""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from command_line import Answer, forget_modules, run_command
from due_worker import DueWorker
from tools.reference import commands

from holdfast import App, GiveUp
from holdfast.cli.root import root

CLOSED_STREAMS = """
import os
from holdfast import App
jobs = App("sqlite:jobs.db")
with open("streams", "w") as file:
    file.write(" ".join(os.readlink(f"/proc/self/fd/{number}") for number in range(3)))
"""
SHOP = """
from holdfast import App, GiveUp
jobs = App("sqlite:jobs.db")
ledger = jobs.pool("ledger", int, lanes=4)

@jobs.task
def add(one: int, two: int = 0) -> int:
    return one + two

@jobs.task(queue="idle")
def never() -> None: ...

@ledger.handler
def book(amount: int) -> None: ...
"""


@dataclass(frozen=True)
class Row:
    """Arguments, what standard output must contain, and a field of the first JSON object. MODE is one of MODES.

    Without a field, the command prints no JSON.
    """

    arguments: str = ""
    text: str = ""
    field: str = ""
    code: int = 0
    stop: signal.Signals | None = None
    """Sent after the first line of output, to a command that does not end by itself."""


MODES = ("text", "json", "process")
"""Text; JSON in the process of the test; JSON in a process of its own. Each has jobs of its own to work on."""
ROWS: dict[str, Row] = {
    "worker": Row("shop -q idle --until-empty --lines --log-format none", "worker", "event"),
    "enqueue": Row("add 1 two=2 --id enqueued-MODE --queue later", "enqueued-text  created", "receipt"),
    "status": Row("", "default", "engine"),
    "why": Row("waits-MODE", "waits-text", "id"),
    "jobs cancel": Row("cancel-MODE --yes", "cancelled", "answer"),
    "jobs delete": Row("delete-MODE --yes", "deleted", "answer"),
    "jobs list": Row("--queue default", "waits-text", "id"),
    "jobs report": Row("done", "succeeded", "job"),
    "jobs requeue": Row("requeue-MODE", "requeued", "answer"),
    "jobs show": Row("done", "succeeded", "id"),
    "jobs trigger": Row("trigger-MODE", "triggered", "answer"),
    "dead": Row("", "failed", "id"),
    "queues clear": Row("clear-MODE --yes", "1 job cancelled", "count"),
    "queues list": Row("", "default", "queue"),
    "queues pause": Row("pause-MODE", "paused", "paused"),
    "queues remove": Row("remove-MODE --yes", "removed", "removed"),
    "queues resume": Row("resume-MODE", "resumed", "paused"),
    "pools list": Row("", "ledger", "name"),
    "pools resize": Row("ledger 8", "8 lanes", "lanes"),
    "tasks list": Row("", "never", "task"),
    "workers list": Row("", "steady", "name"),
    "workers stop": Row("stop-MODE", "stopping", "stopping"),
    "top": Row("--once --interval 100ms", "default", "queues"),
    "events": Row("--job done", "succeeded", "event"),
    "check": Row("--app shop", "all fit", "checked"),
    "migrate": Row("", "is up to date", "step"),
    "config": Row("shop", "worker.concurrency", "key"),
    "doctor": Row("", "store", "level", code=1),
    "manager": Row("shop --min 1 --max 1 -q soon --lines --log-format none", "manager", "event", stop=signal.SIGTERM),
    "file compact": Row("files", "bytes now", "bytes_after"),
    "file inspect": Row("files", "Nothing is damaged.", "kind"),
    "completion": Row("bash", "_holdfast_completion", "script"),
    "demo": Row("--help", "killed worker"),  # it takes long: see edges/test_demo.py
}


def leaves() -> list[str]:
    """Every command that is no group of others."""
    return [" ".join(path) for path, context in commands() if not isinstance(context.command, click.Group)]


def test_every_command_has_a_row() -> None:
    assert sorted(ROWS) == sorted(leaves())


def make_store(app: App[Any]) -> None:
    """Jobs in all states, for each command those that it needs. Each is there once for each mode."""

    @app.task
    def add(one: int, two: int = 0) -> int:
        if one < 0:
            raise GiveUp("negative")
        return one + two

    add.using(id="done").enqueue(1)
    for mode in MODES:
        for verb in ("delete", "requeue"):
            add.using(id=f"{verb}-{mode}").enqueue(-1 if verb == "requeue" else 1)
        add.using(id=f"empty-{mode}", queue=f"remove-{mode}").enqueue(1)
    add.using(id="dead").enqueue(-1)
    DueWorker(app).run()
    for mode in MODES:
        app.control.cancel(f"empty-{mode}")
        app.control.delete(f"empty-{mode}", queue=f"remove-{mode}")
        add.using(id=f"trigger-{mode}", delay=3600).enqueue(1)
        for id, queue in [
            (f"cancel-{mode}", "default"),
            (f"waits-{mode}", "default"),
            (f"clear-{mode}", f"clear-{mode}"),
            (f"pause-{mode}", f"pause-{mode}"),
            (f"resume-{mode}", f"resume-{mode}"),
        ]:
            add.using(id=id, queue=queue).enqueue(1)
        app.control.pause(f"resume-{mode}")
    app.pool("ledger", int, lanes=4).enqueue(1, key="ada")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a module, two stores and live workers. No test needs what another one changes."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(SHOP)
    with App(f"file://{folder}/files") as files:
        files.control.pause("any")
    app = App[Any](f"sqlite:///{folder}/jobs.db")
    with app:
        make_store(app)
        with ExitStack() as workers:
            for name in ("steady", *(f"stop-{mode}" for mode in MODES)):
                workers.enter_context(app.worker(queues=["idle"], name=name))
            yield folder


@pytest.fixture(autouse=True)
def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOLDFAST_APP", "shop")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    forget_modules(folder)


def arguments_of(command: str, row: Row, mode: str) -> list[str]:
    arguments = [*command.split(), *shlex.split(row.arguments.replace("MODE", mode))]
    return [*arguments, "--json"] if mode != "text" else arguments


def run_process(arguments: list[str], stop: signal.Signals | None) -> Answer:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        first = ""
        if stop is not None:
            assert process.stdout is not None
            first = process.stdout.readline()
            process.send_signal(stop)
        out, err = process.communicate(timeout=100)
    return Answer(process.returncode, first + out, err)


@pytest.mark.parametrize("command", ROWS)
def test_a_command_prints_text_and_exits_with_its_code(command: str) -> None:
    row = ROWS[command]
    answer = run_process(arguments_of(command, row, "text"), row.stop)
    assert (answer.code, answer.err) == (row.code, "")
    assert row.text in answer.out


@pytest.mark.parametrize("command", [command for command, row in ROWS.items() if row.field])
def test_a_command_prints_one_json_object_per_line(capsys: pytest.CaptureFixture[str], command: str) -> None:
    row = ROWS[command]
    arguments = arguments_of(command, row, "json")
    answer = run_command(capsys, *arguments) if row.stop is None else run_process(arguments, row.stop)
    check_json(command, row, answer)


@pytest.mark.chaos
@pytest.mark.parametrize("command", [command for command, row in ROWS.items() if row.field and row.stop is None])
def test_a_process_prints_one_json_object_per_line(command: str) -> None:
    row = ROWS[command]
    check_json(command, row, run_process(arguments_of(command, row, "process"), None))


def check_json(command: str, row: Row, answer: Answer) -> None:
    assert (answer.code, answer.err) == (row.code, "")
    assert all(isinstance(each, dict) for each in answer.objects)
    if answer.objects or command != "migrate":  # nothing to do is no line
        assert row.field in answer.objects[0]


# --- Examples ---


EXAMPLES = [
    (path, line.strip())
    for path, context in commands()
    for line in (context.command.epilog or "").splitlines()
    if line.strip().startswith("holdfast ")
]


@pytest.mark.parametrize(("path", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_an_example_is_a_command_line_that_click_accepts(path: tuple[str, ...], line: str) -> None:
    words = shlex.split(re.sub(r" > \S+$", "", line), comments=True)[1:]
    command: click.Command = root
    context = click.Context(root, **root.context_settings)
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]}"
        command, words = found, words[1:]
        if isinstance(command, click.Group):
            context = click.Context(command, parent=context)
    command.make_context(command.name, words, parent=context)  # parses, and does not run


def test_a_worker_with_closed_streams_works(tmp_path: Path) -> None:
    """And no file of the store gets the number of one, where a program that a handler starts would write."""
    (tmp_path / "shop.py").write_text(CLOSED_STREAMS)
    argv = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-m", "holdfast", "worker", "shop"]
    ended = subprocess.run([*argv, "--until-empty"], cwd=tmp_path, timeout=60, check=False)
    assert ended.returncode == 0
    assert (tmp_path / "streams").read_text() == "/dev/null /dev/null /dev/null"
