"""Small parts of the manager: the delays between restarts, the lines of children, and the load."""

import json
import os
from collections import deque
from io import BytesIO, StringIO

import pytest

from holdfast.cli.exits import UNREACHABLE
from holdfast.manager import output
from holdfast.manager.children import UNREACHABLE_STORE
from holdfast.manager.output import MAX_LINE_BYTES, ChildStream, with_number
from holdfast.manager.restarts import HEALTHY_US, LONGEST_DELAY_US, Restarts
from holdfast.manager.scaling import QueueLoad
from holdfast.manager.upkeep import load_of
from holdfast.model.instants import SECOND
from holdfast.model.observe import QueueStats
from holdfast.model.records import Totals, WorkerRecord
from holdfast.model.states import JobState
from holdfast.runtime import SystemRuntime

# Restarts


def test_the_manager_knows_the_exit_code_of_a_worker_without_a_store() -> None:
    assert UNREACHABLE_STORE == UNREACHABLE


def test_the_first_restart_comes_at_once_and_each_further_one_later() -> None:
    restarts, now, delays = Restarts(), 100 * SECOND, []
    for _ in range(10):
        created_at, now = now + 1, now + SECOND
        restarts.note_end(created_at, None, now)
        delays.append((restarts.not_before - now) / SECOND)
        now = restarts.not_before
    assert delays == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert LONGEST_DELAY_US == 30 * SECOND


def test_the_delay_stays_short_for_children_that_have_worked() -> None:
    restarts, now, delays = Restarts(), 100 * SECOND, []
    for _ in range(10):
        created_at, now = now + 1, now + 2 * SECOND
        restarts.note_end(created_at, created_at + SECOND, now)
        delays.append((restarts.not_before - now) / SECOND)
        now = restarts.not_before
    assert delays == [0, 0.5, 1, 1, 1, 1, 1, 1, 1, 1]


def test_children_that_die_together_count_once() -> None:
    restarts = Restarts()
    for _ in range(8):
        restarts.note_end(10 * SECOND, 11 * SECOND, 12 * SECOND)
    assert restarts.failures == 1
    assert restarts.not_before == 12 * SECOND


def test_the_end_of_a_child_that_has_worked_for_long_causes_no_delay() -> None:
    restarts = Restarts()
    restarts.note_end(0, None, SECOND)
    restarts.note_end(2 * SECOND, 3 * SECOND, 3 * SECOND + HEALTHY_US)
    assert restarts.failures == 0
    assert restarts.not_before == 3 * SECOND + HEALTHY_US


def test_only_a_child_that_started_after_the_failure_ends_the_delays() -> None:
    restarts = Restarts()
    restarts.note_end(0, None, 5 * SECOND)
    restarts.note_running(SECOND, 2 * SECOND, 60 * SECOND)
    assert restarts.failures == 1
    restarts.note_running(6 * SECOND, 7 * SECOND, 7 * SECOND + HEALTHY_US)
    assert restarts.failures == 0


# Output


def test_a_line_has_the_number_of_its_child() -> None:
    assert with_number(3, "12:00:01 INFO holdfast.worker: ready") == "child 3 | 12:00:01 INFO holdfast.worker: ready"


def test_a_line_of_json_stays_json() -> None:
    assert json.loads(with_number(3, '{"level": "info", "message": "a | b"}')) == {
        "child": 3,
        "level": "info",
        "message": "a | b",
    }
    assert with_number(3, "{}") == "child 3 | {}"


def stream() -> ChildStream:
    return ChildStream(1, BytesIO(), StringIO(), deque(maxlen=2))


def test_a_stream_is_cut_into_lines() -> None:
    lines = stream()
    assert lines.take(b"one\ntw") == ["one"]
    assert lines.take("o\nthr\xe9\n".encode("latin-1")) == ["two", "thr\\xe9"]
    assert lines.take(b"last") == []
    assert lines.take(b"") == ["last"]
    assert lines.take(b"") == []
    assert lines.tail == deque(["thr\\xe9", "last"])


def test_a_line_without_an_end_is_written_in_parts() -> None:
    lines = stream()
    assert [len(part) for part in lines.take(b"x" * (MAX_LINE_BYTES + 1))] == [MAX_LINE_BYTES + 1]
    assert lines.rest == b""


# QueueLoad

NOW = 1_000 * SECOND


def queue(name: str = "default", **fields: object) -> QueueStats:
    values: dict[str, object] = {
        "paused": False,
        "counts": {JobState.QUEUED: 7, JobState.RUNNING: 3, JobState.ASSIGNED: 1},
        "due": 7,
        "oldest_due": NOW - 4 * SECOND,
        "next_due": None,
        "totals": Totals(),
        "ready_tasks": ("work",),
    }
    return QueueStats(queue=name, **{**values, **fields})  # type: ignore[arg-type]


def load(*queues: QueueStats, alive: tuple[WorkerRecord, ...] = ()) -> QueueLoad:
    return load_of(queues, list(alive), frozenset({"work"}), manager="me", now=NOW)


def test_the_load_is_the_sum_of_the_queues() -> None:
    assert load(queue(), queue("mails", oldest_due=NOW - SECOND)) == QueueLoad(
        due=14, running=8, oldest_wait_us=4 * SECOND
    )


@pytest.mark.parametrize("changed", [{"paused": True}, {"ready_tasks": ("other",)}, {"due": 0, "oldest_due": None}])
def test_jobs_that_the_children_cannot_take_are_no_load(changed: dict[str, object]) -> None:
    assert load(queue("default", **changed)) == QueueLoad(due=0, running=4, oldest_wait_us=0)


def test_other_managers_and_workers_without_one_are_known_apart() -> None:
    def worker(name: str, slots: int, queues: tuple[str, ...] = ("default",)) -> WorkerRecord:
        return WorkerRecord(worker=name, slots=slots, queues=queues)

    alive = (
        WorkerRecord(worker="me", children=("mine",), min_children=1, max_children=9),
        WorkerRecord(worker="other", children=("its",), min_children=1, max_children=4),
        WorkerRecord(worker="elsewhere", children=("far",), min_children=1, max_children=4),
        worker("mine", 10),
        worker("its", 5),
        worker("far", 5, ("mails",)),
        worker("alone", 3),
    )
    assert load(queue(), alive=alive) == QueueLoad(
        due=7, running=4, oldest_wait_us=4 * SECOND, unmanaged_slots=3, other_capacity=20
    )


def test_a_log_that_nobody_reads_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "CLOSE_TIMEOUT_S", 0.05)
    reader, writer = os.pipe()
    with open(reader, "rb") as pipe, open(writer, "w", encoding="ascii") as target:
        log = output.LogStream(SystemRuntime(), target)
        for _ in range(100):
            log.write("é" * 1_000 + "\n")
        assert not log.close()
        lines = [pipe.readline() for _ in range(100)]
        monkeypatch.setattr(output, "CLOSE_TIMEOUT_S", 30)
        assert log.close()
        log.write("later\n")
        assert pipe.readline() == b"later\n"
    assert set(lines) == {b"\\xe9" * 1_000 + b"\n"}
