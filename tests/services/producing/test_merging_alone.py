"""What is not merged: a group that may wait for a user's transaction, a group that is refused; and lost answers."""

import asyncio
from typing import Any

import pytest
from eventually import eventually, idle
from failing_engine import FailingEngine, fail_times
from manual_worker import succeed
from msgspec.structs import replace

from holdfast import App, InvalidOption, OutcomeUnknown, Task
from holdfast.core.enqueue import enqueue
from holdfast.engines.memory import MemoryEngine
from holdfast.model.command import A, Command
from holdfast.model.produce import Enqueue, NewJob
from holdfast.runtime import SystemRuntime


class GatedEngine(FailingEngine):
    """A server elsewhere whose writes wait until the test lets them go, and where users have transactions."""

    capabilities = replace(MemoryEngine.capabilities, user_transactions=True, concurrent_writers=True)

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


async def at_once(jobs: App[Any], engine: GatedEngine, *calls: Any) -> list[Any]:
    """Start all calls, then open the gate."""
    with jobs.swapped(engine, jobs.runtime):
        await jobs.aopen()
        tasks = [asyncio.ensure_future(call) for call in calls]
        await idle()
        engine.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_job_with_an_id_of_its_caller_s_is_written_alone_where_users_have_transactions(
    jobs: App[object], resize: Task[[str], str]
) -> None:
    """Another user's open transaction may hold the id, and the whole write would wait for it."""
    engine = GatedEngine()
    await at_once(jobs, engine, *(resize.using(id=f"{n}").aenqueue(f"{n}") for n in range(5)))
    assert engine.writes == [1] * 5
    engine = GatedEngine()
    await at_once(jobs, engine, *(resize.aenqueue(f"{n}") for n in range(5)))
    assert engine.writes == [1, 4]


async def test_a_group_that_cannot_be_stored_is_refused_before_it_is_merged(jobs: App[object]) -> None:
    engine = GatedEngine()
    ids = ["first", "second", "bad\0", "third"]
    calls = [enqueue(jobs._store, (NewJob(queue="q", id=id, fresh_id=True),)) for id in ids]
    answers = await at_once(jobs, engine, *calls)
    assert [type(answer).__name__ for answer in answers] == ["tuple", "tuple", InvalidOption.__name__, "tuple"]
    assert engine.writes == [1, 2]


async def test_a_producer_that_waits_for_room_tries_again_in_case_a_notification_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_QUEUES_DEFAULT_MAX_DEPTH", "1")
    monkeypatch.setattr("holdfast.core.enqueue.RETRY_FULL_QUEUE_AFTER_S", 0.01)
    jobs: App[Any] = App("memory://")

    @jobs.task
    def resize(image: str) -> str:
        return image

    async with jobs, asyncio.timeout(20):
        await resize.aenqueue("first")
        waiting = asyncio.ensure_future(resize.using(wait_for_room=60).aenqueue("second"))
        engine: Any = jobs.engine
        await eventually(lambda: engine._topics.has_waiter)
        monkeypatch.setattr(engine._topics, "notify", lambda topics: None)
        await succeed(jobs, resize, "done")
        assert (await waiting).created


def test_after_a_lost_answer_an_id_of_the_caller_s_counts_as_a_duplicate(
    jobs: App[object], resize: Task[[str], str]
) -> None:
    """It cannot be known whether this call or an earlier one has created it."""
    engine = FailingEngine(SystemRuntime())
    engine.after = fail_times(1, Enqueue, lambda: OutcomeUnknown(verb="enqueue"))
    with jobs.swapped(engine, jobs.runtime):
        handle = resize.using(id="mine").enqueue("cat.png")
    assert (handle.id, handle.created) == ("mine", False)
