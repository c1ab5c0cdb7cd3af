"""`--watch` on a real terminal and in a pipe, and colours only where they belong."""

import os
import re
import subprocess
import sys
from typing import Any

import pytest
from command_line import Shell
from terminal import on_terminal

from holdfast.cli.exits import NothingMatched
from holdfast.cli.options import Store
from holdfast.cli.target import TargetApp
from holdfast.cli.watch import again, present
from holdfast.control import Control
from holdfast.errors import EngineUnavailable


def test_a_watched_list_is_refreshed_until_ctrl_c(shell: Shell) -> None:
    shell.works.using(id="first-job").enqueue()
    with on_terminal("jobs", "list", "--watch", "--interval", "0.1", "--url", shell.url, cwd=shell.path.parent) as t:
        t.wait_for("first-job")
        shell.works.using(id="second-job").enqueue()
        t.wait_for("second-job")
        t.type("\x03")
        assert t.end() == 130
    assert "\x1b[" in t.raw
    assert "Traceback" not in t.text


def test_no_colour_is_used_with_no_color(shell: Shell) -> None:
    shell.gives_up.using(id="one").enqueue()
    shell.work()
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with on_terminal("jobs", "list", "--url", shell.url, cwd=shell.path.parent, **environment) as terminal:
            assert terminal.end() == 0
        assert ("\x1b[31m" in terminal.raw) == coloured, terminal.raw


def test_a_pipe_gets_no_escapes(shell: Shell) -> None:
    shell.gives_up.using(id="one").enqueue()
    shell.work()
    command = [sys.executable, "-m", "holdfast", "jobs", "list", "--url", shell.url]
    environment = {**os.environ, "TERM": "xterm-256color"}
    output = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    assert "one" in output
    assert "\x1b" not in output


# --- In this process ---


class Ended(Exception):
    pass


@pytest.mark.parametrize("as_json", [True, False])
def test_what_matches_nothing_now_is_read_again(
    shell: Shell, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """Without a terminal the answers follow each other. A store that is gone for a moment is named, and not the end."""
    problems = [NothingMatched("Nothing yet."), EngineUnavailable("The store is gone."), None, Ended()]

    def answer() -> str:
        problem = problems.pop(0)
        if problem is not None:
            raise problem
        return "found"

    with pytest.raises(Ended):
        present(Store(TargetApp(shell.app), as_json), answer, lambda: print(answer()), interval_s=0.001)
    out, err = capsys.readouterr()
    assert out == ("found\n" if as_json else "Nothing yet.\nfound\n")
    assert err == "holdfast: The store is gone.\n"


def test_once_nothing_is_the_end_of_the_command(shell: Shell) -> None:
    def nothing() -> str:
        raise NothingMatched("Nothing.")

    with pytest.raises(NothingMatched):
        present(Store(TargetApp(shell.app), False), nothing, lambda: None, interval_s=None)


def test_a_view_that_cannot_be_refreshed_stays_with_the_reason(shell: Shell) -> None:
    def gone() -> str:
        raise EngineUnavailable("The store is gone.")

    once = again(gone, "the last view")
    twice = again(gone, once)
    assert [str(part) for part in twice.renderables] == [  # type: ignore[union-attr]
        "the last view",
        "",
        "Not refreshed: The store is gone.",
    ]
    assert again(lambda: "new", twice) == "new"


def test_an_interval_that_would_load_the_store_is_refused(shell: Shell) -> None:
    for command in (["jobs", "list", "--watch"], ["top"]):
        answer = shell(*command, "--interval", "1ms")
        assert (answer.code, "each refresh reads the store" in answer.err) == (2, True)


# --- Progress ---


def test_many_jobs_have_a_progress_bar_on_a_terminal(shell: Shell) -> None:
    for _ in range(60):
        shell.works.enqueue()
    with on_terminal("jobs", "cancel", "--all", "--yes", "--url", shell.url, cwd=shell.path.parent) as terminal:
        assert terminal.end() == 0
    assert re.search(r"cancel .* \d+/60", terminal.text)
    assert terminal.text.rstrip().endswith("cancelled  60 jobs")


def test_a_pipe_gets_no_progress_bar(shell: Shell) -> None:
    for _ in range(60):
        shell.works.enqueue()
    answer = shell("jobs", "cancel", "--all", "--yes")
    assert (answer.out, answer.err) == ("cancelled  60 jobs\n", "")


def test_ctrl_c_in_the_middle_says_how_many_were_changed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        shell.works.enqueue()
    calls, acancel = [0], Control.acancel

    async def interrupted(control: Control, job_id: str, /, *, queue: str | None = None, reason: str = "") -> Any:
        calls[0] += 1
        if calls[0] == 4:
            raise KeyboardInterrupt
        return await acancel(control, job_id, queue=queue, reason=reason)

    monkeypatch.setattr(Control, "acancel", interrupted)
    answer = shell("jobs", "cancel", "--all", "--yes")
    assert (answer.code, answer.out) == (130, "")
    assert "Stopped: 3 of 5 jobs were cancelled; the next one may be, too." in answer.err
