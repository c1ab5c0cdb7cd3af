"""Handlers that fork: the child never becomes a second worker, and it ends when the handler's code does."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually_now
from growing_log import whole_lines
from host_stores import HostStore

from holdfast import App

PROGRAM = """
import asyncio, os, sys
from holdfast import App

jobs = App(os.environ["FORK_URL"], namespace=os.environ["FORK_NAMESPACE"])
log = os.environ["FORK_LOG"]


def note(text):
    with open(log, "a") as file:
        file.write(f"{text} {os.getpid()}\\n")


def fork(end):
    child = os.fork()
    if child == 0:
        note("child")
        if end == "enqueue":
            quick.enqueue()
            note("enqueued")
        elif end == "raise":
            raise ValueError("in the child")
        elif end == "exit":
            sys.exit(3)
    return child


@jobs.task
async def in_loop(end: str) -> None:
    child = fork(end)
    if end == "wait":
        await asyncio.sleep(0)
        note("waited")
    if child:
        note(f"status {os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, child, 0))[1])}")


@jobs.task
def in_thread(end: str) -> None:
    child = fork(end)
    if child:
        note(f"status {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


@jobs.task
async def quick() -> None:
    await asyncio.sleep(0.01)
    note("quick")


if __name__ == "__main__":
    jobs.worker(concurrency=4, signals=True, until_empty="until-empty" in sys.argv).run()
"""


@pytest.fixture(params=["sqlite", "file", "postgres", "redis"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    if request.param in ("sqlite", "file"):
        url, namespace = HostStore.of(request.param, tmp_path).url, "holdfast"
    else:
        url, namespace = request.getfixturevalue(f"{request.param}_store")()
    (tmp_path / "program.py").write_text(PROGRAM)
    return {"FORK_URL": url, "FORK_NAMESPACE": namespace, "FORK_LOG": str(tmp_path / "log")}


@pytest.fixture
def program(environment: dict[str, str], tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, env={**os.environ, **environment})
    yield process
    process.terminate()
    process.wait(30)


def lines(environment: dict[str, str]) -> list[str]:
    return whole_lines(Path(environment["FORK_LOG"]))


def texts(environment: dict[str, str], start: str) -> list[str]:
    return [line.rsplit(" ", 1)[0] for line in lines(environment) if line.startswith(start)]


@pytest.mark.parametrize("task", ["in_loop", "in_thread"])
def test_a_child_ends_with_the_handler_and_the_parent_goes_on(
    environment: dict[str, str], program: "subprocess.Popen[bytes]", task: str
) -> None:
    jobs = App(environment["FORK_URL"], namespace=environment["FORK_NAMESPACE"])
    ends = {"return": 0, "enqueue": 0, "raise": 1, "exit": 3, **({"wait": 0} if task == "in_loop" else {})}
    with jobs:
        for end, code in ends.items():
            before = len(texts(environment, "status"))
            handle = jobs.client.task(task).enqueue(end)
            handle.result(timeout=20)
            assert texts(environment, "status")[before:] == [f"status {code}"], end
        eventually_now(lambda: texts(environment, "quick"), "the job that the child has enqueued")
        handles = [jobs.client.task("quick").enqueue() for _ in range(20)]
        for handle in handles:
            handle.result(timeout=20)
    pids = {line.rsplit(" ", 1)[1] for line in lines(environment) if line.startswith(("quick", "waited", "status"))}
    assert pids == {str(program.pid)}, "A child has worked."
    assert program.poll() is None
    children = [int(line.rsplit(" ", 1)[1]) for line in lines(environment) if line.startswith("child")]
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, signal.SIG_DFL)


def test_a_fork_in_plain_code_leaves_the_open_app_usable_on_both_sides(environment: dict[str, str]) -> None:
    jobs = App(environment["FORK_URL"], namespace=environment["FORK_NAMESPACE"])
    numbers = jobs.queue("numbers", int)
    with jobs:
        numbers.enqueue(1)
        assert len(numbers.claim(5)) == 1  # the loop thread and the keeper run
        child = os.fork()
        if child == 0:
            try:
                numbers.enqueue(2)
                (lease,) = numbers.claim(5)
                lease.complete()
                os._exit(0 if lease.payload == 2 else 4)
            except BaseException:
                os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        numbers.enqueue(3)
        assert [lease.payload for lease in numbers.claim(5)] == [3]
