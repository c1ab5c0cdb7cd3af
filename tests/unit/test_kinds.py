"""The catalogue of work does the same thing every time: a table of all kinds, in this process and in others."""

import json
import os
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, JobState, kinds
from holdfast.context import Context
from holdfast.errors import Cancel, GiveUp, Retry, Snooze
from holdfast.kinds import KINDS, NotYet, behave, duration_s, payload_of, will_fail
from holdfast.task import declare_elsewhere

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "kinds.md"
GOLDEN = "819d8993f16703a5c6a351e4d1d37a1ab67e9d03a5b21b6e20c7bba29d6fcea0"
"""The hash of the table. If a kind must change, write the new one here: results of earlier runs cannot be compared."""


def run_of(name: str, key: str, attempt: int, leases: int) -> str:
    """What one run does, as text."""
    kind = KINDS[name]
    try:
        text = f"returns {behave(kind, key, attempt=attempt, leases=leases)!r}"
    except BaseException as error:
        delay = getattr(error, "delay", None)
        text = f"raises {type(error).__name__} {error.args!r} {error.__cause__!r} {delay}"
    payload = sha256(payload_of(kind, key).encode()).hexdigest()[:8]
    return f"{name} {key} {attempt} {leases}: {duration_s(kind, key, attempt=attempt):.6f} s {payload} {text}"


def table() -> list[str]:
    return [
        run_of(name, f"key-{number}", attempt, leases)
        for name in KINDS
        for number in range(6)
        for attempt, leases in ((1, 1), (1, 3), (2, 2), (4, 4))
    ]


def hash_of_table() -> str:
    return sha256("\n".join(table()).encode("utf-8", "surrogatepass")).hexdigest()


def test_every_kind_does_the_same_in_every_process() -> None:
    program = (
        f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]; import test_kinds as t; print(t.hash_of_table())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    others = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**environment, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1")
    ]
    assert hash_of_table() == GOLDEN
    assert [process.communicate(timeout=60)[0].strip() for process in others] == [GOLDEN, GOLDEN]


def test_there_are_about_thirty_and_each_is_described_on_one_line() -> None:
    assert 30 <= len(KINDS) <= 40
    for name, kind in KINDS.items():
        assert kind.name == name
        assert re.fullmatch(r"[a-z_]+", name)
        assert 0 < len(kind.about) <= 100
        assert "\n" not in kind.about
        assert (kind.form == "crash") == bool(kind.ends_process) == kind.about.startswith("ENDS ITS PROCESS")


def test_the_guide_has_the_table_of_all_kinds() -> None:
    rows = [f"| `{kind.name}` | {HANDLERS[kind.form]} | {kind.about} |" for kind in KINDS.values()]
    written = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert written == rows, "\n".join(rows)


HANDLERS = {"async": "`run`", "plain": "`run_plain`", "crash": "`run_crashing`"}


# What single kinds do


def test_a_stubborn_job_fails_three_times_and_then_succeeds() -> None:
    for attempt in (1, 2, 3):
        with pytest.raises(NotYet):
            behave(KINDS["stubborn"], "a", attempt=attempt)
    assert behave(KINDS["stubborn"], "a", attempt=4).startswith("stubborn:a:")


def test_which_flaky_jobs_fail_is_known_beforehand_and_about_one_in_twenty() -> None:
    failing = [key for key in map(str, range(2_000)) if will_fail(KINDS["flaky"], key)]
    assert 50 < len(failing) < 150
    with pytest.raises(NotYet):
        behave(KINDS["flaky"], failing[0], attempt=1)
    assert behave(KINDS["flaky"], failing[0], attempt=2)


def test_the_hopeless_give_up_the_unwanted_cancel_and_bad_data_is_chosen_by_key() -> None:
    with pytest.raises(GiveUp):
        behave(KINDS["hopeless"], "a", attempt=1)
    with pytest.raises(Cancel):
        behave(KINDS["unwanted"], "a", attempt=1)
    given_up = 0
    for number in range(1_000):
        try:
            behave(KINDS["bad_data"], str(number), attempt=1)
        except GiveUp:
            given_up += 1
    assert 50 < given_up < 150


def test_a_snooze_costs_a_lease_and_no_attempt() -> None:
    for leases in (1, 2):
        with pytest.raises(Snooze):
            behave(KINDS["snoozing"], "a", attempt=1, leases=leases)
    assert behave(KINDS["snoozing"], "a", attempt=1, leases=3)


def test_a_limited_job_asks_for_its_own_delay() -> None:
    with pytest.raises(Retry) as asked:
        behave(KINDS["rate_limited"], "a", attempt=1)
    assert asked.value.delay == 50_000


def test_sizes_are_as_they_say() -> None:
    assert len(behave(KINDS["bulky"], "a", attempt=1)) >= 100_000
    assert len(payload_of(KINDS["large_payload"], "a")) == 100_000
    assert payload_of(KINDS["quick"], "a") == ""


def test_durations_depend_on_the_key_and_on_nothing_else() -> None:
    varied = [duration_s(KINDS["varied"], str(n), attempt=1) for n in range(1_000)]
    assert 0.001 <= min(varied) < 0.005
    assert 0.095 < max(varied) <= 0.1
    assert varied == [duration_s(KINDS["varied"], str(n), attempt=2) for n in range(1_000)]
    tail = [duration_s(KINDS["long_tail"], str(n), attempt=1) for n in range(5_000)]
    assert set(tail) == {0.002, 1.0}
    assert 50 < tail.count(1.0) < 150
    assert [duration_s(KINDS["stuck"], "a", attempt=attempt) for attempt in (1, 2)] == [3_600, 0]


# As handlers


def contexts(kind: str) -> Context[Any]:
    return Context.detached(id=kind, task="run", queue="default")


async def test_a_kind_is_refused_by_the_handler_of_another_form() -> None:
    with pytest.raises(GiveUp, match=r"'cpu' needs the handler kinds\.run_plain"):
        await kinds.run(contexts("cpu"), "cpu", "a")
    with pytest.raises(GiveUp, match=r"'quick' needs the handler kinds\.run\."):
        kinds.run_plain(contexts("quick"), "quick", "a")
    for name in ("exits", "segfaults"):
        with pytest.raises(GiveUp, match="run_crashing"):
            await kinds.run(contexts(name), name, "a")
        with pytest.raises(GiveUp, match="run_crashing"):
            kinds.run_plain(contexts(name), name, "a")
    with pytest.raises(GiveUp, match="There is no kind 'quik'"):
        await kinds.run(contexts("quik"), "quik", "a")


NOT_RUN_HERE = ("stuck", "unstoppable", "exits", "segfaults")
ENDS = {
    "endless": JobState.FAILED,
    "hopeless": JobState.FAILED,
    "unstorable": JobState.FAILED,
    "unwanted": JobState.CANCELLED,
}
"""The others succeed, with a key that `bad_data` accepts."""


async def test_a_worker_runs_every_kind_to_the_end_that_it_says() -> None:
    jobs: App[Any] = App("memory://")
    run = jobs.task(max_attempts=4, backoff=0)(kinds.run)
    run_plain = jobs.task(max_attempts=4, backoff=0)(kinds.run_plain)
    async with jobs:
        for name, kind in KINDS.items():
            if name not in NOT_RUN_HERE:
                task = run if kind.form == "async" else run_plain
                await task.using(id=name).aenqueue(name, "key-1", payload_of(kind, "key-1"))
        await jobs.worker(until_empty=True, concurrency=4).arun()
        page = await jobs.control.afind(limit=100)
        found = {job.id: job.state for job in page}
        assert found == {name: ENDS.get(name, JobState.SUCCEEDED) for name in KINDS if name not in NOT_RUN_HERE}
        for name in ("quick", "silent", "nested", "all_types", "cpu", "bulky", "snoozing"):
            result = await jobs.client.handle(name).aresult(timeout=0)
            assert json.dumps(result) == json.dumps(behave(KINDS[name], "key-1", attempt=9))
        reporting = await jobs.control.aget("reporting")
        assert reporting.progress is not None
        assert reporting.progress.fraction == 1.0


async def test_the_crashing_kinds_end_a_child_process_and_then_succeed(caplog: pytest.LogCaptureFixture) -> None:
    from crashing_kinds import crash, jobs

    async with jobs:
        old = declare_elsewhere(jobs._store, "crash_before")  # as a producer of an earlier release has it
        await crash.using(id="exits").aenqueue("exits", "key-1")
        await old.using(id="segfaults").aenqueue("segfaults", "key-1")
        await jobs.worker(until_empty=True, concurrency=2).arun()
        for name, cause, task in (("exits", "exit code 41", "crash"), ("segfaults", "SIGSEGV", "crash_before")):
            job = await jobs.control.aget(name)
            assert (job.state, job.attempt, job.task) == (JobState.SUCCEEDED, 2, task)
            assert cause in caplog.text
