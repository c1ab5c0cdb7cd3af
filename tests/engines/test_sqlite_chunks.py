"""Work that is too large for one transaction is done in chunks. Others write in between; the outcome is the same."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.engines.sqlite import unfinished
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.writer import Writer
from holdfast.errors import OutcomeUnknown
from holdfast.model.command import A, Command
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Get, Prune, Stats
from holdfast.model.operate import Clear, Resize
from holdfast.model.produce import Enqueue, Group, GroupAccepted, NewJob, PoolPlace
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.work import Claim, Exchange, Lease, QueueClaim, Settlement, TaskClaim
from holdfast.testing import FrozenRuntime
from holdfast.testing.differential import differential
from holdfast.testing.differential.jobs import THEMES
from holdfast.testing.oracle import Oracle

QUEUE = "q"
IDS = tuple(f"job-{number}" for number in range(10))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "CHUNK_JOBS", 3)


class Store:
    """An engine without an event loop: each call waits for its answer."""

    def __init__(self, path: Path) -> None:
        engine = open_engine(f"sqlite:///{path}", durability="none")
        assert isinstance(engine, SqliteEngine)
        self.engine = engine
        self.claims = 0
        engine.open_now()

    def ask(self, command: Command[A]) -> A:
        return self.engine.perform_now(command)

    def put(self, *ids: str, **fields: Any) -> None:
        jobs = tuple(NewJob(queue=QUEUE, id=id, task="t", **fields) for id in ids)
        (answer,) = self.ask(Enqueue(groups=(Group(jobs),))).groups
        assert isinstance(answer, GroupAccepted)

    def take(self, limit: int = 100) -> list[Lease]:
        self.claims += 1
        tasks = (TaskClaim(task="t", lease_len=30 * SECOND),)
        claim = Claim(claim_id=f"{id(self)}-{self.claims}", worker="w", queues=(QueueClaim(QUEUE, tasks),), limit=limit)
        return list(self.ask(Exchange(claim=claim)).leases)

    def take_ids(self) -> list[str]:
        return [lease.id for lease in self.take()]

    def reasons(self, *ids: str) -> list[tuple[JobState, Reason | None]]:
        found = self.ask(Get(jobs=tuple(JobKey(QUEUE, id) for id in ids))).jobs
        return [(job.state, job.reason) for job in found if job is not None]

    def problems(self) -> tuple[str, ...]:
        return asyncio.run(self.engine.audit())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    assert store.problems() == ()
    store.engine.close_now()


@pytest.fixture
def other(path: Path, store: Store) -> Iterator[Store]:
    """A second engine on the same file."""
    other = Store(path)
    yield other
    other.engine.close_now()


@pytest.fixture
def before_each_chunk(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Have a function called before every chunk but the first."""

    def install(interlude: Callable[[], None]) -> None:
        original = Writer._do_rest

        def do_rest(self: Writer, *given: Any) -> Any:
            transaction = self._transaction_after_repairs

            def after_interlude(work: Callable[[], Any]) -> Any:
                interlude()
                return transaction(work)

            with monkeypatch.context() as patch:
                patch.setattr(self, "_transaction_after_repairs", after_interlude)
                return original(self, *given)

        monkeypatch.setattr(Writer, "_do_rest", do_rest)

    return install


def unfinished_records(store: Store) -> list[str]:
    outsider = sqlite3.connect(store.engine._store.path)
    found = [name for (name,) in outsider.execute("SELECT name FROM holdfast_small_record WHERE kind = 'unfinished'")]
    outsider.close()
    return found


CLEARED = (JobState.CANCELLED, Reason.CLEARED)


def test_a_clear_in_chunks_ends_every_job_and_counts_them(store: Store) -> None:
    store.put(*IDS[:5])
    store.put(*IDS[5:], lane="L")
    store.take(2)

    assert store.ask(Clear(queue=QUEUE)).count == len(IDS)

    assert store.reasons(*IDS) == [CLEARED] * len(IDS)
    assert unfinished_records(store) == []


def test_nothing_of_the_queue_is_claimed_while_it_is_cleared(
    store: Store, other: Store, before_each_chunk: Callable[[Callable[[], None]], None]
) -> None:
    store.put(*IDS)
    claimed: list[list[str]] = []
    before_each_chunk(lambda: claimed.append(other.take_ids()))

    assert store.ask(Clear(queue=QUEUE)).count == len(IDS)

    assert claimed == [[], [], []]


def test_stats_say_that_a_queue_is_being_cleared(
    store: Store, other: Store, before_each_chunk: Callable[[Callable[[], None]], None]
) -> None:
    store.put(*IDS)
    clearing: list[bool] = []
    before_each_chunk(lambda: clearing.append(other.ask(Stats(queues=(QUEUE,))).queues[0].clearing))

    store.ask(Clear(queue=QUEUE))

    assert clearing == [True] * 3
    assert not store.ask(Stats(queues=(QUEUE,))).queues[0].clearing


def test_jobs_that_arrive_while_a_queue_is_cleared_stay(
    store: Store, other: Store, before_each_chunk: Callable[[Callable[[], None]], None]
) -> None:
    store.put(*IDS)
    new = iter(["new-1", "new-2", "new-3"])
    before_each_chunk(lambda: other.put(next(new)))

    assert store.ask(Clear(queue=QUEUE)).count == len(IDS)

    assert other.take_ids() == ["new-1", "new-2", "new-3"]


def test_the_other_lanes_go_on_while_one_is_cleared(
    store: Store, other: Store, before_each_chunk: Callable[[Callable[[], None]], None]
) -> None:
    store.put(*IDS, lane="L")
    store.put("elsewhere", lane="M")
    claimed: list[list[str]] = []
    before_each_chunk(lambda: claimed.append(other.take_ids()))

    assert store.ask(Clear(queue=QUEUE, lane="L")).count == len(IDS)

    assert claimed == [["elsewhere"], [], []]
    assert store.reasons(*IDS) == [CLEARED] * len(IDS)


def test_a_clear_that_fails_half_way_is_an_error_and_another_process_continues_it(
    store: Store, other: Store, before_each_chunk: Callable[[Callable[[], None]], None]
) -> None:
    store.put(*IDS)

    def fail() -> None:
        raise sqlite3.OperationalError("disk I/O error")

    before_each_chunk(fail)
    with pytest.raises(OutcomeUnknown, match="has begun"):
        store.ask(Clear(queue=QUEUE))
    assert len(unfinished_records(store)) == 1
    assert other.take_ids() == []
    assert store.reasons(*IDS).count(CLEARED) == 3  # no other process continues it while the first may still work on it

    other.engine.clock_offset += 11 * SECOND
    for _ in range(2):
        assert other.take_ids() == []
    other.ask(Prune())

    assert store.reasons(*IDS) == [CLEARED] * len(IDS)
    assert unfinished_records(store) == []
    other.put("new")
    assert other.take_ids() == ["new"]


def test_jobs_that_waited_for_a_resize_are_released_in_chunks(store: Store) -> None:
    store.put("old", pool=PoolPlace(2, "k"))
    store.ask(Resize(name=QUEUE, lanes=50))
    for number, id in enumerate(IDS):
        store.put(id, pool=PoolPlace(2, f"key-{number}"))
    (lease,) = store.take()

    end = Settlement(queue=QUEUE, id="old", token=lease.token, target=JobState.SUCCEEDED)
    store.ask(Exchange(settlements=(end,)))

    found = store.ask(Get(jobs=tuple(JobKey(QUEUE, id) for id in IDS))).jobs
    assert not any(job is None or job.hold & Hold.EPOCH for job in found)
    assert unfinished_records(store) == []


def test_jobs_of_a_still_newer_size_are_not_released_with_the_others(
    store: Store, other: Store, before_each_chunk: Callable[[Callable[[], None]], None]
) -> None:
    store.put("old", pool=PoolPlace(2, "k"))
    store.ask(Resize(name=QUEUE, lanes=50))
    for number, id in enumerate(IDS):
        store.put(id, pool=PoolPlace(2, f"key-{number}"))
    (lease,) = store.take()
    newest_id = iter(["newest"])

    def resize_again() -> None:
        for id in newest_id:
            other.ask(Resize(name=QUEUE, lanes=60))
            other.put(id, pool=PoolPlace(60, "k"))

    before_each_chunk(resize_again)

    end = Settlement(queue=QUEUE, id="old", token=lease.token, target=JobState.SUCCEEDED)
    store.ask(Exchange(settlements=(end,)))

    *released, newest = store.ask(Get(jobs=tuple(JobKey(QUEUE, id) for id in (*IDS, "newest")))).jobs
    assert not any(job is None or job.hold & Hold.EPOCH for job in released)
    assert newest is not None
    assert newest.hold & Hold.EPOCH


async def test_the_chunks_of_a_clear_are_one_instant_and_the_ledger_would_have_answered_the_same(path: Path) -> None:
    engine = open_engine(f"sqlite:///{path}", durability="none")
    oracle = Oracle()

    await engine.open()
    jobs = tuple(NewJob(queue=QUEUE, id=id, task="t", lane="L" if id < "job-5" else None) for id in IDS)
    commands: list[Command[Any]] = [
        Enqueue(groups=(Group(jobs),)),
        Clear(queue=QUEUE),
        Get(jobs=tuple(JobKey(QUEUE, id) for id in IDS)),
    ]
    for command in commands:
        assert oracle.accept(command, await engine.perform(command)) is None
    await engine.close()


def test_an_engine_that_does_everything_in_chunks_answers_as_the_ledger_would(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished, "CHUNK_JOBS", 1)

    def make() -> Engine:
        folder = tmp_path_factory.mktemp("chunks")
        return open_engine(f"sqlite:///{folder}/jobs.db", runtime=FrozenRuntime(), durability="none")

    how = settings(
        max_examples=20,
        stateful_step_count=40,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    themes = [theme for theme in THEMES if theme.name in ("lanes", "pools", "parents")]
    run_state_machine_as_test(differential(make, themes), settings=how)
