"""Play a scenario on file engines, and see what a store has after it was cut off."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from file_scenarios import (
    NOT_DURABLE,
    Advance,
    DiskFull,
    Dump,
    Refused,
    Reopen,
    Scenario,
    difference,
    dump_of,
    enqueue,
    expected_states,
    what_counts,
)
from intercepted_files import Call, InterceptedFiles
from simulated_disk import DiskImage, Loss, SimulatedDisk
from simulated_files import ROOT, SimulatedFiles

from holdfast.engines.file.engine import FileEngine
from holdfast.engines.file.runner import FileRunner
from holdfast.errors import StorageFull
from holdfast.files import Files
from holdfast.model.command import Command
from holdfast.model.instants import SECOND, Instant
from holdfast.model.observe import Audit
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Heartbeat
from holdfast.testing.clock import START, FrozenRuntime
from holdfast.testing.contract import builders as new

STORE = f"{ROOT}/store"
EMPTY: Dump = {("last arrival",): 0}


class ProcessRuntime(FrozenRuntime):
    """A process on a host whose time the test moves."""

    def __init__(self, time: FrozenRuntime, fs: Files, *, seed: int = 0, boot: str = "first boot") -> None:
        super().__init__(seed=seed)
        self._time = time
        self._boot = boot
        self.fs = fs

    def wall(self) -> int:
        return self._time.wall() + self.clock_offset

    def monotonic(self) -> int:
        return self._time.monotonic()

    def boot(self) -> int:
        return self._time.boot() + self.clock_offset

    def boot_id(self) -> str:
        return self._boot


def open_engine(runtime: ProcessRuntime, folder: str, **options: Any) -> FileEngine:
    engine = FileEngine(f"file://{folder}", runtime, **options)
    engine.open_now()
    return engine


def state_of(engine: FileEngine) -> Dump:
    """The state of an engine that nobody uses at the moment."""
    assert engine._thread is not None
    runner = engine._thread.runner
    assert isinstance(runner, FileRunner)
    return dump_of(runner.replica.tables)


class Player:
    """Runs a scenario. Other threads may read how far it has come."""

    def __init__(
        self, scenario: Scenario, time: FrozenRuntime, make_engines: Callable[[], Sequence[FileEngine]]
    ) -> None:
        self._scenario = scenario
        self._time = time
        self._make_engines = make_engines
        self.begun = 0
        """Items of the scenario that have begun."""
        self.durable = 0
        """Items whose effect no crash may take away."""
        self.on_progress: Callable[[], object] = lambda: None
        self.set_full: Callable[[bool], object] = lambda is_full: None

    def play(self) -> None:
        engines = self._make_engines()
        try:
            items = self._scenario.run()
            answer: Any = None
            while True:
                try:
                    item = items.send(answer)
                except StopIteration:
                    return
                self.begun += 1
                self.on_progress()
                answer = None
                if isinstance(item, Advance):
                    self._time.advance(item.step_us / SECOND)
                elif isinstance(item, Reopen):
                    self._close(engines)
                    engines = self._make_engines()
                elif isinstance(item, DiskFull):
                    self.set_full(item.is_full)
                elif isinstance(item, Refused):
                    self._perform_refused(engines[self.begun % len(engines)], item.command)
                else:
                    answer = engines[self.begun % len(engines)].perform_now(item)
                if not isinstance(item, (*NOT_DURABLE, Advance, DiskFull)):
                    self.durable = self.begun
                    self.on_progress()
        finally:
            self._close(engines)

    def _perform_refused(self, engine: FileEngine, command: Command[Any]) -> None:
        try:
            engine.perform_now(command)
        except StorageFull:
            return
        raise AssertionError(f"the disk is full, and {command} was accepted")

    def _close(self, engines: Sequence[FileEngine]) -> None:
        for engine in engines:
            engine.close_now()


class Cut(NamedTuple):
    """A moment at which the host may lose its power, or all processes may be killed."""

    call: Call
    image: DiskImage
    durable: int
    begun: int
    wall: Instant


class Recording(NamedTuple):
    scenario: Scenario
    cuts: list[Cut]
    states: list[Dump]
    """After each item; the first is that of an empty store."""


def record(scenario: Scenario) -> Recording:
    """Play the scenario on a simulated disk, and copy the disk after each call that changes it."""
    time = FrozenRuntime()
    disk = SimulatedDisk(time.wall)
    cuts: list[Cut] = []

    def keep(call: Call) -> None:
        cuts.append(Cut(call, disk.image(), player.durable, player.begun, time.wall()))

    def make_engines() -> list[FileEngine]:
        engines = []
        for number in range(scenario.processes):
            files = InterceptedFiles(SimulatedFiles(disk), ROOT)
            files.after = keep
            runtime = ProcessRuntime(time, files, seed=number)
            engines.append(open_engine(runtime, STORE, segment_bytes=scenario.segment_bytes))
        return engines

    player = Player(scenario, time, make_engines)
    player.set_full = disk.set_full
    player.play()
    return Recording(scenario, cuts, [EMPTY, *(progress.state for progress in expected_states(scenario))])


def runtime_after(wall: Instant, fs: Files, boot: str = "first boot", seed: int = 99) -> ProcessRuntime:
    time = FrozenRuntime()
    time.advance((wall - START) / SECOND)
    return ProcessRuntime(time, fs, seed=seed, boot=boot)


def problems_after(recording: Recording, cut: Cut, seed: int, loss: Loss | None = None) -> list[str]:
    """Open the store after a power cut, and compare. Empty: everything acknowledged is there, and nothing else."""
    disk = cut.image.after_power_cut(seed, loss)  # which is not full any more
    return problems_of(recording, cut, disk, f"power cut, seed {seed}, loss {loss}")


def problems_after_kill(recording: Recording, cut: Cut) -> list[str]:
    return problems_of(recording, cut, cut.image.after_kill(), "kill")


def problems_of(recording: Recording, cut: Cut, disk: SimulatedDisk, what: str) -> list[str]:
    place = f"{recording.scenario.name}: {what} after call {cut.call.number} ({cut.call.verb} {cut.call.path})"
    segment_bytes = recording.scenario.segment_bytes
    try:
        engine = open_engine(runtime_after(cut.wall, SimulatedFiles(disk)), STORE, segment_bytes=segment_bytes)
    except Exception as error:
        return [f"{place}: the store cannot be opened: {error!r}"]
    try:
        found = state_of(engine)
        possible = recording.states[cut.durable : cut.begun + 1]
        if recording.scenario.has_gaps:
            problems = compare(what_counts(found), [what_counts(state) for state in possible])
        else:
            problems = compare(found, possible)
        problems += engine.perform_now(Audit()).problems
        engine.perform_now(enqueue(new.new_job("after", queue="after the crash")))
        found = state_of(engine)
        disk = disk.image().after_power_cut(0, "everything")  # what this engine found and wrote must be durable, too
    finally:
        engine.close_now()
    engine = open_engine(runtime_after(cut.wall, SimulatedFiles(disk)), STORE, segment_bytes=segment_bytes)
    try:
        problems += [f"after a second power cut: {line}" for line in difference(state_of(engine), found)]
    finally:
        engine.close_now()
    return [f"{place}: {problem}" for problem in problems]


def problems_after_two_cuts(recording: Recording, cut: Cut, seed: int) -> list[str]:
    """The power fails again while the store is loaded, or while the first job is written."""
    scenario = recording.scenario
    disk = cut.image.after_power_cut(seed)
    images: list[tuple[DiskImage, bool]] = []
    has_answered = False
    files = InterceptedFiles(SimulatedFiles(disk), ROOT)
    files.after = lambda call: images.append((disk.image(), has_answered))
    engine = open_engine(runtime_after(cut.wall, files), STORE, segment_bytes=scenario.segment_bytes)
    try:
        possible = recording.states[cut.durable : cut.begun + 1]
        engine.perform_now(enqueue(new.new_job("after", queue="after the crash")))
        has_answered, last = True, state_of(engine)
        engine.perform_now(Heartbeat(worker=WorkerRecord(worker="writes without a sync")))
        possible = [*possible, last, state_of(engine)]
    finally:
        engine.close_now()
    problems: list[str] = []
    for number, (image, answered) in enumerate(images):
        for second in range(3):
            after = SimulatedFiles(image.after_power_cut(seed + second))
            engine = open_engine(runtime_after(cut.wall, after, seed=98), STORE, segment_bytes=scenario.segment_bytes)
            try:
                found = compare(state_of(engine), possible[-2:] if answered else possible)
                found += engine.perform_now(Audit()).problems
            finally:
                engine.close_now()
            problems += [f"{scenario.name}, call {cut.call.number}, then {number}: {problem}" for problem in found]
    return problems


def compare(found: Dump, possible: Sequence[Dump]) -> list[str]:
    if any(found == state for state in possible):
        return []
    return [f"not one of {len(possible)} possible states: {line}" for line in difference(found, possible[0])]
