"""Programs whose tasks have processes of their own: the main module, standard output, the end of the worker."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from eventually import eventually_now

PROGRAM = """
import os, sys, threading
from pathlib import Path
from holdfast import App, Context

jobs = App(f"sqlite:///{Path(__file__).parent}/jobs.db")

@jobs.task(isolate="process")
def who(name: str) -> list[str]:
    print("the handler prints")
    return [name, __name__, str(os.getppid())]

of_a_library = jobs.task(isolate="process")(os.path.basename)

if __name__ == "__main__":
    with jobs, jobs.worker():
        print(of_a_library.using(wait=60).request("its/module/declares/no/task"))
        print(who.using(wait=60).request("main"), os.getpid())
"""

UNGUARDED = PROGRAM.replace('if __name__ == "__main__":', "if True:").replace(
    'isolate="process"', 'isolate="process", max_attempts=1'
)


def run(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.parametrize("arguments", [["shop.py"], ["-m", "shop"]], ids=["path", "module"])
def test_a_task_of_the_main_module_runs_in_a_process(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the handler prints" in done.stdout
    assert done.stdout.startswith("task\n")
    name = "__holdfast_main__" if arguments[0] == "shop.py" else "shop"
    line = next(line for line in done.stdout.splitlines() if line.startswith("['main'"))
    worker = line.rpartition(" ")[2]
    assert line == f"['main', '{name}', '{worker}'] {worker}"


def test_a_main_module_without_a_guard_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(UNGUARDED)
    done = run("shop.py", folder=tmp_path)
    assert done.returncode != 0
    assert "The process for the handler could not start" in done.stderr
    assert 'put the call under `if __name__ == "__main__":`' in done.stderr


def test_a_task_of_a_shell_is_refused(tmp_path: Path) -> None:
    program = (
        "from holdfast import App\njobs = App('memory://')\n@jobs.task(isolate='process')\ndef who() -> None: ...\n"
    )
    done = run("-c", program, folder=tmp_path)
    assert done.returncode == 1
    assert "is defined in an interactive session" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="The kernel of other systems does not end it")
def test_a_term_to_the_whole_group_lets_isolated_handlers_finish(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        PROGRAM.replace(
            '    print("the handler prints")\n',
            '    folder = Path(__file__).parent\n    (folder / "pid").write_text(str(os.getpid()))\n'
            '    while not (folder / "go").exists():\n        threading.Event().wait(0.01)\n'
            '    (folder / "done").touch()\n',
        )
    )
    program = [sys.executable, "-m", "holdfast", "worker", "shop"]
    enqueue = [sys.executable, "-c", "import shop; shop.who.enqueue('x')"]
    subprocess.run(enqueue, cwd=tmp_path, check=True, timeout=60)
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(program, cwd=tmp_path, stdout=log, stderr=log)
    try:
        eventually_now(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the handler")
        for pid in (int((tmp_path / "pid").read_text()), worker.pid):  # as systemd does it
            os.kill(pid, signal.SIGTERM)
        (tmp_path / "go").touch()
        assert worker.wait(60) == 0, (tmp_path / "log").read_text()
        assert (tmp_path / "done").exists()
        count = "import shop; print(shop.jobs.control.status('default').succeeded)"
        counted = run("-c", count, folder=tmp_path)
        assert counted.stdout.strip() == "1", counted.stderr
    finally:
        worker.kill()
        worker.wait()
