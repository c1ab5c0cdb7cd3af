"""A power cut after every write and sync: everything acknowledged is there, and the store is in a state that it had."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import pytest
from file_crashes import (
    STORE,
    ProcessRuntime,
    compare,
    open_engine,
    problems_after,
    problems_after_kill,
    problems_after_two_cuts,
    record,
    runtime_after,
    state_of,
)
from file_scenarios import SCENARIOS, SIMULATED_SCENARIOS, Dump, Scenario, enqueue, mixed
from intercepted_files import InterceptedFiles
from msgspec.structs import replace
from simulated_disk import LOSSES, DiskImage, SimulatedDisk
from simulated_files import ROOT, SimulatedFiles

from holdfast.engines.file.engine import FileEngine
from holdfast.model.job import JobKey
from holdfast.model.observe import Audit, Get
from holdfast.model.work import Exchange, Expired, Settlement
from holdfast.testing.clock import START, FrozenRuntime
from holdfast.testing.contract import builders as new

BY_NAME = pytest.mark.parametrize("scenario", SIMULATED_SCENARIOS, ids=lambda scenario: scenario.name)


@BY_NAME
def test_after_a_power_cut_everything_acknowledged_is_there(scenario: Scenario) -> None:
    """A part of the calls; `make chaos` takes all of them."""
    recording = record(scenario)
    step = max(1, len(recording.cuts) // 12)
    problems = [
        problem
        for number, cut in enumerate(recording.cuts[::step])
        for problem in problems_after(recording, cut, number)
    ]
    assert problems == []


def test_a_store_that_a_killed_process_has_begun_is_finished_durably() -> None:
    recording = record(SCENARIOS[0])
    cuts = [cut for cut in recording.cuts if cut.begun == 0]
    problems = [problem for cut in cuts for problem in problems_after_kill(recording, cut)]
    problems += [problem for cut in cuts for seed in range(8) for problem in problems_after(recording, cut, seed)]
    assert problems == []


def with_expired_leases(state: Dump) -> Dump:
    return {
        key: replace(value, lease_expires=0) if key[0] == "job" and value.token is not None else value
        for key, value in state.items()
    }


def test_after_a_power_cut_all_leases_have_expired_because_the_boot_clock_begins_anew() -> None:
    recording = record(SCENARIOS[1])
    leased = 0
    for number, cut in enumerate(recording.cuts[::3]):
        disk = cut.image.after_power_cut(number)
        engine = open_engine(runtime_after(START, SimulatedFiles(disk), boot="second boot"), STORE)
        try:
            found = state_of(engine)
            possible = recording.states[cut.durable : cut.begun + 1]
            assert compare(found, [with_expired_leases(state) for state in possible]) == []
            tokens = {value.token for key, value in found.items() if key[0] == "job" and value.token is not None}
            assert {lease.token for lease in engine.perform_now(Expired(worker=new.REAPER)).leases} == tokens
            leased += len(tokens)
        finally:
            engine.close_now()
    assert leased


@pytest.mark.chaos
@BY_NAME
def test_after_a_power_cut_at_every_call_everything_acknowledged_is_there(scenario: Scenario) -> None:
    recording = record(scenario)
    cuts = [(cut, seed, loss) for cut in recording.cuts for seed, loss in enumerate((*LOSSES, None, None))]
    problems = [problem for cut, seed, loss in cuts for problem in problems_after(recording, cut, seed, loss)]
    print(f"{scenario.name}: {len(cuts)} power cuts after {len(recording.cuts)} calls")
    assert problems == []


@pytest.mark.chaos
@BY_NAME
def test_after_all_processes_were_killed_at_any_call_everything_acknowledged_is_there(scenario: Scenario) -> None:
    recording = record(scenario)
    assert [problem for cut in recording.cuts for problem in problems_after_kill(recording, cut)] == []


def test_a_second_power_cut_while_the_store_is_loaded_loses_nothing_either() -> None:
    recording = record(SCENARIOS[1])
    cuts = recording.cuts[5::9]
    problems = [p for number, cut in enumerate(cuts) for p in problems_after_two_cuts(recording, cut, number)]
    assert problems == []


@pytest.mark.chaos
@pytest.mark.parametrize("scenario", SIMULATED_SCENARIOS[1:11:3], ids=lambda scenario: scenario.name)
def test_a_second_power_cut_at_any_call_while_the_store_is_loaded_loses_nothing_either(scenario: Scenario) -> None:
    recording = record(scenario)
    cuts = enumerate(recording.cuts[::2])
    assert [problem for number, cut in cuts for problem in problems_after_two_cuts(recording, cut, number)] == []


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(100, 130))
def test_random_histories_survive_power_cuts(seed: int) -> None:
    scenario = Scenario(f"mixed {seed}", mixed(seed), processes=1 + seed % 3, segment_bytes=(2_000, 8_000)[seed % 2])
    recording = record(scenario)
    problems = [
        problem
        for number, cut in enumerate(recording.cuts)
        for problem in problems_after(recording, cut, number + seed)
    ]
    assert problems == []


# Commands that overlap: a frame may be read by others before it is synced


class Fact(NamedTuple):
    """What an answer has said about a job."""

    key: tuple[str, ...]
    attempt: int
    has_ended: bool


class Overlap:
    """Threads of two processes use one store. Their disk is slow to sync, so that frames wait for it together."""

    def __init__(self) -> None:
        self.time = FrozenRuntime()
        self.disk = SimulatedDisk(self.time.wall)
        self.facts: list[Fact] = []
        self._never = threading.Event()
        self.cuts: list[tuple[DiskImage, int]] = []
        self.engines = [self._engine(number) for number in range(2)]

    def _engine(self, number: int) -> FileEngine:
        files = InterceptedFiles(SimulatedFiles(self.disk), ROOT)
        files.before = lambda call: call.verb == "sync" and self._never.wait(0.002)
        files.after = lambda call: self._keep()
        return open_engine(ProcessRuntime(self.time, files, seed=number), STORE, segment_bytes=20_000)

    def _keep(self) -> None:
        facts = len(self.facts)
        self.cuts.append((self.disk.image(), facts))

    def run(self, rounds: int) -> None:
        parts = [
            partial(part, engine, number, rounds)
            for number, engine in enumerate(self.engines)
            for part in (self._produce, self._work, self._read)
        ]
        with ThreadPoolExecutor(len(parts)) as threads:
            for future in [threads.submit(part) for part in parts]:
                future.result(60)
        for engine in self.engines:
            engine.close_now()

    def _produce(self, engine: FileEngine, number: int, rounds: int) -> None:
        for turn in range(rounds):
            job = new.new_job(f"{number}-{turn}", payload=b"x" * 300, lane="x" if turn % 3 == 0 else None)
            engine.perform_now(enqueue(job))
            self.facts.append(Fact(("job", job.queue, job.id), 0, has_ended=False))

    def _work(self, engine: FileEngine, number: int, rounds: int) -> None:
        settlements: tuple[Settlement, ...] = ()
        for turn in range(rounds):
            claim = new.claim(f"{number}-{turn:030d}", limit=2)
            answer = engine.perform_now(Exchange(settlements=settlements, claim=claim))
            self.facts += [Fact(("job", done.queue, done.id), 1, has_ended=True) for done in settlements]
            self.facts += [Fact(("job", job.queue, job.id), job.attempt, has_ended=False) for job in answer.leases]
            settlements = tuple(new.succeed(lease) for lease in answer.leases)

    def _read(self, engine: FileEngine, number: int, rounds: int) -> None:
        keys = tuple(JobKey(new.QUEUE, f"{1 - number}-{turn}") for turn in range(rounds))
        facts: set[Fact] = set()
        while True:
            jobs = engine.perform_now(Get(jobs=keys)).jobs
            found = {Fact(("job", job.queue, job.id), job.attempt, job.terminal) for job in jobs if job is not None}
            if found - facts:
                self.facts += found - facts
                self._keep()
                facts |= found
            if None not in jobs:
                return

    def problems(self, step: int) -> list[str]:
        problems: list[str] = []
        for number, (image, facts) in enumerate(self.cuts[::step]):
            disk = image.after_power_cut(number, "everything" if number % 2 else None)
            engine = open_engine(runtime_after(START, SimulatedFiles(disk)), STORE)
            try:
                found = state_of(engine)
                problems += engine.perform_now(Audit()).problems
            finally:
                engine.close_now()
            for fact in self.facts[:facts]:
                job = found.get(fact.key)
                if job is None or job.attempt < fact.attempt or job.terminal < fact.has_ended:
                    problems.append(f"cut {number * step}: {fact}, found {job}")
        return problems


def test_what_an_answer_has_said_is_durable_also_if_another_process_wrote_it() -> None:
    overlap = Overlap()
    overlap.run(rounds=8)
    assert overlap.facts
    assert overlap.problems(step=7) == []


@pytest.mark.chaos
def test_what_answers_have_said_in_a_long_run_is_durable() -> None:
    overlap = Overlap()
    overlap.run(rounds=60)
    assert overlap.problems(step=1) == []
