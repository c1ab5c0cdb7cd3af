"""A byte of a store is damaged: it is reported, and at most the record that it belonged to is lost."""

import logging
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest
from file_crashes import STORE, ProcessRuntime, open_engine, record, runtime_after, state_of
from file_scenarios import SCENARIOS, Dump, Scenario, enqueue, mixed
from msgspec.structs import replace
from simulated_disk import DiskImage, SimulatedFolder
from simulated_files import SimulatedFiles

from holdfast.errors import CorruptRecord, SchemaMismatch
from holdfast.model.job import JobRecord
from holdfast.model.observe import Audit
from holdfast.model.states import JobState
from holdfast.testing.contract import builders as new

DATA = ("journal", "snapshot")
"""The files that hold records. Damage in any other file loses none."""


class Store(NamedTuple):
    """A closed store, and what is in it."""

    scenario: Scenario
    image: DiskImage
    wall: int
    state: Dump

    def runtime(self, files: SimulatedFiles) -> ProcessRuntime:
        return runtime_after(self.wall, files)


def closed_store(scenario: Scenario) -> Store:
    recording = record(scenario)
    last = recording.cuts[-1]
    return Store(scenario, last.image, last.wall, recording.states[-1])


def places(store: Store, count: int, seed: int) -> Iterator[tuple[str, int]]:
    """Files and offsets, spread over all files of the store but the reserve, which is large and holds no data."""
    folder = store.image.after_kill().folder(f"{STORE}/holdfast")
    assert isinstance(folder, SimulatedFolder)
    sizes = {
        name: len(file.live)
        for name, file in folder.live.items()
        if not isinstance(file, SimulatedFolder) and name != "reserve"
    }
    total = sum(sizes.values())
    chance = Random(seed)
    for number in range(count):
        offset = chance.randrange(number * total // count, max(1, (number + 1) * total // count))
        for name, size in sizes.items():
            if offset < size:
                yield name, offset
                break
            offset -= size


class Reports(logging.Handler):
    """Log lines of warnings and errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def reports() -> Iterator[Reports]:
    handler = Reports()
    logger = logging.getLogger("holdfast")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def problems_with(store: Store, name: str, offset: int, bit: int, reports: Reports) -> list[str]:
    reports.lines.clear()
    disk = store.image.after_kill()
    file = disk.file(f"{STORE}/holdfast/{name}")
    file.live[offset] ^= 1 << bit
    file.durable = bytes(file.live)
    place = f"{store.scenario.name}: {name}, bit {bit} of byte {offset}"
    try:
        engine = open_engine(store.runtime(SimulatedFiles(disk)), STORE, segment_bytes=store.scenario.segment_bytes)
    except (CorruptRecord, SchemaMismatch) as error:
        return [] if name == "format" else [f"{place}: the store cannot be opened: {error}"]
    try:
        found = state_of(engine)
        problems = [*engine.perform_now(Audit()).problems, *_losses(found, store.state)]
        if name.endswith(DATA) and not any(name in line for line in reports.lines):
            problems.append(f"no report names the file: {reports.lines}")
        engine.perform_now(enqueue(new.new_job("after", queue="after the damage")))
    finally:
        engine.close_now()
    return [f"{place}: {problem}" for problem in problems]


def _losses(found: Dump, expected: Dump) -> list[str]:
    jobs = [{key: job for key, job in dump.items() if key[0] == "job"} for dump in (found, expected)]
    missing, resurrected = jobs[1].keys() - jobs[0].keys(), jobs[0].keys() - jobs[1].keys()
    others = [key for key in jobs[0].keys() & jobs[1].keys() if _was_changed(jobs[0][key], jobs[1][key])]
    if len(missing) + len(resurrected) + len(others) > 1:
        return [f"more than one job: {sorted(missing)} missing, {sorted(resurrected)} back, {sorted(others)} changed"]
    return []


def _was_changed(found: JobRecord, expected: JobRecord) -> bool:
    """More than by what holds the job: the next job of a lane is its head when the head is lost."""
    if JobState.BLOCKED not in (found.state, expected.state):
        return found != expected
    return replace(found, state=expected.state, hold=expected.hold, parents_left=expected.parents_left) != expected


def damage(scenario: Scenario, count: int, reports: Reports, seed: int = 0) -> list[str]:
    store = closed_store(scenario)
    chance = Random(seed)
    return [
        problem
        for name, offset in places(store, count, seed)
        for problem in problems_with(store, name, offset, chance.randrange(8), reports)
    ]


@pytest.mark.parametrize("name", ["rotation", "in_lanes"])
def test_a_flipped_bit_is_reported_and_costs_one_record(name: str, reports: Reports) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    assert damage(scenario, 25, reports) == []


@pytest.mark.chaos
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_flipped_bit_at_500_places_is_reported_and_costs_one_record(scenario: Scenario, reports: Reports) -> None:
    assert damage(scenario, 500, reports) == []


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(10))
def test_flipped_bits_in_random_histories_are_reported_and_cost_one_record(seed: int, reports: Reports) -> None:
    scenario = Scenario(f"mixed {seed}", mixed(seed), segment_bytes=(4_000, 16_000_000)[seed % 2])
    assert damage(scenario, 300, reports, seed) == []
