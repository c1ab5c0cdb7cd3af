"""Programs that pull and are killed: what they held is handed out again, long before their leases are over."""

import subprocess
import sys
from pathlib import Path

from holdfast import App

PROGRAM = """
import sys
from holdfast import App

jobs = App(sys.argv[1])
for lease in jobs.queue("numbers", int).leases(batch=3, lease=300):
    with lease:
        print("holds", lease.payload, flush=True)
        sys.stdin.read()
"""


def test_what_a_killed_puller_held_is_handed_out_again_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    jobs = App(url)
    numbers = jobs.queue("numbers", int)
    with jobs:
        for n in range(4):
            numbers.enqueue(n, id=f"{n}")
        program = [sys.executable, "-c", PROGRAM, url]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "holds 0\n"
            (last,) = numbers.claim(4)
            assert last.payload == 3
            last.complete()
            (puller,) = [worker for worker in jobs.control.workers() if worker.pid == victim.pid]
            assert (puller.alive, puller.tasks, puller.queues) == (True, ("",), ("numbers",))
            victim.kill()
            victim.wait()
        runs: dict[int, int] = {}
        while len(runs) < 3:
            for lease in numbers.claim(4, wait=20):
                runs[lease.payload] = lease.attempt
                lease.complete()
        assert runs == {0: 2, 1: 1, 2: 1}  # only one of them had begun
        assert [run.outcome for run in jobs.control.get("0", queue="numbers").attempts] == ["worker_lost", "succeeded"]
        assert [worker.name for worker in jobs.control.workers() if worker.pid == victim.pid] == []
