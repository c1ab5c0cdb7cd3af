"""Concurrent enqueues share a write, each with an answer of its own; and an answer that got lost is found again."""

import asyncio
from typing import Any

import pytest
from eventually import eventually
from failing_engine import FailingEngine, fail_times

from holdfast import App, EngineUnavailable, HistoryLost, IdConflict, JobState, OutcomeUnknown, Task
from holdfast.model.command import A, Command
from holdfast.model.observe import Get
from holdfast.model.produce import Enqueue
from holdfast.runtime import SystemRuntime
from holdfast.testing.contract.interleave import pass_turns

# Concurrent callers


class GatedEngine(FailingEngine):
    """An engine whose writes wait until the test lets them go."""

    def __init__(self) -> None:
        super().__init__(SystemRuntime())
        self.gate = asyncio.Event()

    async def perform(self, command: Command[A]) -> A:
        if isinstance(command, Enqueue):
            await self.gate.wait()
        return self.perform_now(command)

    @property
    def writes(self) -> list[int]:
        """How many groups each write had."""
        return [len(command.groups) for command in self.commands if isinstance(command, Enqueue)]


async def at_once(jobs: App[Any], engine: GatedEngine, *asked: Any) -> list[Any]:
    """Start all, let the first write and the gathering begin, then open the gate."""
    with jobs.swapped(engine, jobs.runtime):
        await jobs.aopen()
        calls = [asyncio.ensure_future(each) for each in asked]
        await eventually(lambda: len(jobs._store.process.per_loop().merger._waiting) == len(calls) - 1)
        engine.gate.set()
        return await asyncio.gather(*calls, return_exceptions=True)


async def test_concurrent_enqueues_share_a_write_and_keep_their_own_answers(
    jobs: App[object], resize: Task[[str], str]
) -> None:
    engine = GatedEngine()
    answers = await at_once(jobs, engine, *(resize.using(id=f"{n}").aenqueue(f"{n}") for n in range(20)))
    assert [handle.id for handle in answers] == [str(n) for n in range(20)]
    assert engine.writes == [1, 19]


async def test_many_part_into_two_writes_that_are_under_way_at_once(
    jobs: App[object], resize: Task[[str], str]
) -> None:
    engine = GatedEngine()
    answers = await at_once(jobs, engine, *(resize.using(id=f"{n}").aenqueue(f"{n}") for n in range(100)))
    assert [handle.id for handle in answers] == [str(n) for n in range(100)]
    assert engine.writes == [1, 49, 50]


async def test_jobs_with_a_lane_stay_in_one_write_in_the_order_of_their_calls(
    jobs: App[object], resize: Task[[str], str]
) -> None:
    """Two writes would take the lanes in any order."""

    engine = GatedEngine()
    laned = (resize.using(id=f"{n}", lane=f"{n % 3}").aenqueue(f"{n}") for n in range(100))
    answers = await at_once(jobs, engine, *laned)
    assert [handle.id for handle in answers] == [str(n) for n in range(100)]
    assert engine.writes == [1, 99]


class SlowWrites(GatedEngine):
    """An engine whose writes take a few turns of the event loop."""

    async def perform(self, command: Command[A]) -> A:
        await pass_turns(5)
        return self.perform_now(command)


async def test_callers_that_were_answered_share_their_next_write_too(
    jobs: App[object], resize: Task[[str], str]
) -> None:
    async def caller() -> None:
        for _ in range(3):
            await resize.aenqueue("cat.png")

    engine = SlowWrites()
    with jobs.swapped(engine, jobs.runtime):
        await jobs.aopen()
        await asyncio.gather(*(caller() for _ in range(10)))
    assert engine.writes == [1, 10, 10, 9]


async def test_a_single_caller_does_not_wait_for_others(jobs: App[object], resize: Task[[str], str]) -> None:
    engine = GatedEngine()
    engine.gate.set()
    with jobs.swapped(engine, jobs.runtime):
        for n in range(3):
            await resize.aenqueue(str(n))
    assert engine.writes == [1, 1, 1]


async def test_a_group_that_is_refused_fails_only_its_caller(jobs: App[object], resize: Task[[str], str]) -> None:
    engine = GatedEngine()
    created, conflict, other, duplicate = await at_once(
        jobs,
        engine,
        resize.using(id="x").aenqueue("a"),
        resize.using(id="x").aenqueue("other"),
        resize.using(id="y").aenqueue("b"),
        resize.using(id="x").aenqueue("a"),
    )
    assert (created.created, other.created, duplicate.created) == (True, True, False)
    assert isinstance(conflict, IdConflict)


async def test_what_the_engine_cannot_take_of_one_is_tried_for_each_alone(
    jobs: App[object], resize: Task[[str], str]
) -> None:
    engine = GatedEngine()

    def poisoned(command: Command[Any]) -> BaseException | None:
        bad = isinstance(command, Enqueue) and any(g.jobs[0].id == "bad" for g in command.groups)
        return ValueError("cannot be stored") if bad else None

    engine.before = poisoned
    names = ("first", "good", "bad", "fine")
    answers, writes = await at_once(jobs, engine, *(resize.using(id=n).aenqueue(n) for n in names)), engine.writes
    assert isinstance(answers.pop(2), ValueError)
    assert [handle.id for handle in answers] == ["first", "good", "fine"]
    assert writes == [1, 3, 1, 1, 1]


async def test_every_caller_gets_the_error_of_an_engine_that_is_gone(
    jobs: App[object], resize: Task[[str], str]
) -> None:
    engine = GatedEngine()
    engine.before = fail_times(2, Enqueue, lambda: EngineUnavailable(engine="memory"))
    answers = await at_once(jobs, engine, *(resize.aenqueue(str(n)) for n in range(4)))
    assert [type(answer) for answer in answers] == [EngineUnavailable] * 4
    assert len({id(answer) for answer in answers}) == 4


async def test_a_cancelled_caller_does_not_cancel_the_others(jobs: App[object], resize: Task[[str], str]) -> None:
    engine = GatedEngine()
    with jobs.swapped(engine, jobs.runtime):
        await jobs.aopen()
        calls = [asyncio.ensure_future(resize.aenqueue(str(n))) for n in range(4)]
        await eventually(lambda: len(jobs._store.process.per_loop().merger._waiting) == 3)
        calls[0].cancel()
        calls[2].cancel()
        engine.gate.set()
        answers, writes = await asyncio.gather(*calls, return_exceptions=True), engine.writes
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [True, False, True, False]
    assert writes == [2]


async def test_callers_are_answered_if_other_code_cancels_the_merging_task_before_its_first_step(
    jobs: App[object], resize: Task[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[asyncio.Task[Any]] = []
    spawn = jobs.runtime.spawn

    def spawn_and_cancel_first(coro: Any, *, name: str) -> asyncio.Task[Any]:
        tasks.append(spawn(coro, name=name))
        if len(tasks) == 1:
            tasks[0].cancel()
        return tasks[-1]

    monkeypatch.setattr(jobs.runtime, "spawn", spawn_and_cancel_first)
    answers = await at_once(jobs, GatedEngine(), *(resize.using(id=f"{n}").aenqueue(f"{n}") for n in range(4)))
    assert [handle.id for handle in answers] == [str(n) for n in range(4)]
    assert [task.get_name() for task in tasks] == ["holdfast enqueue"] * 2


async def test_callers_whose_write_is_cancelled_by_other_code_get_an_unknown_outcome(
    jobs: App[object], resize: Task[[str], str]
) -> None:
    engine = GatedEngine()
    with jobs.swapped(engine, jobs.runtime):
        await jobs.aopen()
        merger = jobs._store.process.per_loop().merger
        calls = [asyncio.ensure_future(resize.using(id=f"{n}").aenqueue(f"{n}")) for n in range(4)]
        await eventually(lambda: len(merger._waiting) == 3)
        calls[0].cancel()  # it wrote alone; the others share the next write
        await eventually(lambda: not merger._waiting)
        (writing,) = [task for task in asyncio.all_tasks() if task.get_name() == "holdfast enqueue"]
        later = asyncio.ensure_future(resize.using(id="later").aenqueue("later"))
        await eventually(lambda: merger._waiting)
        writing.cancel()
        answers = await asyncio.gather(*calls[1:], return_exceptions=True)
        engine.gate.set()
        assert (await later).created
    assert [(type(answer), getattr(answer, "job_ids", ())) for answer in answers] == [
        (OutcomeUnknown, (f"{n}",)) for n in (1, 2, 3)
    ]


async def test_a_merge_holds_a_thousand_jobs_or_a_mebibyte(jobs: App[object], resize: Task[[str], str]) -> None:
    engine = GatedEngine()
    batches = [[resize.draft(str(n)) for n in range(400)] for _ in range(6)]
    await at_once(jobs, engine, *(jobs.client.aenqueue_many(batch) for batch in batches))
    assert engine.writes == [1, 2, 2, 1]
    engine = GatedEngine()
    await at_once(jobs, engine, *(resize.aenqueue("x" * 400_000) for _ in range(6)))
    assert engine.writes == [1, 2, 2, 1]


# Answers that got lost


def test_a_lost_answer_is_found_again_by_the_id_we_made(jobs: App[object], resize: Task[[str], str]) -> None:
    engine = FailingEngine(SystemRuntime())
    engine.after = fail_times(1, Enqueue, lambda: OutcomeUnknown(verb="enqueue"))
    with jobs.swapped(engine, jobs.runtime):
        handle = resize.enqueue("a")
        assert handle.created
        assert handle.refresh().state is JobState.QUEUED


def test_a_write_of_which_nothing_is_found_stays_unknown(jobs: App[object], resize: Task[[str], str]) -> None:
    engine = FailingEngine(SystemRuntime())
    engine.before = fail_times(1, Enqueue, lambda: OutcomeUnknown(verb="enqueue"))
    with jobs.swapped(engine, jobs.runtime), pytest.raises(OutcomeUnknown) as unknown:
        resize.using(id="cat").enqueue("a")
    assert unknown.value.job_ids == ("cat",)


def test_a_write_that_cannot_be_looked_up_stays_unknown(jobs: App[object], resize: Task[[str], str]) -> None:
    """Never "nothing was written": it may have been."""
    engine = FailingEngine(SystemRuntime())
    engine.after = fail_times(1, Enqueue, lambda: OutcomeUnknown(verb="enqueue"))
    engine.before = fail_times(1, Get, lambda: EngineUnavailable("It is gone."))
    with jobs.swapped(engine, jobs.runtime), pytest.raises(OutcomeUnknown) as unknown:
        resize.using(id="cat").enqueue("a")
    assert unknown.value.job_ids == ("cat",)


def test_a_write_that_the_store_has_lost_raises_history_lost(jobs: App[object], resize: Task[[str], str]) -> None:
    """As after a failover: the connection is cut, and the look-up meets a server without the last writes."""
    engine = FailingEngine(SystemRuntime())
    cut = fail_times(1, Enqueue, lambda: OutcomeUnknown(verb="enqueue"))
    lost = fail_times(1, Get, HistoryLost)
    engine.before = lambda command: cut(command) or lost(command)
    with jobs.swapped(engine, jobs.runtime):
        with pytest.raises(HistoryLost):
            resize.using(id="cat").enqueue("a")

        assert resize.using(id="cat").enqueue("a").created  # nothing of it was written


def test_a_write_that_has_outlived_a_loss_is_found(jobs: App[object], resize: Task[[str], str]) -> None:
    engine = FailingEngine(SystemRuntime())
    engine.after = fail_times(1, Enqueue, lambda: OutcomeUnknown(verb="enqueue"))
    engine.before = fail_times(1, Get, HistoryLost)
    with jobs.swapped(engine, jobs.runtime):
        assert resize.enqueue("a").refresh().state is JobState.QUEUED


async def test_a_lost_answer_to_many_callers_is_found_again_for_each(
    jobs: App[object], resize: Task[[str], str]
) -> None:
    engine = GatedEngine()
    engine.after = fail_times(2, Enqueue, lambda: OutcomeUnknown(verb="enqueue"))
    assert [
        handle.created for handle in (await at_once(jobs, engine, *(resize.aenqueue(str(n)) for n in range(4))))
    ] == [True] * 4
