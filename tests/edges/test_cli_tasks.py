"""`holdfast tasks list`: tasks known here, to live workers, or to nobody."""

from pathlib import Path

import pytest
from command_line import Run, Shell
from manual_worker import report_in_now

MODULE = """
from holdfast import App

jobs = App({url!r})

@jobs.task(queue="mails")
def works() -> None: ...

@jobs.task(aliases=["old_name"])
def unused() -> None: ...
"""


def test_each_task_says_who_knows_it(shell: Shell, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder: Path = shell.path.parent
    monkeypatch.chdir(folder)
    (folder / "shop_tasks.py").write_text(MODULE.format(url=shell.url))
    shell.works.enqueue()
    shell.retries.enqueue()
    report_in_now(shell.app, "w1", "works", "elsewhere", queues=("default",))
    found = {each["task"]: each for each in run("tasks", "list", "--json", "--app", "shop_tasks").objects}
    assert {task: (each["here"], each["workers"], each["queued_in"]) for task, each in found.items()} == {
        "elsewhere": (False, ["w1"], []),
        "old_name": (True, [], []),
        "retries": (False, [], ["default"]),
        "unused": (True, [], []),
        "works": (True, ["w1"], ["default"]),
    }
    assert [task for task, each in found.items() if each["known_to_nobody"]] == ["retries"]
    assert found["works"]["queue"] == "mails"
    rows = [" ".join(row.split()) for row in run("tasks", "list", "--app", "shop_tasks").out.splitlines()]
    assert rows == [
        "task queue here workers queued in status",
        "elsewhere no 1 known to workers",
        "old_name alias of unused default yes · no worker, no job",
        "retries no · default known to nobody",
        "unused default yes · no worker, no job",
        "works mails yes 1 default known to workers",
    ]
    shell.works.using(queue="mails").enqueue()
    works = run("tasks", "list", "--app", "shop_tasks").out.splitlines()[-1]
    assert works.endswith("no worker in mails"), "the worker takes from queue default only"


def test_a_task_whose_workers_are_gone_or_stopping_is_not_served(shell: Shell) -> None:
    shell.works.enqueue()
    report_in_now(shell.app, "w1", "works", queues=("default",))
    shell.app.control.stop_worker("w1")
    (task,) = shell("tasks", "list", "--json").objects
    assert (task["workers"], task["known_to_nobody"]) == ([], True)


def test_bare_payloads_have_a_row(shell: Shell) -> None:
    shell.app.queue("scans", int).enqueue(1)
    assert "(bare payloads)" in shell("tasks", "list").out


def test_without_any_task_it_exits_with_4(shell: Shell) -> None:
    assert shell("tasks", "list").code == 4
