"""Kill a process at one of its file operations, and look at what it leaves. A program of its own:

    python kill_at_call.py FOLDER SCENARIO FIRST STEP

plays the scenario in one child process after the other. The first dies at its call number FIRST, the next STEP calls
later, and so on to the end. Each dies before the call, and then, if the call is a write, another one in the middle of
it. A process that had the store open all the time, or one that opens it now, must find a state that the scenario may
have had. The last line of the output is the number of kills; the lines before it are problems.
"""

import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from file_crashes import EMPTY, Player, ProcessRuntime, compare, open_engine, state_of
from file_scenarios import SCENARIOS, Dump, Scenario, difference, enqueue, expected_states
from intercepted_files import Call, InterceptedFiles

from holdfast.files import Files
from holdfast.model.instants import SECOND
from holdfast.model.observe import Audit
from holdfast.testing.clock import START, FrozenRuntime
from holdfast.testing.contract import builders as new

RECORD = struct.Struct("<IIQ")


class Reached(NamedTuple):
    """How far a player has come: see there."""

    begun: int
    durable: int
    wall: int


class Kill(NamedTuple):
    number: int
    """Of the call."""
    inside: bool
    """After half of the bytes of a write."""


def fork(target: Callable[[], None]) -> int:
    """Run `target` in a child process, which then ends. It has no threads of this process, because there are none."""
    child = os.fork()
    if child:
        return child
    try:
        target()
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(70)


def play(scenario: Scenario, folder: str, kill: Kill | None, output: int) -> None:
    """In a child: play, and report the progress. Without a kill, the verbs of all calls go to FOLDER.verbs."""
    time = FrozenRuntime()
    files = InterceptedFiles(Files(), folder)
    verbs: list[str] = []

    def before(call: Call) -> None:
        verbs.append(call.verb)
        if kill is not None and call.number == kill.number:
            if kill.inside:
                call.write_part(max(1, len(call.data) // 2))
            os.kill(os.getpid(), signal.SIGKILL)

    def report() -> None:
        os.write(output, RECORD.pack(player.begun, player.durable, time.wall()))

    files.before = before
    player = Player(
        scenario,
        time,
        lambda: [
            open_engine(ProcessRuntime(time, files, seed=number), folder, segment_bytes=scenario.segment_bytes)
            for number in range(scenario.processes)
        ],
    )
    player.on_progress = report
    player.play()
    if kill is None:
        Path(folder + ".verbs").write_text(" ".join(verbs))


def run_to_its_end(scenario: Scenario, folder: str, kill: Kill | None) -> tuple[Reached, bool]:
    """How far it came, and whether it was killed."""
    read_end, write_end = os.pipe()
    child = fork(lambda: play(scenario, folder, kill, write_end))
    os.close(write_end)
    reached = Reached(0, 0, START)
    with os.fdopen(read_end, "rb") as reports:
        while len(record := reports.read(RECORD.size)) == RECORD.size:
            reached = Reached(*RECORD.unpack(record))
    status = os.waitpid(child, 0)[1]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if not killed and status != 0:
        raise SystemExit(f"{scenario.name}, {kill}: the child ended with status {status}")
    return reached, killed


class Watcher:
    """A process that has the store open before the other one begins, or opens it after its end."""

    def __init__(self, scenario: Scenario, folder: str, states: list[Dump], *, opens_first: bool, name: str) -> None:
        self._scenario = scenario
        self._folder = folder
        self._states = states
        self._opens_first = opens_first
        self._name = name
        self._ready, ready = os.pipe()
        go, self._go = os.pipe()
        self.child = fork(lambda: self._main(ready, go))
        os.close(ready)
        os.close(go)
        os.read(self._ready, 1)

    def _main(self, ready: int, go: int) -> None:
        os.close(self._go)
        time = FrozenRuntime()
        runtime = ProcessRuntime(time, Files(), seed=77)
        options = {"segment_bytes": self._scenario.segment_bytes}
        engine = open_engine(runtime, self._folder, **options) if self._opens_first else None
        os.write(ready, b"1")
        begun, durable, wall = RECORD.unpack(os.read(go, RECORD.size))
        time.advance((wall - START) / SECOND)
        engine = engine or open_engine(runtime, self._folder, **options)
        problems = list(engine.perform_now(Audit()).problems)
        problems += compare(state_of(engine), self._states[durable : begun + 1])
        engine.perform_now(enqueue(new.new_job("after", queue="after the crash")))
        found = state_of(engine)
        other = open_engine(ProcessRuntime(time, Files(), seed=78), self._folder, **options)
        problems += [f"another process: {line}" for line in difference(state_of(other), found)]
        other.close_now()
        engine.close_now()
        for problem in problems:
            print(f"{self._name}: {problem}")

    def look(self, reached: Reached) -> bool:
        """False: the process has failed."""
        os.write(self._go, RECORD.pack(*reached))
        status = os.waitpid(self.child, 0)[1]
        os.close(self._go)
        os.close(self._ready)
        return status == 0


def main(root: Path, name: str, first: int, step: int) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    states = [EMPTY, *(progress.state for progress in expected_states(scenario))]
    run_to_its_end(scenario, str(root / "uncut"), None)
    verbs = (root / "uncut.verbs").read_text().split()
    kills = 0
    for number in range(first, len(verbs) + 1, step):
        for inside in (False, True) if verbs[number - 1] == "write" else (False,):
            kill = Kill(number, inside)
            folder = str(root / f"{number}{'i' if inside else 'b'}")
            title = f"{name}: {kill}"
            watcher = Watcher(scenario, folder, states, opens_first=number % 2 == 0, name=title)
            reached, killed = run_to_its_end(scenario, folder, kill)
            kills += killed
            if not watcher.look(reached):
                print(f"{title}: the process that looks at the store has failed")
    print(kills)


if __name__ == "__main__":
    os.environ["XDG_RUNTIME_DIR"] = sys.argv[1]
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
