"""Handlers in processes of their own: whatever one does to its process, only its own job suffers."""

import asyncio
import json
import os
import random
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from eventually import eventually
from isolated_worker import SECRET, SUPPORT, IsolatedWorker, is_alive, isolated_worker

from holdfast.model.job import AttemptOutcome, JobRecord
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import TERMINAL, JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.process_death import death_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="It reads /proc")

BROKEN = "a broken connection"

DEATHS: dict[str, tuple[str, list[Any], set[str]]] = {
    "segfault": ("segfaults", [], {"SIGSEGV"}),
    "exit-0": ("exits", [0], {"exit code 0"}),
    "exit-3": ("exits", [3], {"exit code 3"}),
    "abort": ("aborts", [], {"SIGABRT"}),
    "kill": ("is_killed", [signal.SIGKILL], {"SIGKILL"}),
    "victim": ("waits_for_a_kill", [], {"SIGKILL"}),
    "malloc": ("writes_where_malloc_found_nothing", [], {"SIGSEGV"}),
    "fork": ("forks_and_exits", [7], {"exit code 7"}),
    "loop-exit": ("exits_in_a_task", [], {"exit code 1"}),
    "loop-stop": ("stops_its_event_loop", [], {"exit code 1"}),
    "closed": ("closes_its_sockets", [], {BROKEN, "exit code 1"}),
    "closed-and-stays": ("closes_its_sockets_and_stays", [], {BROKEN, "exit code 1"}),
    "shut-down": ("shuts_its_sockets_down", [], {BROKEN, "exit code 1"}),
    **{f"garbage-{kind}": ("writes_garbage", [kind], {BROKEN}) for kind in range(3)},
}
"""Each of them ends with its first loss. By id: task, arguments, causes that may be named."""
if sys.version_info < (3, 12):  # later releases refuse such a depth
    DEATHS["stack"] = ("overflows_the_stack", [], {"SIGSEGV"})

TIMEOUTS = {
    "blocks-signals": "blocks_all_signals",
    "stopped": "stops_itself",
    "ignores-abort": "ignores_its_abort",
    "blocks-loop": "blocks_its_event_loop",
}

SHORT = {"segfault", "exit-0", "victim", "fork", "loop-exit", "closed-and-stays", "garbage-0", "blocks-signals"}
"""One of each kind, for the ordinary form of the test."""


def neighbours(seconds: float, mebibytes: int) -> dict[str, tuple[str, list[Any]]]:
    """They run meanwhile. One holds the GIL all the time, for longer than its lease."""
    return {
        "async": ("async_neighbour", [seconds]),
        "thread": ("thread_neighbour", [seconds]),
        "isolated": ("isolated_neighbour", [seconds]),
        "gil": ("holds_the_gil", [max(seconds, 3.2)]),
        "prints": ("prints_much", [mebibytes]),
        "pool": ("uses_a_pool", []),
    }


def assert_ran_once(record: JobRecord) -> None:
    assert (record.state, record.attempt, record.losses) == (JobState.SUCCEEDED, 1, 0), (record.id, record.last_error)


async def test_whatever_a_process_does_fails_only_its_own_job(tmp_path: Path) -> None:
    await check_neighbours(tmp_path, SHORT, neighbours(1, 2))


@pytest.mark.chaos
async def test_whatever_a_process_does_fails_only_its_own_job_at_length(tmp_path: Path) -> None:
    await check_neighbours(tmp_path, {*DEATHS, *TIMEOUTS}, neighbours(6.5, 10))


async def check_neighbours(tmp_path: Path, ids: set[str], beside: dict[str, tuple[str, list[Any]]]) -> None:
    deaths = {id: death for id, death in DEATHS.items() if id in ids}
    timeouts = {id: task for id, task in TIMEOUTS.items() if id in ids}
    async with isolated_worker(tmp_path, concurrency=10) as worker:
        assert worker.children() == set(), "started on first use"
        await worker.enqueue(*((id, task, args) for id, (task, args) in beside.items()))
        await worker.enqueue(*((id, task, args) for id, (task, args, _) in deaths.items()))
        await worker.enqueue(*((id, task, []) for id, task in timeouts.items()))
        (victim,) = await worker.noted_pids("victim")
        os.kill(victim, signal.SIGKILL)
        records = await worker.ended([*beside, *deaths, *timeouts])

        for id in beside:
            assert_ran_once(records[id])
        for id, (_, _, causes) in deaths.items():
            record = records[id]
            assert (record.state, record.reason, record.losses) == (JobState.FAILED, Reason.WORKER_LOST, 1), id
            assert [run.outcome for run in record.history] == [AttemptOutcome.WORKER_LOST], id
            death = death_of(record.last_error)
            assert death is not None, id
            assert death.cause in causes, (id, record.last_error)
            assert death.peak_mib is not None, id
            assert 5 <= death.peak_mib <= 1000, (id, death)
        for id in timeouts:
            record = records[id]
            assert (record.state, record.reason, record.losses) == (JobState.FAILED, Reason.TIMEOUT, 0), id
        assert len(worker.children()) <= 10
        (grandchild,) = await worker.noted_pids("grandchildren")
        await eventually(lambda: not is_alive(grandchild), "the grandchild to end")
        await eventually(lambda: not worker.zombies(), "the zombies to be reaped")

        # They have been replaced, and what runs now meets nothing of what was before.
        after = {f"after-{number}": ("pid_of", [number]) for number in range(20)}
        await worker.enqueue(*((id, task, args) for id, (task, args) in after.items()))
        for record in (await worker.ended(after)).values():
            assert_ran_once(record)
        assert os.listdir(tmp_path / "tmp") == []


async def test_a_process_is_kept_and_there_is_one_per_slot_at_most(tmp_path: Path) -> None:
    async with isolated_worker(tmp_path, concurrency=3) as worker:
        await worker.result("async_neighbour", 0)
        assert worker.children() == set(), "started on first use"
        first = await worker.result("pid_of", 0)
        assert await worker.result("pid_of", 1) == first
        await worker.enqueue(*((f"job-{number}", "pid_of", [number]) for number in range(100)))
        records = await worker.ended(f"job-{number}" for number in range(100))
        pids = {int(record.result or b"0") for record in records.values()}
        assert first in pids
        assert len(pids) <= 3
        assert worker.children() == pids

        # One of them ends while it has nothing to do.
        gone = await worker.result("exits_soon_after", 5)
        await eventually(lambda: gone not in worker.children(), "the idle process to end")
        await eventually(lambda: not worker.zombies(), "the zombie to be reaped")
        await worker.enqueue(*((f"more-{number}", "pid_of", [number]) for number in range(30)))
        for record in (await worker.ended(f"more-{number}" for number in range(30))).values():
            assert_ran_once(record)

        # A process that keeps its state shows it to no later job.
        before = await worker.result("surroundings")
        await worker.result("changes_its_surroundings")
        for _ in range(6):
            assert await worker.result("surroundings") == before
        for _ in range(3):
            await worker.result("leaves_a_thread")
        assert len(worker.children()) <= 3


async def test_a_process_has_no_access_to_the_store(tmp_path: Path) -> None:
    async with isolated_worker(tmp_path, concurrency=2) as worker:
        seen = await worker.result("what_it_sees")
        assert SECRET not in json.dumps(seen)
        assert "HOLDFAST_" not in seen["proc_environ"]
        assert not any(name.startswith("HOLDFAST_") for name in seen["environ"])
        assert seen["environ"]["ISOLATED_FOLDER"] == str(tmp_path)
        session, pid, parent = seen["session"]
        assert (session, parent) == (pid, worker.process.pid)
        others = {number: target for number, target in seen["descriptors"].items() if int(number) > 2 and target}
        assert {target.partition(":")[0] for target in others.values()} <= {"socket", "anon_inode", "pipe"}
        assert "socket" not in seen["program"]

        ways = ["enqueue", "aenqueue", "many", "queue", "control", "open", "migrate", "worker", "default"]
        url = f"sqlite:///{tmp_path}/other.db"
        names = [*ways, *(f"other-{way}" for way in ("queue", "control", "open", "migrate", "worker"))]
        await worker.enqueue(*((name, "uses_the_store", [name, url]) for name in names))
        records = await worker.ended(names)
        answers = {name: json.loads(records[name].result or b'""') for name in names}
        assert {name: answer.partition(":")[0] for name, answer in answers.items()} == dict.fromkeys(
            names, "Unsupported"
        ), answers
        assert not (tmp_path / "other.db").exists()


async def test_processes_end_with_a_killed_worker_within_a_second(tmp_path: Path) -> None:
    async with isolated_worker(tmp_path, concurrency=4) as worker:
        await worker.enqueue(
            ("waits", "waits_for_ever", ["started"]),
            ("blocked", "waits_with_blocked_signals", ["started"]),
            ("gil", "holds_the_gil", [600]),
        )
        await worker.noted_pids("started", 2)
        await eventually(lambda: len(worker.children()) >= 3, "the third process")
        children = worker.children()
        worker.process.kill()
        await asyncio.to_thread(worker.process.wait)
        await eventually(lambda: not any(map(is_alive, children)), "the children to end", limit_s=30)


async def test_a_worker_that_is_stopped_kills_after_its_grace_and_releases_free_of_charge(tmp_path: Path) -> None:
    async with isolated_worker(tmp_path, concurrency=4, grace=3) as worker:  # seconds in which "short" ends
        await worker.enqueue(
            ("waits", "waits_for_ever", ["started"]),
            ("blocked", "waits_with_blocked_signals", ["started"]),
            ("gil", "holds_the_gil", [600]),
            ("short", "waits_for_file", ["may-end"]),
        )
        await worker.noted_pids("started", 2)
        await worker.noted_pids("may-end.started")
        await eventually(lambda: len(worker.children()) >= 4, "the fourth process")
        children = worker.children()
        worker.process.terminate()
        (tmp_path / "may-end").touch()
        assert await asyncio.to_thread(worker.process.wait, 30) == 0
        assert not any(map(is_alive, children))
        records = await worker.records(["waits", "blocked", "gil", "short"])
        assert_ran_once(records["short"])
        for id in ("waits", "blocked", "gil"):
            record = records[id]
            assert (record.state, record.attempt, record.losses, record.token) == (JobState.QUEUED, 0, 0, None), id


async def test_a_cancelled_job_is_killed(tmp_path: Path) -> None:
    async with isolated_worker(tmp_path, concurrency=2) as worker:
        await worker.enqueue(("waits", "waits_with_blocked_signals", ["started"]))
        (pid,) = await worker.noted_pids("started")
        await worker.engine.cancel("default", "waits")
        record = (await worker.ended(["waits"]))["waits"]
        assert (record.state, record.reason, record.losses) == (JobState.CANCELLED, Reason.ASKED, 0)
        await eventually(lambda: not is_alive(pid), "the process to end")


async def test_a_poison_job_ends_with_its_cause_and_peak_memory(tmp_path: Path) -> None:
    async with isolated_worker(tmp_path, concurrency=2) as worker:
        record = await worker.run("poison")
        assert (record.state, record.reason, record.losses) == (JobState.FAILED, Reason.WORKER_LOST, 3)
        assert [run.outcome for run in record.history] == [AttemptOutcome.WORKER_LOST] * 3
        for run in record.history:
            death = death_of(run.error)
            assert death is not None
            assert death.cause == "SIGSEGV"
            # Not how much: the process dies before it is measured again. test_isolated_handlers.py tests the figure.
            assert death.peak_mib


# --- The same outcomes as in the worker's process ---

PAYLOADS = {
    "returns_text": b'[["ab"],{"times":3}]',
    "returns_from_async": b"[[4],{}]",
    "returns_dataclass": b'[[{"x":1}],{}]',
    "takes_bytes": msgspec.msgpack.encode([[b"\x00\xff"], {}]),
}
BAD_PAYLOADS = {"no-json": b"{", "not-a-call": b"[1]", "does-not-fit": b'[["ab"],{"times":"x"}]', "too-few": b"[[],{}]"}


def outcome_of(record: JobRecord) -> dict[str, Any]:
    """What is stored about the end of a job, without times and places."""

    def of_error(error: ErrorInfo | None) -> Any:
        if error is None:
            return None
        texts = (error.type, error.message, "".join(error.traceback.rstrip().splitlines()[-1:]))
        return tuple(re.sub(r"\b(here|apart)\.", "", text) for text in texts)

    return {
        "state": record.state,
        "reason": record.reason,
        "note": record.note,
        "result": record.result,
        "attempt": record.attempt,
        "losses": record.losses,
        "progress": record.progress,
        "error": of_error(record.last_error),
        "history": [(run.number, run.outcome, of_error(run.error)) for run in record.history],
    }


async def test_outcomes_are_the_same_in_a_process_of_its_own(tmp_path: Path) -> None:
    source = (SUPPORT / "isolated_pairs.py").read_text()
    handlers = re.findall(r"^@twice\(.*\)\n(?:async )?def (\w+)", source, re.MULTILINE)
    assert len(handlers) >= 25
    calls = {name: (name, PAYLOADS.get(name, b"[[],{}]")) for name in handlers}
    calls |= {name: ("returns_text", payload) for name, payload in BAD_PAYLOADS.items()}
    async with isolated_worker(tmp_path, app="isolated_pairs", concurrency=4) as worker:
        new = [
            NewJob(
                queue="default",
                id=f"{where}.{name}",
                task=f"{where}.{task}",
                payload=payload,
                codec="msgpack" if task == "takes_bytes" else "json",
                metadata={"of": name},
            )
            for where in ("here", "apart")
            for name, (task, payload) in calls.items()
        ]
        await worker.engine.enqueue(Group(tuple(new)))
        records = await worker.ended((job.id for job in new), states=TERMINAL | {JobState.SCHEDULED})
        here = {name: outcome_of(records[f"here.{name}"]) for name in calls}
        apart = {name: outcome_of(records[f"apart.{name}"]) for name in calls}
        assert {name: apart[name] for name in calls if apart[name] != here[name]} == {
            name: here[name] for name in calls if apart[name] != here[name]
        }
        assert {outcome["state"] for outcome in here.values()} == {
            JobState.SUCCEEDED,
            JobState.FAILED,
            JobState.CANCELLED,
            JobState.SCHEDULED,
        }


# --- At full length ---


async def storm(worker: IsolatedWorker, ids: list[str], kills: int) -> int:
    """Kill children until all jobs have ended; return the number of kills.

    Every second victim has just begun a job, the others are chosen at random: they start, run or have nothing to do.
    """
    dice = random.Random(7)
    killed = 0
    with worker.engine.subscribe("room:default") as ended:
        while (done := (await worker.engine.stats("default")).queues[0].totals.finished) < len(ids):
            assert worker.process.poll() is None, worker.log()
            children = worker.children()
            last_starts = [int(line.split()[0]) for line in worker.noted("runs")[-4:]]
            victims = sorted(children) if killed % 2 else [pid for pid in last_starts if pid in children]
            if killed < kills and victims and done >= len(ids) * killed / (kills + 10):
                with suppress(ProcessLookupError):
                    os.kill(dice.choice(victims), signal.SIGKILL)
                    killed += 1
            else:
                await ended.wait(0.05)
    return killed


@pytest.mark.chaos
@pytest.mark.time_limit(600)
async def test_two_thousand_jobs_survive_a_storm_of_kills(tmp_path: Path) -> None:
    ids = [f"job-{number}" for number in range(2_000)]
    async with isolated_worker(tmp_path, concurrency=4) as worker:
        await worker.enqueue(*((id, "short", [1]) for id in ids))
        killed = await storm(worker, ids, kills=200)
        records = await worker.records(ids)
        stats = (await worker.engine.stats("default")).queues[0]
        assert {record.state for record in records.values()} == {JobState.SUCCEEDED}
        assert {record.result for record in records.values()} == {b"2"}
        assert len(records) == stats.totals.succeeded == stats.totals.finished == 2_000
        losses = sum(record.losses for record in records.values())
        assert killed / 10 <= losses <= killed
        starts: dict[str, int] = {}
        for line in worker.noted("runs"):
            starts[line.split()[2]] = starts.get(line.split()[2], 0) + 1
        assert set(starts) == set(ids)
        for record in records.values():
            assert 1 <= starts[record.id] <= record.losses + 1
        assert await worker.engine.audit() == ()
        print(f"{killed} kills, {losses} losses, {sum(starts.values())} runs")


@pytest.mark.chaos
@pytest.mark.time_limit(900)
async def test_five_hundred_deaths_leave_nothing_behind(tmp_path: Path) -> None:
    async with isolated_worker(tmp_path, concurrency=4) as worker:
        await worker.enqueue(*((f"warm-{number}", "exits", [1]) for number in range(20)))
        await worker.ended(f"warm-{number}" for number in range(20))
        await eventually(lambda: not worker.children() and not worker.zombies(), "the children to end")
        descriptors = worker.descriptors()
        threads = len(os.listdir(f"/proc/{worker.process.pid}/task"))
        for start in range(0, 500, 100):
            ids = [f"job-{start + number}" for number in range(100)]
            await worker.enqueue(*((id, "exits", [3]) for id in ids))
            await worker.ended(ids, limit_s=300)
        await eventually(lambda: not worker.children() and not worker.zombies(), "the children to end")
        assert abs(worker.descriptors() - descriptors) <= 2
        assert abs(len(os.listdir(f"/proc/{worker.process.pid}/task")) - threads) <= 2
        assert os.listdir(tmp_path / "tmp") == []


@pytest.mark.chaos
@pytest.mark.time_limit(300)
async def test_a_call_that_holds_the_gil_for_ten_leases_loses_none(tmp_path: Path) -> None:
    async with isolated_worker(tmp_path, concurrency=6) as worker:
        jobs: dict[str, tuple[str, list[Any]]] = {
            "gil": ("holds_the_gil", [31]),
            "gil-2": ("holds_the_gil", [31]),
            "async": ("async_neighbour", [30]),
            "thread": ("thread_neighbour", [30]),
            "isolated": ("isolated_neighbour", [30]),
        }
        await worker.enqueue(*((id, task, args) for id, (task, args) in jobs.items()))
        for record in (await worker.ended(jobs, limit_s=200)).values():
            assert_ran_once(record)
        assert "is lost" not in worker.log()
