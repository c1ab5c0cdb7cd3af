"""Advice of a command names the command as it must be typed here: with this App, this store and this program."""

import shlex
from pathlib import Path

import pytest
from command_line import Run, Shell
from manual_worker import take_now

from holdfast.cli import main

SHOP = """
from holdfast import App
jobs = App("sqlite:jobs.db")

@jobs.task(queue="emails")
def send() -> None: ...
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def advice_on_workers(run: Run, *options: str) -> str:
    found = run("doctor", "--json", *options).objects
    return str(next(finding["advice"] for finding in found if finding["check"] == "workers"))


def test_doctor_advises_a_worker_for_the_app_in_use(run: Run, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("migrate", "--app", "shop")
    assert advice_on_workers(run, "--url", "sqlite:jobs.db") == "Start one: holdfast worker MODULE"
    assert advice_on_workers(run, "--app", "shop") == "Start one: holdfast worker shop"
    monkeypatch.setenv("HOLDFAST_APP", "shop")
    assert advice_on_workers(run) == "Start one: holdfast worker"


def test_why_advises_a_worker_for_the_app_in_use(run: Run, shop: Path) -> None:
    run("enqueue", "send", "--app", "shop", "--id", "one")
    for options, command in (["--app", "shop"], "shop"), (["--url", "sqlite:jobs.db"], "MODULE"):
        (obstacle,) = run("why", "one", "--json", *options).objects[0]["obstacles"]
        assert obstacle["ends"] == f"when a worker starts: holdfast worker {command}"


@pytest.mark.parametrize(
    ("command", "advised"),
    [
        (["status", "--app", "shop"], "holdfast migrate --app shop"),
        (["worker", "shop"], "holdfast migrate --app shop"),
        (["status", "--url", "sqlite:jobs.db"], "holdfast migrate --url sqlite:jobs.db"),
        (["status", "--url", "env:STORE", "--namespace", "a"], "holdfast migrate --url env:STORE --namespace a"),
    ],
)
def test_a_store_without_tables_names_the_whole_command(
    run: Run, shop: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], advised: str
) -> None:
    (shop / "jobs.db").touch()
    run("migrate", "--url", "sqlite:jobs.db", "--namespace", "other")
    monkeypatch.setenv("HOLDFAST_AUTO_MIGRATE", "false")
    monkeypatch.setenv("STORE", "sqlite:jobs.db")
    answer = run(*command)
    assert answer.code == 2
    assert answer.err.rstrip().endswith(f"Run: {advised}")
    assert run(*advised.split()[1:]).code == 0


def test_advice_repeats_a_path_with_backslashes_and_quotes(
    run: Run, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = r"sqlite:a\1\g it's.db"
    run("migrate", "--url", url, "--namespace", "other")
    monkeypatch.setenv("HOLDFAST_AUTO_MIGRATE", "false")
    advised = run("status", "--url", url).err.partition("Run: ")[2]
    assert shlex.split(advised) == ["holdfast", "migrate", "--url", url]


@pytest.mark.parametrize(
    ("queue", "options", "message"),
    [
        ("nope", ["--until-empty"], "holdfast: There is no queue 'nope'.\n"),
        ("email", ["--until-empty"], "holdfast: There is no queue 'email'. Did you mean 'emails'?\n"),
        ("emails", ["--until-empty"], ""),
        ("email", ["--max-jobs", "1"], "holdfast: There is no queue 'email'. Did you mean 'emails'?\n"),
        ("nope", ["--max-jobs", "1"], ""),
    ],
)
def test_a_worker_of_an_unknown_queue_says_so(
    run: Run, shop: Path, monkeypatch: pytest.MonkeyPatch, queue: str, options: list[str], message: str
) -> None:
    monkeypatch.setattr("holdfast.worker.Worker.run", lambda _: None)
    answer = run("worker", "shop", "-q", queue, "--log-format", "none", "--no-lines", *options)
    assert (answer.code, answer.err) == (0, message)


@pytest.mark.parametrize("command", [[], ["worker"], ["jobs"], ["jobs", "show"], ["check"]])
def test_the_help_of_an_embedded_command_line_has_its_own_examples(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--help"], program="manage.py holdfast")
    examples = [line.strip() for line in capsys.readouterr().out.rpartition("Example")[2].splitlines()[1:]]
    assert examples
    assert all(line.startswith("manage.py holdfast ") and "shop.jobs" not in line for line in examples)
    assert len({*examples}) == len(examples)
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    assert "manage.py" not in capsys.readouterr().out


def test_a_running_job_whose_cancel_was_requested_says_so(shell: Shell) -> None:
    shell.works.using(id="one").enqueue()
    take_now(shell.app, shell.works)
    assert "cancel" not in shell("jobs", "show", "one").out
    assert shell("jobs", "show", "one", "--json").objects[0]["cancel_requested"] is False
    shell.app.control.cancel("one")
    assert "cancel      requested: its worker stops it" in shell("jobs", "show", "one").out
    assert shell("jobs", "show", "one", "--json").objects[0]["cancel_requested"] is True


def test_a_list_that_was_cut_says_its_order(shell: Shell) -> None:
    for _ in range(3):
        shell.works.enqueue()
    assert "These are the first 2, by queue and state, the newest first." in shell("jobs", "list", "--limit", "2").err
