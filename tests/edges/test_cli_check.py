"""`holdfast check`: the code of the next release against the stored jobs, before it is deployed."""

import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Run
from rich.console import Console

from holdfast import App
from holdfast.cli import progress

NEXT = """
from holdfast import App
jobs = App("sqlite:///{folder}/jobs.db")

@jobs.task(aliases=["mail"])
def send(to: str) -> None: ...
"""


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App[Any]:
    """The App of the release that runs now; the module of the next one is in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "next_release.py").write_text(NEXT.format(folder=tmp_path))
    return App(f"sqlite:///{tmp_path}/jobs.db")


def enqueue(app: App[Any], name: str, *args: object, **options: Any) -> None:
    with app:
        app.client.task(name).using(**options).enqueue(*args)


def test_all_jobs_fit(run: Run, first: App[Any]) -> None:
    enqueue(first, "mail", "me")
    enqueue(first, "send", "me")
    answer = run("check", "--app", "next_release")
    assert (answer.code, answer.out) == (0, "2 jobs checked: all fit.\n")
    answer = run("check", "--app", "next_release", "--json")
    assert (answer.code, answer.objects) == (0, [{"kind": "summary", "checked": 2, "misfits": 0, "fits": True}])


def test_jobs_that_cannot_be_run_are_listed_with_their_ids(run: Run, first: App[Any]) -> None:
    enqueue(first, "mail", 7, id="seven")
    for number in range(4):
        enqueue(first, "gone\x1b[31m", id=f"gone-{number}")
    answer = run("check", "--app", "next_release")
    assert answer.code == 1
    header, gone, seven, _, verdict = answer.out.splitlines()
    assert header.split() == ["jobs", "task", "problem", "jobs,", "for", "example"]
    assert gone.split()[:2] == ["4", r"gone\x1b[31m"]
    assert "gone-3 gone-2 gone-1 …" in gone
    assert seven.split()[:2] == ["1", "mail"]
    assert seven.endswith("  seven")
    assert verdict == "5 jobs checked: 5 cannot be run by this code."

    answer = run("check", "--app", "next_release", "--json")
    assert answer.code == 1
    problem, other, summary = answer.objects
    assert (problem["kind"], problem["reason"], problem["jobs"], problem["task"]) == (
        "problem",
        "unknown_task",
        4,
        "gone\x1b[31m",
    )
    assert (other["reason"], other["field"]) == ("does_not_fit", "to")
    assert other["examples"] == [{"queue": "default", "id": "seven"}]
    assert summary == {"kind": "summary", "checked": 5, "misfits": 5, "fits": False}


def test_only_the_named_queues_are_checked(run: Run, first: App[Any]) -> None:
    enqueue(first, "gone", queue="others")
    enqueue(first, "mail", "me")
    assert run("check", "--app", "next_release", "--queue", "default").code == 0
    assert run("check", "--app", "next_release", "--queue", "default", "--queue", "others").code == 1
    answer = run("check", "--app", "next_release", "--queue", "other")
    assert (answer.code, answer.err) == (4, "holdfast: There is no queue 'other'. Did you mean 'others'?\n")


def test_what_cannot_be_checked_is_refused(run: Run, first: App[Any], tmp_path: Path) -> None:
    answer = run("check", "--app", "next_release")
    assert (answer.code, "There is no store at" in answer.err) == (3, True)
    assert not (tmp_path / "jobs.db").exists()
    (tmp_path / "in_memory.py").write_text("from holdfast import App\njobs = App('memory://')\n")
    assert run("check", "--app", "in_memory").code == 2
    assert run("check").code == 2


def test_a_progress_bar_is_shown_on_a_terminal_and_for_many(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress.ProgressBar("Checking") as bar:
        bar(10, progress.MIN_TOTAL)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(stderr=stderr, force_terminal=True, width=80))
    with progress.ProgressBar("Checking") as bar:
        bar(10, progress.MIN_TOTAL - 1)
    assert capsys.readouterr().err == ""
    with progress.ProgressBar("Checking") as bar:
        bar(10, progress.MIN_TOTAL)
        bar(progress.MIN_TOTAL, progress.MIN_TOTAL)
    shown = capsys.readouterr().err
    assert "Checking" in shown
    assert "5000/5000" in shown
