"""The fast paths of the SQLite engine: the switch turns them off, and answers stay the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.engines import open_engine
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.fast_updates import columns_to_update
from holdfast.engines.sqlite.rows import COLUMNS, END_COLUMNS, LEASE_COLUMNS, NARROW_COLUMNS, job_row
from holdfast.engines.sqlite.writer import Writer
from holdfast.model.command import A, Command
from holdfast.model.instants import SECOND
from holdfast.model.job import JobRecord
from holdfast.model.observe import Audit
from holdfast.model.produce import Enqueue, EnqueueStatus, Group, GroupAccepted, NewJob
from holdfast.model.states import Hold, JobState
from holdfast.model.work import Claim, Exchange, Lease, QueueClaim, Settlement, SettleStatus, TaskClaim

LOOK_UP = "SELECT arrival, body FROM holdfast_job WHERE q ="
NARROW_UPDATE = "UPDATE holdfast_job SET state ="
UPDATE = "UPDATE holdfast_job SET arrival ="


class Traced:
    """An engine that lists the statements of its writer."""

    def __init__(self, path: Path, *, fast_paths: bool) -> None:
        engine = open_engine(f"sqlite:///{path}", durability="none", fast_paths=fast_paths)
        assert isinstance(engine, SqliteEngine)
        engine.open_now()
        self.engine = engine
        self.fast_paths = fast_paths
        self.statements: list[str] = []
        assert engine._writer is not None
        writer = engine._writer.runner
        assert isinstance(writer, Writer)
        writer.connection.set_trace_callback(self.statements.append)

    def perform(self, command: Command[A]) -> A:
        self.statements.clear()
        return self.engine.perform_now(command)

    def ran(self, part: str) -> bool:
        """True if the last command ran a statement with this text."""
        return any(part in statement for statement in self.statements)


@pytest.fixture(params=[True, False], ids=["fast", "general"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Traced]:
    traced = Traced(tmp_path / "x.db", fast_paths=request.param)
    yield traced
    assert traced.perform(Audit()).problems == ()
    traced.engine.close_now()


def enqueue(*ids: str, fresh_id: bool = True) -> Enqueue:
    return Enqueue(groups=(Group(tuple(NewJob(queue="q", id=id, task="t", fresh_id=fresh_id) for id in ids)),))


def claim(store: Traced) -> Lease:
    queues = (QueueClaim("q", (TaskClaim(task="t", lease_len=30 * SECOND),)),)
    command = Exchange(claim=Claim(claim_id="c", worker="w", queues=queues, limit=1))
    (lease,) = store.perform(command).leases
    return lease


def settle(store: Traced, lease: Lease) -> SettleStatus:
    done = Settlement(queue="q", id=lease.id, token=lease.token, target=JobState.SUCCEEDED)
    return store.perform(Exchange(settlements=(done,))).settled[0]


def test_only_the_general_path_looks_up_a_generated_id(store: Traced) -> None:
    store.perform(enqueue("a"))
    assert store.ran(LOOK_UP) is not store.fast_paths


def test_a_generated_id_that_is_stored_already_is_a_duplicate(store: Traced) -> None:
    store.perform(enqueue("a"))
    (group,) = store.perform(enqueue("b", "a")).groups
    assert isinstance(group, GroupAccepted)
    assert [job.status for job in group.jobs] == [EnqueueStatus.CREATED, EnqueueStatus.DUPLICATE]


def test_only_the_general_path_updates_all_columns_for_a_claim(store: Traced) -> None:
    store.perform(enqueue("a"))
    claim(store)
    assert (store.ran(NARROW_UPDATE), store.ran(UPDATE)) == (store.fast_paths, not store.fast_paths)


def test_only_the_general_path_reads_a_leased_job_again(store: Traced) -> None:
    store.perform(enqueue("a"))
    lease = claim(store)
    assert settle(store, lease) is SettleStatus.APPLIED
    assert store.ran(LOOK_UP) is not store.fast_paths


def test_a_lease_that_another_connection_has_changed_is_read_again(tmp_path: Path, store: Traced) -> None:
    store.perform(enqueue("a"))
    lease = claim(store)
    other = Traced(tmp_path / "x.db", fast_paths=store.fast_paths)
    assert settle(other, lease) is SettleStatus.APPLIED
    other.engine.close_now()
    assert settle(store, replace(lease, token="c.9")) is SettleStatus.LOST
    assert store.ran(LOOK_UP)


def a_claim(claim_id: str, *tasks: str) -> Exchange:
    queues = (QueueClaim("q", tuple(TaskClaim(task=task, lease_len=30 * SECOND) for task in tasks)),)
    return Exchange(claim=Claim(claim_id=claim_id, worker="w", queues=queues, limit=10))


def later(id: str, delay: int) -> Enqueue:
    return Enqueue(groups=(Group((NewJob(queue="q", id=id, task="t", delay=delay, fresh_id=True),)),))


@pytest.mark.parametrize("by_another_connection", [False, True])
def test_a_claim_finds_the_first_job_of_a_task(tmp_path: Path, store: Traced, by_another_connection: bool) -> None:
    store.perform(enqueue("a"))
    store.perform(a_claim("c1", "t", "new"))
    first = Enqueue(groups=(Group((NewJob(queue="q", id="b", task="new", fresh_id=True),)),))
    if by_another_connection:
        other = Traced(tmp_path / "x.db", fast_paths=store.fast_paths)
        other.perform(first)
        other.engine.close_now()
    else:
        store.perform(first)
    assert [lease.id for lease in store.perform(a_claim("c2", "t", "new")).leases] == ["b"]


@pytest.mark.parametrize("by_another_connection", [False, True])
def test_a_claim_sees_a_due_time_that_came_after_the_last_claim(
    tmp_path: Path, store: Traced, by_another_connection: bool
) -> None:
    store.perform(later("a", 90 * SECOND))
    first = store.perform(a_claim("c1", "t"))
    assert first.next_due is not None
    if by_another_connection:
        other = Traced(tmp_path / "x.db", fast_paths=store.fast_paths)
        other.perform(later("b", 30 * SECOND))
        other.engine.close_now()
    else:
        store.perform(later("b", 30 * SECOND))
    second = store.perform(a_claim("c2", "t"))
    assert second.next_due is not None
    assert second.next_due < first.next_due


def test_a_claim_promotes_a_job_that_has_fallen_due_since_the_last_claim(store: Traced) -> None:
    store.perform(later("a", 30 * SECOND))
    assert store.perform(a_claim("c1", "t")).leases == ()
    store.engine.clock_offset += 31 * SECOND
    answer = store.perform(a_claim("c2", "t"))
    assert ([lease.id for lease in answer.leases], answer.next_due) == (["a"], None)


CHANGES: dict[str, object] = {
    "arrival": 9,
    "due": 9,
    "priority": 9,
    "hold": Hold.LANE,
    "lane": "L",
    "unique_key": "k",
    "task": "u",
    "state": JobState.FAILED,
    "token": "c.0",
    "lease_expires": 9,
    "expires": 9,
    "visible_until": 9,
}
"""A change of every field that a column is made of."""


@pytest.mark.parametrize("expires", [None, 5])
@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.CANCELLED])
@pytest.mark.parametrize("field", CHANGES)
def test_a_narrow_update_leaves_out_no_changed_column(field: str, state: JobState, expires: int | None) -> None:
    """Task, lane and unique key of a job change only with its generation."""
    old = JobRecord(queue="q", id="a", state=state, expires=expires)
    new = replace(old, **{field: CHANGES[field]}, generation=int(field in ("task", "lane", "unique_key")))
    numbers = {"": 1, "u": 2}
    before, after = job_row(old, 1, numbers[old.task]), job_row(new, 1, numbers[new.task])
    changed = {column for column, *values in zip(COLUMNS, before, after, strict=True) if values[0] != values[1]}
    assert changed <= set(columns_to_update(old, new))


def test_a_claim_and_an_end_update_no_column_that_they_leave_alone() -> None:
    queued = JobRecord(queue="q", id="a")
    running = replace(queued, state=JobState.RUNNING, token="c.0", lease_expires=9)
    ended = replace(queued, state=JobState.SUCCEEDED, visible_until=9)
    assert columns_to_update(queued, running) == LEASE_COLUMNS
    assert columns_to_update(running, ended) == END_COLUMNS
    assert columns_to_update(replace(queued, expires=9), replace(running, expires=9)) == NARROW_COLUMNS
    assert columns_to_update(ended, queued) == NARROW_COLUMNS
