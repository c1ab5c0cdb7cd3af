"""A worker as a process of its own, on a SQLite file: signals, pauses, and what others see of it."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from pause_process import pause_process

from holdfast import App, JobState, events

PROGRAM = """
    import logging, os, sys, time
    from holdfast import App

    logging.basicConfig(level="INFO", stream=sys.stderr)
    jobs = App(os.environ["TEST_STORE"])


    @jobs.task(lease=float(sys.argv[2]))
    def waits(gate: str) -> str:
        print("running", flush=True)
        while not os.path.exists(gate):
            time.sleep(0.01)
        return f"by {os.getpid()}"


    if __name__ == "__main__":
        jobs.worker(signals=True, name="child", grace=float(sys.argv[1])).run()
        print("stopped", flush=True)
"""

LIMIT_S = 60.0
"""Seconds. A test that passes never waits that long."""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")


class Child:
    """The program, and what it has said so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.said: list[str] = []
        self._heard = threading.Condition()
        streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
        self._listeners = [threading.Thread(target=self._listen, args=(stream,), daemon=True) for stream in streams]
        for listener in self._listeners:
            listener.start()

    def _listen(self, stream: "IO[str]") -> None:
        with stream:
            for line in stream:
                with self._heard:
                    self.said.append(line)
                    self._heard.notify_all()

    def wait_for(self, word: str) -> None:
        with self._heard:
            heard = self._heard.wait_for(lambda: any(word in line for line in self.said), timeout=LIMIT_S)
        assert heard, f"Waited for {word!r}. It said:\n{''.join(self.said)}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it, and read what it has said to the end: a stream must not be closed while a thread reads it."""
        self.process.kill()
        self.process.wait()
        for listener in self._listeners:
            listener.join(LIMIT_S)


@contextmanager
def child(folder: Path, *, grace: float = 30.0, lease: float = 30.0) -> Iterator[Child]:
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    environment = {**os.environ, "TEST_STORE": f"sqlite:///{folder}/jobs.db", "HOLDFAST_WORKER_REAP_INTERVAL": "0.2"}
    process = subprocess.Popen(
        [sys.executable, str(program), str(grace), str(lease)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started = Child(process)
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """The same store from here, with the same task."""
    monkeypatch.setenv("HOLDFAST_WORKER_REAP_INTERVAL", "0.2")
    app: App = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(lease=2)
    def waits(gate: str) -> str:
        return "by the test"

    with app:
        yield app


def test_a_busy_worker_stops_on_sigterm_and_gives_its_job_back_for_nothing(jobs: App, tmp_path: Path) -> None:
    with child(tmp_path, grace=0.1) as worker:
        handle = jobs.registry["waits"].enqueue(str(tmp_path / "never"))
        worker.wait_for("running")
        worker.signal(signal.SIGTERM)
        assert worker.process.wait(LIMIT_S) == 0
        worker.wait_for("stopped")
    job = handle.refresh()
    assert (job.state, job.attempt, job.attempts) == (JobState.QUEUED, 0, ())
    assert jobs.control.workers() == []


def test_a_busy_worker_lets_its_job_finish_within_the_grace(jobs: App, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with child(tmp_path) as worker:
        handle = jobs.registry["waits"].enqueue(str(gate))
        worker.wait_for("running")
        worker.signal(signal.SIGTERM)
        gate.touch()
        assert worker.process.wait(LIMIT_S) == 0
    assert handle.refresh().state is JobState.SUCCEEDED


def test_a_second_signal_ends_the_grace(jobs: App, tmp_path: Path) -> None:
    with child(tmp_path, grace=3600) as worker:
        handle = jobs.registry["waits"].enqueue(str(tmp_path / "never"))
        worker.wait_for("running")
        worker.signal(signal.SIGINT)
        worker.signal(signal.SIGTERM)
        assert worker.process.wait(LIMIT_S) == 0
    assert handle.refresh().attempt == 0


def test_a_worker_that_was_paused_past_its_lease_is_refused_when_it_comes_back(jobs: App, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    done = threading.Event()
    jobs.on(events.Succeeded)(lambda event: done.set())
    with child(tmp_path, lease=2) as worker:
        handle = jobs.registry["waits"].enqueue(str(gate))
        worker.wait_for("running")
        pause_process(worker.process.pid, tmp_path / "jobs.db")
        with jobs.worker(name="other"):
            assert done.wait(LIMIT_S)  # the lease ran out, and this one took over
        gate.touch()
        worker.signal(signal.SIGCONT)
        worker.wait_for("the lease is lost")
        worker.signal(signal.SIGTERM)
        assert worker.process.wait(LIMIT_S) == 0
    assert asyncio.run(handle.aresult()) == "by the test"
    assert [attempt.outcome for attempt in handle.refresh().attempts] == ["worker_lost", "succeeded"]
