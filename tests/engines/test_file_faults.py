"""Faults of the disk: each is a typed error, nothing acknowledged is lost, and the copy in memory equals the disk."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from file_crashes import EMPTY, STORE, ProcessRuntime, compare, open_engine, state_of
from file_scenarios import (
    NOT_DURABLE,
    SCENARIOS,
    Advance,
    Dump,
    Reopen,
    Scenario,
    difference,
    enqueue,
    expected_states,
    what_counts,
)
from intercepted_files import Call, InterceptedFiles
from simulated_disk import SimulatedDisk, SimulatedFile
from simulated_files import ROOT, SimulatedFiles

from holdfast.engines.file.engine import FileEngine
from holdfast.errors import EngineUnavailable, OutcomeUnknown, StorageFull
from holdfast.model.command import Command
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Audit, Get
from holdfast.testing.clock import FrozenRuntime
from holdfast.testing.contract import builders as new

Fault = Callable[[Call], None]


def fail(code: int, *, after_part: bool = False) -> Fault:
    def fault(call: Call) -> None:
        if after_part:
            call.write_part(len(call.data) // 2)
        raise OSError(code, os.strerror(code), call.path)

    return fault


WRITE_FAULTS = {
    "no space": (fail(errno.ENOSPC), StorageFull),
    "no space after a part": (fail(errno.ENOSPC, after_part=True), StorageFull),
    "quota": (fail(errno.EDQUOT, after_part=True), StorageFull),
    "input/output error": (fail(errno.EIO, after_part=True), EngineUnavailable),
    "read-only": (fail(errno.EROFS), EngineUnavailable),
}


class Host:
    """A simulated host with one process, whose disk fails when the test says so."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.time = FrozenRuntime()
        self.disk = SimulatedDisk(self.time.wall)
        self.files = InterceptedFiles(SimulatedFiles(self.disk), ROOT)
        self.runtime = ProcessRuntime(self.time, self.files)
        self.engine: FileEngine | None = None

    def open(self) -> FileEngine:
        if self.engine is None:
            self.engine = open_engine(self.runtime, STORE, segment_bytes=self.scenario.segment_bytes)
        return self.engine

    def perform(self, command: Command[Any]) -> Any:
        return self.open().perform_now(command)

    def close(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close_now()

    def state_on_disk(self) -> Dump:
        """As another process finds it."""
        runtime = ProcessRuntime(self.time, SimulatedFiles(self.disk), seed=5)
        engine = open_engine(runtime, STORE, segment_bytes=self.scenario.segment_bytes)
        try:
            assert engine.perform_now(Audit()).problems == ()
            return state_of(engine)
        finally:
            engine.close_now()

    def problems(self, disk: SimulatedDisk, possible: list[Dump]) -> list[str]:
        """Open a disk, compare, and write a job; open what is left of it after a power cut, and compare again."""
        segment_bytes = self.scenario.segment_bytes
        for turn in range(2):
            engine = open_engine(
                ProcessRuntime(self.time, SimulatedFiles(disk), seed=turn + 6), STORE, segment_bytes=segment_bytes
            )
            try:
                problems = compare(state_of(engine), possible) + list(engine.perform_now(Audit()).problems)
                engine.perform_now(enqueue(new.new_job(f"after {turn}", queue="after the fault")))
                possible = [state_of(engine)]
                disk = disk.image().after_power_cut(turn, "everything")
            finally:
                engine.close_now()
            if problems:
                return problems
        return []


@contextmanager
def host(scenario: Scenario) -> Iterator[Host]:
    opened = Host(scenario)
    try:
        yield opened
    finally:
        opened.files.before = lambda call: None
        opened.close()


def differences(found: Dump, expected: Dump) -> list[str]:
    return difference(what_counts(found), what_counts(expected))


def play_with_a_fault(
    scenario: Scenario, is_hit: Callable[[Call], bool], fault: Fault, error: type[Exception]
) -> tuple[int, int]:
    """Play the scenario. One call fails; a command that fails because of it is sent again. Answers how many calls and
    how many commands have failed."""
    states = [EMPTY, *(progress.state for progress in expected_states(scenario))]
    failed_calls: list[Call] = []
    failed_commands = 0

    def before(call: Call) -> None:
        if not failed_calls and is_hit(call):
            failed_calls.append(call)
            fault(call)

    with host(scenario) as at:
        at.files.before = before

        def attempt(action: Callable[[], Any], done: int) -> Any:
            nonlocal failed_commands
            try:
                return action()
            except error:
                assert failed_calls, "a command has failed without a fault"
                failed_commands += 1
                if at.engine is not None:
                    assert differences(state_of(at.engine), states[done]) == []
                    assert differences(at.state_on_disk(), states[done]) == []
                return action()

        attempt(at.open, 0)
        items, answer = scenario.run(), None
        for number in range(len(states) - 1):
            item = items.send(answer)
            answer = None
            if isinstance(item, Advance):
                at.time.advance(item.step_us / SECOND)
            elif isinstance(item, Reopen):
                at.close()
                attempt(at.open, number)
            elif isinstance(item, Command):
                answer = attempt(partial(at.perform, item), number)
        assert differences(state_of(at.open()), states[-1]) == []
        at.close()
        assert differences(at.state_on_disk(), states[-1]) == []
    return len(failed_calls), failed_commands


def scenario_named(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


def calls_of(scenario: Scenario, *verbs: str) -> int:
    count = 0

    def count_call(call: Call) -> bool:
        nonlocal count
        count += call.verb in verbs
        return False

    play_with_a_fault(scenario, count_call, lambda call: None, EngineUnavailable)
    return count


@pytest.mark.parametrize("fault", WRITE_FAULTS)
@pytest.mark.parametrize("name", ["exchanging", "rotation"])
def test_a_write_that_fails_leaves_the_state_as_it_was(name: str, fault: str) -> None:
    """A few of the writes; `make chaos` takes all of them."""
    play_write_faults(scenario_named(name), fault, step=23)


@pytest.mark.chaos
@pytest.mark.parametrize("fault", WRITE_FAULTS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_each_write_that_fails_leaves_the_state_as_it_was(scenario: Scenario, fault: str) -> None:
    play_write_faults(scenario, fault, step=1)


CHANGING = ("write", "create", "rename", "truncate", "allocate", "mkdir", "remove")


def play_write_faults(scenario: Scenario, name: str, step: int) -> None:
    fault, error = WRITE_FAULTS[name]
    failed = reached = 0
    numbers = range(1, calls_of(scenario, *CHANGING) + 1, step)
    for number in numbers:
        left = number

        def is_hit(call: Call) -> bool:
            nonlocal left
            left -= call.verb in CHANGING
            return left == 0 and call.verb in CHANGING

        calls, commands = play_with_a_fault(scenario, is_hit, fault, error)
        reached += calls
        failed += commands
    assert failed > 0
    # A thread writes the snapshots: a run may have a few calls fewer than the run that counted them.
    assert reached >= 0.9 * len(numbers)


def refuse(code: int) -> Callable[[object], None]:
    def raise_error(_: object) -> None:
        raise OSError(code, os.strerror(code))

    return raise_error


def test_a_process_without_free_file_descriptors_works_again_when_it_has_some() -> None:
    with host(scenario_named("rotation")) as at:
        at.files.before_open = refuse(errno.EMFILE)
        with pytest.raises(EngineUnavailable, match="Too many open files"):
            at.open()
        at.files.before_open = lambda path: None
        engine = at.open()
        engine.perform_now(enqueue(new.new_job("before")))
        at.files.before_open = refuse(errno.EMFILE)
        for number in range(8):  # the segment is full after four
            engine.perform_now(enqueue(new.new_job(f"full {number}", payload=b"x" * 1_000)))
        at.files.before_open = lambda path: None
        engine.perform_now(enqueue(new.new_job("after")))
        assert differences(at.state_on_disk(), state_of(engine)) == []


def test_a_disk_that_is_read_only_refuses_every_write_and_answers_reads() -> None:
    with host(scenario_named("exchanging")) as at:
        engine = at.open()
        engine.perform_now(enqueue(new.new_job("before")))
        state = state_of(engine)
        at.disk.read_only = True
        for _ in range(2):
            with pytest.raises(EngineUnavailable, match="Read-only"):
                engine.perform_now(enqueue(new.new_job("refused")))
            assert engine.perform_now(Get(jobs=(JobKey(new.QUEUE, "before"),))).jobs[0] is not None
        assert differences(state_of(engine), state) == []
        at.disk.read_only = False
        engine.perform_now(enqueue(new.new_job("after")))
        assert differences(at.state_on_disk(), state_of(engine)) == []


def test_a_store_that_cannot_be_opened_says_why_once() -> None:
    with host(scenario_named("exchanging")) as at:

        def fail_to_write_a_segment(call: Call) -> None:
            if call.verb == "rename" and call.path.endswith(".journal"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        at.files.before = fail_to_write_a_segment
        with pytest.raises(
            EngineUnavailable, match=r"^[^(]*could not be written: .Errno 5. Input/output error. Nothing"
        ):
            at.open()


def test_a_read_that_fails_is_a_typed_error_and_the_next_one_answers() -> None:
    with host(scenario_named("exchanging")) as at, host(scenario_named("exchanging")) as other:
        engine = at.open()
        engine.perform_now(enqueue(new.new_job("before")))
        other.files = InterceptedFiles(SimulatedFiles(at.disk), ROOT)
        other.runtime = ProcessRuntime(at.time, other.files, seed=1)
        reader = other.open()
        commands: list[Command[Any]] = [Get(jobs=(JobKey(new.QUEUE, "before"),)), enqueue(new.new_job("theirs"))]
        for command in commands:
            engine.perform_now(enqueue(new.new_job(f"new for {type(command).__name__}")))
            other.files.before_read = refuse(errno.EIO)
            with pytest.raises(EngineUnavailable, match="Input/output error"):
                reader.perform_now(command)
            other.files.before_read = lambda path: None
            reader.perform_now(command)
        assert differences(at.state_on_disk(), state_of(reader)) == []


# A sync that fails: what was not synced may be lost, and a second sync would not say so


def problems_after_a_failed_sync(scenario: Scenario, number: int) -> tuple[bool, list[str]]:
    """Let the sync of this number fail. True: there was one."""
    states = [EMPTY, *(progress.state for progress in expected_states(scenario))]
    left, durable = number, 0

    def before(call: Call) -> None:
        nonlocal left
        if call.verb not in ("sync", "sync_folder"):
            return
        left -= 1
        if left == 0:
            node = at.disk.node(call.path)
            if isinstance(node, SimulatedFile):
                at.disk.lose_unsynced(node, seed=number)
            elif node is not None and call.path == f"{STORE}/holdfast":
                at.disk.lose_unsynced_names(node)
            raise OSError(errno.EIO, os.strerror(errno.EIO), call.path)

    with host(scenario) as at:
        at.files.before = before
        items, answer, begun = scenario.run(), None, 0
        try:
            at.open()
            for begun in range(1, len(states)):
                item = items.send(answer)
                answer = None
                if isinstance(item, Advance):
                    at.time.advance(item.step_us / SECOND)
                    continue
                if isinstance(item, Reopen):
                    at.close()
                    at.open()
                elif isinstance(item, Command):
                    answer = at.perform(item)
                if not isinstance(item, NOT_DURABLE):
                    durable = begun
        except (EngineUnavailable, OutcomeUnknown):
            assert left <= 0, "a command has failed without a fault"
            if at.engine is not None:
                with pytest.raises(EngineUnavailable, match="sync has failed"):
                    at.engine.perform_now(enqueue(new.new_job("refused")))
        possible = states[durable : begun + 1]
        problems = [
            f"power cut: {problem}"
            for seed in range(4)
            for problem in at.problems(at.disk.image().after_power_cut(seed), possible)
        ]
        at.close()
        problems += [f"opened again: {problem}" for problem in at.problems(at.disk, possible)]
    return left <= 0, [f"{scenario.name}, sync {number}: {problem}" for problem in problems]


def play_failed_syncs(scenario: Scenario, step: int) -> list[str]:
    number, problems = 1, list[str]()
    while True:
        was_there, found = problems_after_a_failed_sync(scenario, number)
        problems += found
        if not was_there:
            assert number > 3 * step
            return problems
        number += step


@pytest.mark.parametrize("name", ["exchanging", "rotation"])
def test_after_a_failed_sync_the_store_is_refused_and_then_written_anew(name: str) -> None:
    """A few of the syncs; `make chaos` takes all of them."""
    assert play_failed_syncs(scenario_named(name), step=3 if name == "exchanging" else 17) == []


@pytest.mark.chaos
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_after_each_failed_sync_the_store_is_refused_and_then_written_anew(scenario: Scenario) -> None:
    assert play_failed_syncs(scenario, step=1) == []
