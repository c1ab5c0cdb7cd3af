"""The exchange: batches form by themselves, nothing is lost when a call fails, and no more is claimed than fits."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from eventually import eventually, idle
from failing_engine import FailingEngine, fail_times
from minimal_app import QUICK, GatedHandler, MinimalApp, MinimalTask, ShortSleepRuntime
from msgspec.structs import replace

from holdfast.engines.memory import MemoryEngine
from holdfast.errors import CorruptRecord, EngineUnavailable, InvalidOption, OutcomeUnknown, StorageFull
from holdfast.model.command import A, Command
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Exchange, ExchangeAnswer
from holdfast.runtime import SystemRuntime
from holdfast.service import StoreOutage
from holdfast.telemetry import events
from holdfast.testing import FrozenRuntime
from holdfast.worker.exchange import SETTLE_SEPARATELY_FROM
from holdfast.worker.resend import Resender


async def noop() -> str:
    return "done"


def faulty(
    *tasks: MinimalTask, runtime: SystemRuntime | None = None, **settings: Any
) -> tuple[MinimalApp, FailingEngine]:
    runtime = SystemRuntime() if runtime is None else runtime
    engine = FailingEngine(runtime)
    return MinimalApp(*tasks, runtime=runtime, engine=engine, **settings), engine


# Batches


async def test_outcomes_that_come_together_are_settled_together() -> None:
    app, engine = faulty(MinimalTask(noop))
    await app.put(*(app.job("noop") for _ in range(300)))
    await app.drain(concurrency=100)
    sizes = [len(exchange.settlements) for exchange in engine.exchanges]
    assert sum(sizes) == 300
    assert len(sizes) <= 6
    assert await app.counts() == {JobState.SUCCEEDED: 300}


async def test_an_exchange_carries_at_most_500_settlements() -> None:
    app, engine = faulty(MinimalTask(noop))
    await app.put(*(app.job("noop") for _ in range(1000)))
    await app.put(*(app.job("noop") for _ in range(300)))
    await app.drain(concurrency=1300)
    assert max(len(exchange.settlements) for exchange in engine.exchanges) == 500
    assert await app.counts() == {JobState.SUCCEEDED: 1300}


async def test_an_exchange_carries_at_most_a_mebibyte_of_results() -> None:
    async def large() -> str:
        return "x" * 400_000

    app, engine = faulty(MinimalTask(large))
    await app.put(*(app.job("large") for _ in range(7)))
    await app.drain(concurrency=7)
    sizes = [sum(len(one.result or b"") for one in exchange.settlements) for exchange in engine.exchanges]
    assert 400_000 < max(sizes) <= 1024 * 1024
    assert await app.counts() == {JobState.SUCCEEDED: 7}


class RemoteEngine(FailingEngine):
    """As a server elsewhere: it takes several calls at once, and no answer comes at once."""

    capabilities = replace(MemoryEngine.capabilities, shared_between_hosts=True)

    def __init__(self, runtime: SystemRuntime) -> None:
        super().__init__(runtime)
        self.held = self.most_held = self.under_way = self.most_under_way = 0

    async def perform(self, command: Command[A]) -> A:
        if not isinstance(command, Exchange):
            return self.perform_now(command)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(0.001)
            answer = self.perform_now(command)
        finally:
            self.under_way -= 1
        if isinstance(answer, ExchangeAnswer):
            self.held += len(answer.leases) - len(command.settlements)
            self.most_held = max(self.most_held, self.held)
        return answer  # type: ignore[return-value]  # mypy narrows the other way


def far(*tasks: MinimalTask, **settings: Any) -> tuple[MinimalApp, RemoteEngine]:
    runtime = SystemRuntime()
    engine = RemoteEngine(runtime)
    return MinimalApp(*tasks, runtime=runtime, engine=engine, **settings), engine


async def test_a_large_batch_is_settled_while_another_call_claims() -> None:
    app, engine = far(MinimalTask(noop))
    await app.put(*(app.job("noop") for _ in range(500)))
    await app.drain(concurrency=100)
    large = [exchange for exchange in engine.exchanges if len(exchange.settlements) >= SETTLE_SEPARATELY_FROM]
    assert len(large) >= 4
    assert all(exchange.claim is None for exchange in large)
    assert engine.most_under_way == 2
    assert engine.most_held <= 400
    assert await app.counts() == {JobState.SUCCEEDED: 500}


async def test_what_a_large_batch_lets_go_is_still_worked_on_until_nothing_is_left() -> None:
    """The claim beside it has come back empty, since every job waited for one that was being settled."""

    app, engine = far(MinimalTask(noop))
    heads = [app.job("noop", lane=str(lane)) for lane in range(60)]
    await app.put(*heads, *(app.job("noop", lane=head.lane) for head in heads))
    await app.drain(concurrency=100)
    assert engine.most_under_way == 2
    assert await app.counts() == {JobState.SUCCEEDED: 120}


async def test_a_small_batch_is_settled_by_the_call_that_claims() -> None:
    app, engine = far(MinimalTask(noop))
    await app.put(*(app.job("noop") for _ in range(60)))
    await app.drain(concurrency=SETTLE_SEPARATELY_FROM - 1)
    assert engine.most_under_way == 1
    assert all(exchange.claim is not None for exchange in engine.exchanges if exchange.settlements)
    assert await app.counts() == {JobState.SUCCEEDED: 60}


async def test_where_tasks_have_limits_one_call_is_under_way_at_a_time() -> None:
    app, engine = far(MinimalTask(noop, concurrency=50))
    await app.put(*(app.job("noop") for _ in range(300)))
    await app.drain(concurrency=100)
    assert engine.most_under_way == 1
    assert engine.most_held <= 50
    assert await app.counts() == {JobState.SUCCEEDED: 300}


async def test_a_claim_beside_a_settlement_that_fails_is_sent_again() -> None:
    app, engine = far(MinimalTask(noop))
    await app.put(*(app.job("noop") for _ in range(300)))
    failures = 0

    def refuse(command: Command[Any]) -> BaseException | None:
        nonlocal failures
        if isinstance(command, Exchange) and engine.under_way == 2 and failures < 3:
            failures += 1
            return EngineUnavailable("planted")
        return None

    engine.before = refuse
    await app.drain(concurrency=100)
    assert failures == 3
    assert await app.counts() == {JobState.SUCCEEDED: 300}


# Trouble


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "error",
    [EngineUnavailable, StorageFull, lambda: OutcomeUnknown(verb="exchange")],
    ids=["unavailable", "full", "unknown"],
)
async def test_a_failed_exchange_is_sent_again_word_for_word(moment: str, error: Any) -> None:
    app, engine = faulty(MinimalTask(noop), runtime=ShortSleepRuntime())
    setattr(engine, moment, fail_times(3, Exchange, error))
    ids = await app.put(*(app.job("noop") for _ in range(5)))
    await app.drain(concurrency=2)
    first, *again = engine.exchanges[:4]
    assert all(exchange == first for exchange in again)
    jobs = [await app.look(id) for id in ids]
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert {job.attempt for job in jobs} == {1}


async def test_a_settlement_whose_answer_was_lost_is_settled_once() -> None:
    app, engine = faulty(MinimalTask(noop), runtime=ShortSleepRuntime())
    id = await app.enqueue("noop")

    def lose(command: Command[Any]) -> BaseException | None:
        if isinstance(command, Exchange) and command.settlements:
            engine.after = None
            return OutcomeUnknown(verb="exchange")
        return None

    engine.after = lose
    lost = app.record_events()
    await app.drain()
    assert (await app.look(id)).state is JobState.SUCCEEDED
    assert "OwnershipLost" not in [type(event).__name__ for event in lost.seen]


async def test_outcomes_gather_while_the_engine_is_away_and_none_is_lost() -> None:
    gated = GatedHandler()
    runtime = FrozenRuntime()
    app, engine = faulty(gated.task(), runtime=runtime)
    ids = await app.put(*(app.job("gated") for _ in range(10)))
    async with app.worker(concurrency=10) as worker:
        await gated.started.calls(10)
        engine.before = lambda command: EngineUnavailable() if isinstance(command, Exchange) else None
        gated.gate.set()
        for _ in range(10):
            await idle()
            runtime.advance(1)
        assert worker.running == 0
        engine.before = None
        for _ in range(20):
            await idle()
            runtime.advance(1)
    assert {(await app.look(id)).state for id in ids} == {JobState.SUCCEEDED}


@pytest.mark.parametrize(
    "error", [ValueError("bad bytes"), InvalidOption("no", option="x"), CorruptRecord(where="row")]
)
async def test_data_the_store_refuses_is_found_by_halving_and_set_aside(error: Exception) -> None:
    app, engine = faulty(MinimalTask(noop))
    ids = await app.put(*(app.job("noop", id=f"job-{n}") for n in range(100)))
    culprit = ids[41]

    def refuse(command: Command[Any]) -> BaseException | None:
        if isinstance(command, Exchange):
            bad = [one for one in command.settlements if one.id == culprit and one.result is not None]
            return error if bad else None
        return None

    engine.before = refuse
    await app.drain(concurrency=100)
    states = Counter([(await app.look(id)).state for id in ids])
    assert states == {JobState.SUCCEEDED: 99, JobState.FAILED: 1}
    assert (await app.look(culprit)).reason is Reason.UNSTORABLE


async def test_a_job_that_cannot_even_be_set_aside_leaves_the_others_alone() -> None:
    app, engine = faulty(MinimalTask(noop))
    ids = await app.put(*(app.job("noop", id=f"job-{n}") for n in range(10)))

    def refuse(command: Command[Any]) -> BaseException | None:
        hit = isinstance(command, Exchange) and any(one.id == "job-3" for one in command.settlements)
        return ValueError("bad bytes") if hit else None

    engine.before = refuse
    await app.drain(concurrency=10)
    states = Counter([(await app.look(id)).state for id in ids])
    assert states == {JobState.SUCCEEDED: 9, JobState.RUNNING: 1}


# Claims


async def test_a_settlement_of_a_locked_job_is_sent_again_without_the_others_until_it_is_answered() -> None:
    # G8
    app, engine = faulty(MinimalTask(noop))
    await app.put(*(app.job("noop", id=f"j{number}") for number in range(10)))
    engine.locked = {"j3", "j4"}
    refused = 0

    def unlock_after_three(command: Command[Any]) -> None:
        nonlocal refused
        if isinstance(command, Exchange) and {one.id for one in command.settlements} & engine.locked:
            refused += 1
            if refused == 3:
                engine.locked = set()

    engine.before = unlock_after_three
    await app.drain(concurrency=10)
    first, *again = [exchange for exchange in engine.exchanges if any(s.id == "j3" for s in exchange.settlements)]
    assert len(first.settlements) == 10
    assert [sorted(one.id for one in exchange.settlements) for exchange in again] == [["j3", "j4"]] * 2
    assert all(exchange.claim is None for exchange in again)
    assert await app.counts() == {JobState.SUCCEEDED: 10}


async def test_no_more_is_claimed_than_there_are_free_slots() -> None:
    gated = GatedHandler()
    app, engine = faulty(gated.task())
    await app.put(*(app.job("gated") for _ in range(10)))
    async with app.worker(concurrency=3):
        await gated.started.calls(3)
        await idle()
        assert await app.counts() == {JobState.RUNNING: 3, JobState.QUEUED: 7}
        assert all(exchange.claim.limit <= 3 for exchange in engine.exchanges if exchange.claim is not None)
        gated.gate.set()
        await gated.started.calls(10)


async def test_only_tasks_with_a_handler_here_are_claimed() -> None:
    app = MinimalApp(MinimalTask(noop), MinimalTask(noop, name="elsewhere", remote=True))
    known = await app.enqueue("noop")
    others = [await app.enqueue("stranger"), await app.enqueue("elsewhere")]
    await app.drain()
    assert (await app.look(known)).state is JobState.SUCCEEDED
    assert {(await app.look(id)).state for id in others} == {JobState.QUEUED}


async def test_a_task_runs_no_more_often_at_once_than_its_concurrency() -> None:
    gated = GatedHandler()
    app = MinimalApp(gated.task("narrow", concurrency=2), gated.task("wide"))
    jobs = [app.job(task, task) for task in ("narrow", "wide") for _ in range(6)]
    await app.put(*jobs)
    async with app.worker(concurrency=20):
        await gated.started.calls(8)
        await idle()
        assert gated.running == {"narrow": 2, "wide": 6}
        gated.gate.set()
        await gated.started.calls(12)
    assert gated.most == {"narrow": 2, "wide": 6}


async def test_a_limited_task_keeps_its_limit_over_several_queues() -> None:
    gated = GatedHandler()
    app = MinimalApp(gated.task("narrow", concurrency=2))
    jobs = [app.job("narrow", "narrow", queue=queue) for queue in ("a", "b", "c") for _ in range(3)]
    await app.put(*jobs)
    async with app.worker(concurrency=20, queues=["a", "b", "c"]):
        await gated.started.calls(2)
        await idle()
        assert gated.running["narrow"] == 2
        gated.gate.set()
        await gated.started.calls(9)
    assert gated.most["narrow"] == 2


async def test_a_queue_takes_no_more_slots_than_it_was_given() -> None:
    gated = GatedHandler()
    app = MinimalApp(gated.task())
    await app.put(*(app.job("gated", queue, queue=queue) for queue in ("mails", "other") for _ in range(5)))
    async with app.worker(concurrency=8, queues={"mails": 2, "other": None}):
        await gated.started.calls(7)
        await idle()
        assert gated.running == {"mails": 2, "other": 5}
        gated.gate.set()
        await gated.started.calls(10)
    assert gated.most["mails"] == 2


async def test_queues_take_turns_so_that_a_full_one_starves_no_other() -> None:
    order: list[str] = []

    async def note(queue: str) -> None:
        order.append(queue)

    app = MinimalApp(MinimalTask(note))
    await app.put(*(app.job("note", queue, queue=queue) for queue in ("a", "b") for _ in range(20)))
    await app.drain(concurrency=1, queues=["a", "b"])
    assert set(order[:4]) == {"a", "b"}


async def test_a_strict_worker_takes_the_first_queue_first() -> None:
    order: list[str] = []

    async def note(queue: str) -> None:
        order.append(queue)

    app = MinimalApp(MinimalTask(note))
    await app.put(*(app.job("note", queue, queue=queue) for queue in ("low", "high") for _ in range(20)))
    await app.drain(concurrency=1, queues=["high", "low"], strict=True)
    assert order == ["high"] * 20 + ["low"] * 20


async def test_new_work_is_taken_as_soon_as_it_is_there() -> None:
    gated = GatedHandler()
    runtime = FrozenRuntime()
    app = MinimalApp(gated.task(), runtime=runtime)
    gated.gate.set()
    async with app.worker():
        await idle()
        await app.enqueue("gated", "new")
        assert await gated.started.calls(1) == ["new"]  # no clock has moved: the bell did it


async def test_a_job_that_falls_due_is_claimed_without_a_notification_or_a_poll() -> None:
    gated = GatedHandler()
    runtime = FrozenRuntime()
    app = MinimalApp(gated.task(), runtime=runtime, poll_interval=600.0)
    gated.gate.set()
    await app.enqueue("gated", "later", delay=5_000_000)
    async with app.worker():
        await idle()
        runtime.advance(4.9)
        await idle()
        assert gated.started.seen == []
        runtime.advance(0.2)
        await gated.started.calls(1)


async def test_a_retry_without_delay_runs_again_at_once() -> None:
    tries = 0

    async def third_time_lucky() -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionError("not yet")
        return tries

    app = MinimalApp(MinimalTask(third_time_lucky, retry=QUICK))
    id = await app.enqueue("third_time_lucky")
    await app.drain()
    job = await app.look(id)
    assert (job.state, job.attempt, job.last_error) == (JobState.SUCCEEDED, 3, None)
    assert len(job.history) == 2


# One lease that cannot be used


class DamagingEngine(MemoryEngine):
    """Its answers name another task for the job with this id, as a damaged record would."""

    damaged = "damaged"

    async def perform(self, command: Command[A]) -> A:
        answer = await super().perform(command)
        if isinstance(answer, ExchangeAnswer) and any(lease.id == self.damaged for lease in answer.leases):
            leases = [replace(one, task="nomp") if one.id == self.damaged else one for one in answer.leases]
            return replace(answer, leases=tuple(leases))
        return answer


async def test_a_lease_of_an_unknown_task_is_given_back_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    runtime = SystemRuntime()
    app = MinimalApp(MinimalTask(noop), runtime=runtime, engine=DamagingEngine("memory://", runtime))
    await app.put(*(app.job("noop", id=f"before-{n}") for n in range(5)))
    await app.put(app.job("noop", id="damaged"), app.job("noop", id="after"))
    await app.drain(concurrency=10)
    assert await app.counts() == {JobState.SUCCEEDED: 6, JobState.SCHEDULED: 1}
    assert (await app.look("damaged")).attempt == 0
    assert "Job damaged of queue default was claimed, but its record names the task 'nomp'" in caplog.text


async def test_a_report_that_raises_does_not_keep_the_other_jobs_from_starting() -> None:
    app, _ = faulty(MinimalTask(noop))
    await app.put(*(app.job("noop") for _ in range(5)))
    async with app.worker() as worker:
        assert worker._services is not None

        def broken(*args: object) -> None:
            raise RuntimeError("broken")

        worker._services._reporter.started = broken  # type: ignore[method-assign, assignment]
        worker._services._reporter.settled = broken  # type: ignore[method-assign, assignment]
        await app.put(*(app.job("noop") for _ in range(5)))

        async def all_done() -> bool:
            return await app.counts() == {JobState.SUCCEEDED: 10}

        await eventually(all_done, "all jobs")


# Starts and late answers


async def test_the_start_of_a_prefetched_job_is_sent_once() -> None:
    gated = GatedHandler()
    app, engine = faulty(gated.task(), MinimalTask(noop), prefetch=2)
    await app.put(*(app.job("gated", f"{n}") for n in range(3)))
    async with app.worker(concurrency=1):
        await gated.started.calls(1)
        gated.gate.set()
        await gated.started.calls(3)
        await eventually(lambda: app_is_done(app, 3), "the first jobs")
        await app.put(*(app.job("noop") for _ in range(3)))
        await eventually(lambda: app_is_done(app, 6), "the next jobs")
    sent = Counter(start.token for exchange in engine.exchanges for start in exchange.starts)
    assert set(sent.values()) == {1}, sent


async def app_is_done(app: MinimalApp, count: int) -> bool:
    return (await app.counts()).get(JobState.SUCCEEDED) == count


async def test_a_lease_whose_answer_came_too_late_is_released_and_not_run() -> None:
    runtime = FrozenRuntime()
    ran: list[str] = []

    async def runs() -> None:
        ran.append("ran")

    class LateEngine(MemoryEngine):
        late = True

        async def perform(self, command: Command[A]) -> A:
            answer = await super().perform(command)
            if isinstance(answer, ExchangeAnswer) and answer.leases and self.late:
                self.late = False
                runtime.advance(26)  # past the fence of a lease of 30 s
            return answer

    app = MinimalApp(MinimalTask(runs), runtime=runtime, engine=LateEngine("memory://", runtime))
    id = await app.enqueue("runs")
    released = app.record_events(events.Retrying)
    async with app.worker():
        await eventually(lambda: ran, "the second lease")
        await idle()
    assert [event.reason for event in released.seen] == [Reason.RELEASED]  # type: ignore[attr-defined]
    assert len(ran) == 1
    assert (await app.look(id)).attempt == 1


# After an outage


async def test_a_request_is_sent_again_at_once_when_another_part_has_reached_the_store() -> None:
    runtime = FrozenRuntime()
    engine = FailingEngine(runtime)
    await engine.open()
    outage = StoreOutage(runtime)
    resender = Resender(runtime, engine, outage)
    engine.before = lambda command: EngineUnavailable()
    sending = asyncio.create_task(resender.send((), ()))
    await idle()
    engine.before = None
    outage.end()
    await idle()
    assert sending.done()
    await sending


async def test_a_worker_polls_faster_while_the_store_cannot_notify() -> None:
    runtime = FrozenRuntime()

    class SometimesPushes(FailingEngine):
        pushes = True

        @property
        def capabilities(self) -> Any:  # type: ignore[override]
            return replace(MemoryEngine.capabilities, push=self.pushes)

        def subscribe(self, *topics: str) -> Any:
            return super().subscribe("nothing")

    engine = SometimesPushes(runtime)
    app = MinimalApp(MinimalTask(noop), runtime=runtime, engine=engine, poll_interval=30)
    async with app.worker():
        await idle()
        runtime.advance(1)
        await idle()
        engine.pushes = False
        runtime.advance(31)  # the last long pause
        await idle()
        id = await app.enqueue("noop")
        runtime.advance(1)
        await idle()
        assert (await app.look(id)).state is JobState.SUCCEEDED
