"""`holdfast worker` as a process: banner, lines, log, signals. The tests wait for its lines, never for the clock."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import App

PATIENCE = 60.0
"""Seconds after which a process that hangs is killed, and its test fails."""

SHOP = """
import asyncio
from holdfast import App, Context, GiveUp

jobs = App("sqlite:///jobs.db")

@jobs.task
async def double(number: int) -> int:
    return number * 2

@jobs.task(backoff=0.01)
async def flaky(ctx: Context) -> None:
    if ctx.attempt < 3:
        raise ConnectionError("not yet")

@jobs.task(queue="mails", lease=60)
async def gives_up(why: str) -> None:
    raise GiveUp(why)

@jobs.task
async def hangs() -> None:
    await asyncio.sleep(3600)
"""


class Process:
    """A command in a process group of its own, as a shell starts it. Its output is one pipe, or one terminal."""

    def __init__(self, folder: Path, *args: str, terminal: bool = False, **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        env = {**kept, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", **environment}
        ours, theirs = pty.openpty() if terminal else os.pipe()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *args],
            cwd=folder,
            env=env,
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(theirs)
        self._output = os.fdopen(ours, "rb", buffering=0)
        self._rest = b""
        self.lines: list[str] = []
        self._guard = threading.Timer(PATIENCE, self._child.kill)
        self._guard.start()

    def line(self, *words: str) -> str:
        """The next line with all these words in it."""
        while (line := self._next()) is not None:
            if all(word in line for word in words):
                return line
        raise AssertionError(f"No line with {words} came:\n" + "\n".join(self.lines))

    def _next(self) -> str | None:
        while b"\n" not in self._rest:
            try:
                more = os.read(self._output.fileno(), 65_536)
            except OSError:  # a terminal whose last process has ended
                more = b""
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        self.lines.append(line.decode().rstrip("\r"))
        return self.lines[-1]

    def interrupt(self) -> None:
        """Ctrl-C: the signal goes to the whole group."""
        os.killpg(self._child.pid, signal.SIGINT)

    def terminate(self) -> None:
        self._child.terminate()

    def kill(self) -> None:
        self._child.kill()

    def type(self, text: str) -> None:
        os.write(self._output.fileno(), text.encode())

    def ended(self) -> int:
        """Its exit code, with all its lines read."""
        while self._next() is not None:
            pass
        return self._child.wait()

    def close(self) -> None:
        self._guard.cancel()
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        self._output.close()


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "shop.py").write_text(SHOP)
    made: list[Process] = []

    def start(*args: str, **options: Any) -> Process:
        made.append(Process(tmp_path, *args, **options))
        return made[-1]

    yield start
    for process in made:
        process.close()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[App[Any]]:
    """The same store from here."""
    with App[Any](f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


# --- Output ---


def test_the_banner_names_worker_store_tasks_queues_and_how_to_stop(start: Start, tmp_path: Path) -> None:
    worker = start("worker", "shop", "--lines", "--name", "ada", "-c", "7")
    worker.line("ready")
    worker.interrupt()
    assert worker.ended() == 0
    first, store, tasks, queues, ready = worker.lines[:5]
    assert first.startswith(f"holdfast {holdfast.__version__} · worker ada-")
    assert first.endswith(" · app shop:jobs")
    assert store == f"store    sqlite  {tmp_path / 'jobs.db'}   created · durable (every commit synced)"
    assert tasks == "tasks    double  flaky  gives_up  hangs"
    assert queues == "queues   default  mails · 7 slots · leases 30 s to 60 s"
    assert ready == "ready    Ctrl-C stops gently, twice stops now"


def test_every_change_of_a_job_is_an_aligned_line(start: Start, jobs: App[Any]) -> None:
    jobs.client.task("flaky").using(id="often").enqueue()
    jobs.client.task("gives_up").using(id="never", queue="mails").enqueue("card expired")
    worker = start("worker", "shop", "--lines")
    worker.line("often", "succeeded")
    worker.interrupt()
    assert worker.ended() == 0
    printed = [line for line in worker.lines if "often" in line]
    assert [line.split()[3] for line in printed] == ["started", "retrying"] * 2 + ["started", "succeeded"]
    assert "ConnectionError: not yet   (attempt 1 of 20)" in printed[1]
    assert printed[-1].endswith("attempt 3")
    assert len({line.index(line.split()[3]) for line in printed}) == 1
    (failed,) = [line for line in worker.lines if "never" in line and "failed" in line]
    assert failed.endswith("GiveUp: card expired")
    assert not any(level in line for line in worker.lines for level in ("WARNING", "ERROR")), (
        "an event with a line is not logged again"
    )


def test_without_a_terminal_it_logs_and_prints_no_lines(start: Start, jobs: App[Any]) -> None:
    jobs.client.task("gives_up").using(id="never", queue="mails").enqueue("card expired")
    worker = start("worker", "shop", "--until-empty")
    worker.line("ERROR", "never", "card expired")
    assert worker.ended() == 0
    assert not any(line.startswith(("holdfast ", "ready")) for line in worker.lines)


@pytest.mark.parametrize("mode", ["--lines", "--no-lines"])
def test_a_final_failure_is_printed_with_its_traceback(start: Start, jobs: App[Any], mode: str) -> None:
    jobs.client.task("flaky").using(id="never", max_attempts=1).enqueue()
    worker = start("worker", "shop", "--until-empty", mode)
    worker.line("never", "failed", "ConnectionError", "not yet")
    worker.line("shop.py", "in flaky")
    worker.line('raise ConnectionError("not yet")')
    assert worker.ended() == 0


def test_on_a_terminal_it_prints_lines_in_colour(start: Start, jobs: App[Any]) -> None:
    jobs.client.task("double").using(id="one").enqueue(1)
    worker = start("worker", "shop", "--until-empty", terminal=True)
    assert "\x1b[" in worker.line("one", "succeeded")
    assert worker.ended() == 0


def test_no_color_is_respected(start: Start, jobs: App[Any]) -> None:
    jobs.client.task("double").using(id="one").enqueue(1)
    worker = start("worker", "shop", "--until-empty", terminal=True, NO_COLOR="1")
    worker.line("one", "succeeded")
    assert worker.ended() == 0
    assert "\x1b" not in "".join(worker.lines)


def test_stored_text_cannot_control_the_terminal(start: Start, jobs: App[Any]) -> None:
    jobs.client.task("gives_up").using(id="evil\x1b[2J", queue="mails").enqueue("\x1b]0;owned\x07")
    for mode in ("--lines", "--no-lines"):
        worker = start("worker", "shop", "--until-empty", mode)
        assert worker.ended() == 0
        assert all(line.isprintable() for line in worker.lines)
        jobs.control.requeue(all_failed=True)


def test_as_json_every_event_is_an_object(start: Start, jobs: App[Any]) -> None:
    jobs.client.task("double").using(id="one").enqueue(1)
    worker = start("worker", "shop", "--until-empty", "--json")
    assert worker.ended() == 0
    objects = [json.loads(line) for line in worker.lines]
    assert [event["event"] for event in objects] == [
        *("WorkerStarted", "Started", "Succeeded", "WorkerStopping", "WorkerStopped")
    ]
    assert (objects[1]["job_id"], objects[1]["task"], objects[1]["attempt"]) == ("one", "double", 1)


def test_a_limit_of_slots_that_is_no_number_is_named_at_the_start(start: Start) -> None:
    worker = start("worker", "shop", "-q", "mails:x", "-q", "default", "--until-empty", "--lines")
    assert worker.ended() == 0
    assert [line for line in worker.lines if "No task" in line] == [
        "holdfast: No task of this App has the queue 'mails:x'. To limit slots, give a number, as in emails:20."
    ]


def test_slots_per_queue_are_taken_and_shown(start: Start) -> None:
    worker = start("worker", "shop", "--lines", "--until-empty", "-q", "mails:2", "-q", "default")
    assert worker.line("queues").startswith("queues   mails:2  default · 10 slots")
    assert worker.ended() == 0


# --- How it stops ---


@pytest.mark.parametrize("stop", [Process.interrupt, Process.terminate])
def test_a_signal_stops_it_gently_with_exit_code_0(start: Start, stop: Callable[[Process], None]) -> None:
    worker = start("worker", "shop", "--lines")
    worker.line("ready")
    stop(worker)
    worker.line("stopping")
    assert worker.ended() == 0
    assert worker.lines[-1].endswith("stopped")


def test_a_second_ctrl_c_stops_at_once_and_releases_the_job(start: Start, jobs: App[Any]) -> None:
    jobs.client.task("hangs").using(id="long").enqueue()
    worker = start("worker", "shop", "--lines", "--grace", "1h")
    worker.line("long", "started")
    worker.interrupt()
    assert "1 running" in worker.line("stopping")
    worker.interrupt()
    assert worker.ended() == 0
    assert jobs.control.get("long").state == "queued"
    assert jobs.control.get("long").attempt == 0, "a job given back costs no attempt"


def test_an_operator_stops_it_from_another_terminal(start: Start) -> None:
    worker = start("worker", "shop", "--lines", "--name", "ada")
    worker.line("ready")
    assert start("workers", "stop", "ada-", "--app", "shop").ended() == 0
    worker.line("stopping")
    assert worker.ended() == 0


def test_until_empty_that_leaves_jobs_counts_them_and_exits_with_5(start: Start, jobs: App[Any]) -> None:
    jobs.client.task("flaky").using(id="often").enqueue()
    jobs.client.task("nobody").enqueue()
    worker = start("worker", "shop", "--until-empty")
    worker.line("holdfast: 1 job is left: 1 of tasks that this worker does not have.")
    assert worker.ended() == 5
    assert jobs.control.get("often").state == "succeeded"


def test_the_help_page_says_what_until_empty_leaves(start: Start) -> None:
    page = start("worker", "--help")
    page.line("its exit code is 5")
    assert page.ended() == 0


# --- Together with the other commands ---


def test_enqueue_waits_for_the_result_and_prints_it(start: Start) -> None:
    worker = start("worker", "shop", "--lines")
    worker.line("ready")
    producer = start("enqueue", "double", "21", "--wait", "30s", "--json", HOLDFAST_APP="shop")
    assert producer.ended() == 0
    assert json.loads(producer.lines[-1])["result"] == 42
    failing = start("enqueue", "gives_up", "no use", "--wait", "30s", HOLDFAST_APP="shop")
    assert failing.ended() == 1
    assert "no use" in failing.lines[-1]


def test_a_destructive_verb_asks_on_a_terminal(start: Start, jobs: App[Any]) -> None:
    for answer, code, left in (("n", 1, "queued"), ("y", 0, "cancelled")):
        jobs.client.task("double").using(id="one").enqueue(1)
        asked = start("jobs", "cancel", "one", "--app", "shop", terminal=True)
        asked.type(f"{answer}\n")
        assert asked.ended() == code
        assert "Cancel 1 job: one (double, queued). Go on?" in "\n".join(asked.lines)
        assert jobs.control.get("one").state == left


def test_status_is_watched_until_ctrl_c(start: Start, jobs: App[Any]) -> None:
    watching = start("status", "--watch", "--interval", "10ms", "--json", "--app", "shop")
    for _ in range(3):
        watching.line('"kind": "store"')
    jobs.client.task("double").enqueue(1)
    watching.line('"kind": "queue"')
    watching.interrupt()
    assert watching.ended() == 130


def test_a_killed_worker_is_shown_as_ended_at_once(start: Start) -> None:
    worker = start("worker", "shop", "--lines")
    worker.line("ready")
    worker.kill()
    worker.ended()
    status = start("status", "--json", "--app", "shop")
    shown = json.loads(status.line('"kind": "worker"'))
    assert (shown["alive"], shown["ended"]) == (False, True)
    table = start("status", "--app", "shop")
    table.line("ended")
    table.line("No worker is alive.")


# --- How it does not start ---


def test_without_an_app_it_exits_with_2_and_says_how_to_name_one(start: Start) -> None:
    worker = start("worker")
    worker.line("Which App?", "HOLDFAST_APP")
    assert worker.ended() == 2


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        ("jobs.task(timeout=-1)(print)", "InvalidOption: `timeout`"),
        ("import json; json.loads('{')", "JSONDecodeError: "),
        ("1 / 0", "ZeroDivisionError: "),
    ],
)
def test_an_error_at_import_names_the_line_of_the_user(start: Start, tmp_path: Path, mistake: str, error: str) -> None:
    (tmp_path / "shop.py").write_text(f"from holdfast import App\njobs = App()\n{mistake}\n")
    status = start("status", "--app", "shop")
    status.line(f"Importing shop failed at shop.py, line 3: {error}")
    assert status.ended() == 2


def test_a_store_that_cannot_be_opened_exits_with_3(start: Start, tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    worker = start("worker", "shop")
    assert worker.ended() == 3
    assert not any("Traceback" in line for line in worker.lines)


@pytest.mark.parametrize("options", [["-c", "0"], ["-q", "mails:0"], ["--grace", "soon"], ["--app", "other"]])
def test_an_option_that_cannot_be_exits_with_2(start: Start, options: list[str]) -> None:
    assert start("worker", "shop", *options).ended() == 2


# --- Starting anew ---


def test_a_changed_file_restarts_it_and_a_broken_one_is_waited_for(start: Start, tmp_path: Path) -> None:
    worker = start("worker", "shop", "--lines", "--reload")
    worker.line("ready")
    (tmp_path / "shop.py").write_text("def (:\n")
    worker.line("shop.py has changed")
    worker.line("SyntaxError", "Waiting for a change")
    (tmp_path / "shop.py").write_text(SHOP.replace("double", "twice"))
    assert "twice" in worker.line("tasks")
    worker.line("ready")
    worker.interrupt()
    assert worker.ended() == 0
