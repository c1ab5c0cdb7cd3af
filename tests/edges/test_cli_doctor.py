"""`holdfast doctor`: what it prints, its exit codes, and that it changes nothing."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, Run, Shell, forget_modules

from holdfast import App
from holdfast.cli.doctor import exit_code
from holdfast.cli.tables import LEVEL_STYLES
from holdfast.model.findings import CONNECTION, DURABILITY, QUEUES, Finding, Level

SHOP = """
from holdfast import App

jobs = App({url!r})

@jobs.task(timeout=60)
def slow() -> None: ...
"""


def levels(answer: Answer) -> dict[str, str]:
    """The level of each check; of several findings the last one."""
    return {finding["check"]: finding["level"] for finding in answer.objects}


def test_json_has_one_object_per_finding(shell: Shell) -> None:
    answer = shell("doctor", "--json")
    assert answer.code == 0, answer.out
    for finding in answer.objects:
        assert set(finding) == {"check", "level", "found", "advice"}
        assert finding["level"] in {"ok", "note", "warning", "problem"}
        assert finding["found"]
        assert finding["advice"] or finding["level"] in ("ok", "note")


def test_people_get_a_table_and_a_summary(shell: Shell) -> None:
    shell.works.enqueue()
    answer = shell("doctor")
    assert answer.code == 1
    lines = answer.out.splitlines()
    assert lines[0].split() == ["level", "check", "found"]
    assert any(line.split()[:2] == ["problem", "workers"] for line in lines if line)
    assert any("→ Start one: holdfast worker" in line for line in lines)
    assert lines[-1].startswith("1 problem, ")


def test_people_get_the_worst_findings_first(shell: Shell) -> None:
    shell.works.enqueue()
    shell.app.control.pause("default")
    found = [line.split()[0] for line in shell("doctor").out.splitlines() if line and line[0] != " "][1:-1]
    order = [level.value for level in reversed(Level)]
    assert found == sorted(found, key=order.index)
    assert found[0] == "problem"


def test_without_a_store_it_says_so_checks_the_rest_and_makes_nothing(run: Run, tmp_path: Path) -> None:
    answer = run("doctor", "--json", "--url", f"sqlite:///{tmp_path}/none.db")
    assert answer.code == 3
    assert levels(answer)["connection"] == "problem"
    assert levels(answer)["disk_space"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_warning_alone_fails_only_if_asked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/jobs.db"
    Path("shop.py").write_text(SHOP.format(url=url))
    App[Any](url).migrate()
    answer = run("doctor", "--json", "--app", "shop")
    assert (answer.code, levels(answer)["timeout"], levels(answer)["grace"]) == (0, "warning", "warning")
    forget_modules(tmp_path)
    assert run("doctor", "--app", "shop", "--strict").code == 1


@pytest.mark.parametrize(
    ("findings", "strict", "code"),
    [
        ([], False, 0),
        ([DURABILITY.ok("x"), QUEUES.note("x")], True, 0),
        ([QUEUES.warning("x", "y")], False, 0),
        ([QUEUES.warning("x", "y")], True, 1),
        ([QUEUES.problem("x", "y")], False, 1),
        ([QUEUES.problem("x", "y"), CONNECTION.problem("x", "y")], False, 3),
        ([CONNECTION.ok("x")], False, 0),
    ],
)
def test_the_exit_code_follows_from_the_findings(findings: list[Finding], strict: bool, code: int) -> None:
    assert exit_code(findings, strict=strict) == code


def test_a_wrong_setting_is_an_error_of_usage(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_WORKER_GRACE", "soon")
    answer = run("doctor", "--url", "memory://")
    assert (answer.code, "HOLDFAST_WORKER_GRACE" in answer.err) == (2, True)


def test_debugging_is_noted_by_a_real_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    App[Any](url).migrate()
    answer = subprocess.run(
        [sys.executable, "-m", "holdfast", "doctor", "--url", url],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_DEBUG": "1"},
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "HOLDFAST_DEBUG is set" in answer.stdout


def test_names_from_the_store_cannot_send_control_characters(shell: Shell) -> None:
    shell.app.control.pause("red \x1b[31m")
    answer = shell("doctor")
    assert "\x1b" not in answer.out
    assert "red \\x1b[31m" in answer.out


def test_every_level_has_a_colour() -> None:
    assert set(LEVEL_STYLES) == set(Level)
