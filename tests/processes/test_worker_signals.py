"""Signals to `holdfast worker`, as real processes: which exit code, and what becomes of the jobs."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest
from eventually import eventually_now

from holdfast import App, JobState

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")

LIMIT_S = 60.0
"""Seconds after which a process that hangs is killed, and its test fails."""

PROGRAM = """
    import asyncio, os, signal, sys, threading, time
    from contextlib import asynccontextmanager
    import holdfast.worker.forced_exit as forced_exit
    from holdfast import App

    forced_exit.MARGIN_S = float(os.environ.get("MARGIN_S", "10"))

    open("imported", "w").close()
    while os.path.exists("hold-import"):
        time.sleep(0.01)

    @asynccontextmanager
    async def lifespan():
        open("begins", "w").close()
        while os.path.exists("hold-begin"):
            await asyncio.sleep(0.01)
        yield None
        open("ends", "w").close()
        while os.path.exists("hold-end"):
            await asyncio.sleep(0.01)

    jobs = App(os.environ.get("STORE", "sqlite:///jobs.db"), lifespan=lifespan)

    @jobs.task
    async def waits(number: int) -> None:
        open(f"running-{number}", "w").close()
        while not os.path.exists(f"gate-{number}"):
            await asyncio.sleep(0.01)

    @jobs.task
    async def blocks() -> None:
        open("running-0", "w").close()
        while True:
            time.sleep(0.01)

    @jobs.task
    async def starts_a_thread() -> None:
        threading.Thread(target=threading.Event().wait, name="of the handler").start()

    if __name__ == "__main__":
        jobs.worker(signals=True, grace=float(sys.argv[1])).run()
        print("after the worker", flush=True)
"""


@contextmanager
def sighup_not_ignored() -> Iterator[None]:
    """Child processes inherit what `nohup make test` ignores, and a worker goes on ignoring it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


class Process:
    """A worker in a process group of its own. Its output goes to a file."""

    def __init__(self, folder: Path, *command: str, **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        env = {**kept, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
        self._log = folder / "worker.log"
        with self._log.open("wb") as log, sighup_not_ignored():
            self._child = subprocess.Popen(
                [sys.executable, *command],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def send(self, *numbers: int) -> None:
        for number in numbers:
            self._child.send_signal(number)

    def send_to_group(self, number: int) -> None:
        os.killpg(self._child.pid, number)

    def wait(self) -> int:
        return self._child.wait(LIMIT_S)

    @property
    def text(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        self._child.kill()
        self._child.wait()


@contextmanager
def worker(folder: Path, *options: str, **environment: str) -> Iterator[Process]:
    process = Process(folder, "-m", "holdfast", "worker", "shop", *options, **environment)
    try:
        yield process
    except BaseException as error:
        error.add_note(f"The worker has printed:\n{process.text}")
        raise
    finally:
        process.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(dedent(PROGRAM), encoding="utf-8")
    return tmp_path


@pytest.fixture
def jobs(folder: Path) -> App:
    return App(f"sqlite:///{folder}/jobs.db")


def enqueue(jobs: App, task: str, *args: object) -> str:
    return jobs.client.task(task).enqueue(*args).id


def wait_for(path: Path) -> None:
    eventually_now(path.exists, str(path), limit_s=LIMIT_S)


def assert_released(jobs: App, id: str) -> None:
    job = jobs.control.get(id)
    assert (job.state, job.attempt, job.attempts) == (JobState.QUEUED, 0, ())
    assert jobs.control.workers() == []


# While it works


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_lets_jobs_finish(folder: Path, jobs: App, number: int) -> None:
    id = enqueue(jobs, "waits", 1)
    with worker(folder) as process:
        wait_for(folder / "running-1")
        process.send_to_group(number)
        eventually_now(lambda: "It waits up to" in process.text, "the stop")
        (folder / "gate-1").touch()
        assert process.wait() == 0
    assert jobs.control.get(id).state is JobState.SUCCEEDED
    assert jobs.control.workers() == []


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)],
)
def test_the_second_signal_stops_at_once(folder: Path, jobs: App, numbers: tuple[int, ...]) -> None:
    id = enqueue(jobs, "waits", 1)
    with worker(folder, "--grace", "1h") as process:
        wait_for(folder / "running-1")
        for number in numbers:  # two signals of one kind that come together are one
            process.send(number)
            eventually_now(lambda: "It waits up to" in process.text, "the stop")
        assert process.wait() == 0
    assert_released(jobs, id)


def test_a_hang_up_beside_a_term_is_not_the_second_signal(folder: Path, jobs: App) -> None:
    """systemd sends both with SendSIGHUP=yes."""
    id = enqueue(jobs, "waits", 1)
    with worker(folder, "--grace", "1h") as process:
        wait_for(folder / "running-1")
        process.send(signal.SIGTERM, signal.SIGHUP, signal.SIGHUP)
        eventually_now(lambda: "It waits up to" in process.text, "the stop")
        process.send(signal.SIGHUP)
        (folder / "gate-1").touch()
        assert process.wait() == 0
    assert jobs.control.get(id).state is JobState.SUCCEEDED


def test_nohup_is_respected(folder: Path, jobs: App) -> None:
    id = enqueue(jobs, "waits", 1)
    command = f"trap '' HUP; exec {sys.executable} -m holdfast worker shop"
    process = Process(folder, "-c", f"import os; os.execvp('sh', ['sh', '-c', {command!r}])")
    try:
        wait_for(folder / "running-1")
        process.send(signal.SIGHUP)
        second = enqueue(jobs, "waits", 2)
        wait_for(folder / "running-2")  # it still claims
        process.send(signal.SIGTERM)
        for number in (1, 2):
            (folder / f"gate-{number}").touch()
        assert process.wait() == 0
    finally:
        process.close()
    assert {jobs.control.get(job).state for job in (id, second)} == {JobState.SUCCEEDED}


def test_a_blocked_event_loop_ends_by_force_after_the_grace(folder: Path, jobs: App) -> None:
    enqueue(jobs, "blocks")
    with worker(folder, "--grace", "0.1s", MARGIN_S="0.3") as process:
        wait_for(folder / "running-0")
        process.send(signal.SIGTERM)
        assert process.wait() == 1
        assert "has not stopped in time" in process.text
        assert "in blocks" in process.text


def test_a_blocked_event_loop_ends_soon_after_the_second_signal(folder: Path, jobs: App) -> None:
    enqueue(jobs, "blocks")
    with worker(folder, "--grace", "1h", MARGIN_S="0.3") as process:
        wait_for(folder / "running-0")
        process.send(signal.SIGINT)
        process.send(signal.SIGTERM)
        assert process.wait() == 1


def test_a_thread_that_goes_on_does_not_keep_a_worker_that_has_stopped(folder: Path, jobs: App) -> None:
    id = enqueue(jobs, "starts_a_thread")
    with worker(folder, "--grace", "0.1s", MARGIN_S="2") as process:
        eventually_now(lambda: jobs.control.get(id).state is JobState.SUCCEEDED, "the job", limit_s=LIMIT_S)
        process.send(signal.SIGTERM)
        assert process.wait() == 1
        assert "has not stopped in time" in process.text


def test_a_thread_that_goes_on_does_not_keep_a_worker_that_has_done_its_jobs(folder: Path, jobs: App) -> None:
    enqueue(jobs, "starts_a_thread")
    with worker(folder, "--grace", "0.1s", "--max-jobs", "1", MARGIN_S="2") as process:
        assert process.wait() == 1
        assert "has not stopped in time" in process.text


# While it starts


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_app_is_imported_ends_it_at_once(folder: Path, jobs: App, number: int) -> None:
    (folder / "hold-import").touch()
    with worker(folder) as process:
        wait_for(folder / "imported")
        process.send(number)
        assert process.wait() == 0
        assert process.text == ""


@contextmanager
def silent_server() -> Iterator[int]:
    """A port where connections are accepted and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def program(folder: Path, **environment: str) -> Process:
    """The worker inside a program of the user, in place of the command."""
    return Process(folder, "shop.py", "30", **environment)


def command(folder: Path, **environment: str) -> Process:
    return Process(folder, "-m", "holdfast", "worker", "shop", **environment)


def manager(folder: Path, **environment: str) -> Process:
    return Process(folder, "-m", "holdfast", "manager", "shop", **environment)


def manager_program(folder: Path, **environment: str) -> Process:
    code = "from shop import jobs; jobs.manager('shop', signals=True).run()"
    return Process(folder, "-c", code, **environment)


@pytest.mark.parametrize(
    ("start", "scheme"),
    [(program, "postgresql"), (command, "redis"), (manager, "postgresql"), (manager_program, "redis")],
)
def test_a_signal_while_the_store_is_opened_ends_it_at_once(
    folder: Path, scheme: str, start: Callable[..., Process]
) -> None:
    with silent_server() as port:
        process = start(folder, STORE=f"{scheme}://127.0.0.1:{port}/0")
        try:
            wait_for(folder / "imported")
            eventually_now(lambda: _is_connected(port), "a connection to the store")
            process.send(signal.SIGTERM)
            assert process.wait() == 0, process.text
            assert "Traceback" not in process.text
        finally:
            process.close()


def _is_connected(port: int) -> bool:
    """True if a client of this host is connected to the port."""
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return any(line.split()[2].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines)


def test_a_signal_in_the_lifespan_waits_for_it_and_starts_no_job(folder: Path, jobs: App) -> None:
    id = enqueue(jobs, "waits", 1)
    (folder / "hold-begin").touch()
    with worker(folder) as process:
        wait_for(folder / "begins")
        process.send(signal.SIGTERM)
        (folder / "hold-begin").unlink()
        assert process.wait() == 0
        assert (folder / "ends").exists()
    assert not (folder / "running-1").exists()
    assert_released(jobs, id)


@pytest.mark.parametrize(("grace", "numbers"), [("0.1s", [signal.SIGTERM]), ("1h", [signal.SIGTERM, signal.SIGINT])])
def test_a_lifespan_that_does_not_begin_is_cancelled_after_the_grace(
    folder: Path, jobs: App, grace: str, numbers: list[int]
) -> None:
    (folder / "hold-begin").touch()
    with worker(folder, "--grace", grace) as process:
        wait_for(folder / "begins")
        process.send(*numbers)
        assert process.wait() == 0
        assert "Traceback" not in process.text


# While it stops


def test_a_lifespan_that_does_not_end_is_ended_by_force(folder: Path, jobs: App) -> None:
    (folder / "hold-end").touch()
    with worker(folder, "--grace", "0.1s", MARGIN_S="2") as process:  # time to remove its record
        eventually_now(jobs.control.workers, "the worker")
        wait_for(folder / "begins")  # a stop before that skips the lifespan
        process.send(signal.SIGTERM)
        assert process.wait() == 1
    assert jobs.control.workers() == []


def test_signals_while_it_stops_change_nothing(folder: Path, jobs: App) -> None:
    (folder / "hold-end").touch()
    with worker(folder) as process:
        eventually_now(jobs.control.workers, "the worker")
        wait_for(folder / "begins")  # a stop before that skips the lifespan
        process.send(signal.SIGTERM)
        wait_for(folder / "ends")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            process.send(number)
        (folder / "hold-end").unlink()
        assert process.wait() == 0
        assert "Traceback" not in process.text


def test_a_program_goes_on_after_its_worker_was_stopped(folder: Path, jobs: App) -> None:
    process = program(folder, MARGIN_S="0")
    try:
        eventually_now(jobs.control.workers, "the worker")
        process.send(signal.SIGTERM)
        assert process.wait() == 0
        assert "after the worker" in process.text
    finally:
        process.close()


# Exit codes


def test_a_store_that_cannot_be_reached_is_exit_code_3(folder: Path) -> None:
    with silent_server() as port:
        pass  # the port is free again
    with worker(folder, STORE=f"redis://127.0.0.1:{port}/0") as process:
        assert process.wait() == 3


def test_a_limit_that_no_worker_can_keep_is_exit_code_2(folder: Path) -> None:
    with worker(folder, "--max-memory", "1MiB") as process:
        assert process.wait() == 2
