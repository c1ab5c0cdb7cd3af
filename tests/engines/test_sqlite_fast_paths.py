"""The fast paths of the SQLite engine: the switch turns them off, and answers stay the same."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.engines import open_engine
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.fast_updates import columns_to_update
from holdfast.engines.sqlite.rows import COLUMNS, END_COLUMNS, LEASE_COLUMNS, NARROW_COLUMNS, job_row, unpack_job
from holdfast.engines.sqlite.writer import Writer
from holdfast.errors import InvalidOption, PayloadTooLarge
from holdfast.model import check
from holdfast.model.command import A, Command
from holdfast.model.instants import SECOND
from holdfast.model.job import Given, JobKey, JobRecord, KeyScope
from holdfast.model.observe import Audit
from holdfast.model.operate import Cancel
from holdfast.model.produce import (
    Enqueue,
    EnqueueStatus,
    Group,
    GroupAccepted,
    NewJob,
    Parent,
    PoolPlace,
    is_like,
)
from holdfast.model.states import Hold, JobState
from holdfast.model.work import Claim, Exchange, Lease, QueueClaim, Settlement, SettleStatus, TaskClaim

LOOK_UP = "SELECT arrival, body FROM holdfast_job WHERE q ="
INSERT = "INSERT INTO holdfast_job (arrival, q, id, t, state, rank, due, lane"
SHORT_INSERT = "INSERT INTO holdfast_job (arrival, q, id, t, rank, due, body, state)"
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


def test_only_the_general_path_inserts_all_columns_of_a_plain_job(store: Traced) -> None:
    store.perform(enqueue("first"))  # makes the record of the queue
    store.perform(enqueue("a"))
    assert (store.ran(SHORT_INSERT), store.ran(INSERT)) == (store.fast_paths, not store.fast_paths)


OTHER_FIELDS: dict[str, Any] = {
    "task": "u",
    "codec": "msgpack",
    "metadata": {"a": "b"},
    "payload_hash": b"hash",
    "priority": 300,
    "delay": SECOND,
    "due": 10**18,
    "expires": 10**18,
    "lane": "L",
    "pool": PoolPlace(2),
    "fresh_id": False,
    "unique_key": "k",
    "key_scope": KeyScope.FOREVER,
    "key_window": SECOND,
    "parents": (Parent(JobKey("q", "first"), any_end=True),),
    "reply": "p",
    "given": Given(max_attempts=3),
}
"""A value for every field of a new job but queue, id and payload."""


def stored(path: Path) -> list[tuple[Any, ...]]:
    """All jobs, without what depends on the time."""
    with closing(sqlite3.connect(path)) as db:
        rows = [list(row) for row in db.execute("SELECT * FROM holdfast_job ORDER BY arrival")]
    for row in rows:
        record = unpack_job(row[-1])
        assert record.due == row[COLUMNS.index("due")]
        row[COLUMNS.index("due")] = record.due - record.created
        row[-1] = replace(record, created=0, due=record.due - record.created)
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("field", [None, *OTHER_FIELDS])
def test_both_paths_write_the_same_rows_and_answer_the_same(tmp_path: Path, field: str | None) -> None:
    """One field differs in every third job, so that runs of like jobs begin and end inside a statement."""
    plain = NewJob(queue="q", id="", task="t", fresh_id=True)
    fixed_due = {"due": 10**15} if field == "due" else {}
    different = replace(plain, **({field: OTHER_FIELDS[field]} | fixed_due if field is not None else {}))
    groups = tuple(
        Group(
            tuple(
                replace(different if number % 3 == 2 else plain, id=f"{size}-{number}", payload=b"%d" % number)
                for number in range(size)
            )
        )
        for size in (1, 19, 45)
    )
    answers, rows = [], []
    for fast_paths in (True, False):
        path = tmp_path / f"{fast_paths}.db"
        store = Traced(path, fast_paths=fast_paths)
        store.perform(enqueue("first"))
        answers.append(store.perform(Enqueue(groups=groups)).groups)
        assert store.perform(Audit()).problems == ()
        store.engine.close_now()
        rows.append(stored(path))
    assert answers[0] == answers[1]
    assert len(rows[0]) > 40
    assert rows[0] == rows[1]


def test_every_field_of_a_new_job_makes_it_unlike_others() -> None:
    plain = NewJob(queue="q", id="a", task="t", payload=b"1", fresh_id=True)
    assert is_like(replace(plain, id="b", payload=b"2"), plain)
    for field in NewJob.__struct_fields__:
        if field not in ("id", "payload"):
            assert not is_like(replace(plain, **{field: OTHER_FIELDS.get(field, "another")}), plain), field


def test_a_job_that_is_unlike_the_one_before_is_checked() -> None:
    plain = NewJob(queue="q", id="a", task="t", fresh_id=True)
    check.group(Group((plain, replace(plain, id="b"))))
    for wrong in (
        replace(plain, id=""),
        replace(plain, queue=""),
        replace(plain, priority=True),
        replace(plain, payload=b"x" * (check.MAX_PAYLOAD + 1)),
    ):
        with pytest.raises((InvalidOption, PayloadTooLarge)):
            check.group(Group((plain, wrong)))


def test_a_plain_job_in_the_transaction_of_a_look_up_for_its_id_is_found_there(tmp_path: Path) -> None:
    store = Traced(tmp_path / "x.db", fast_paths=True)
    store.perform(enqueue("first"))
    assert store.engine._writer is not None
    writer = store.engine._writer.runner
    assert isinstance(writer, Writer)
    cancel = Cancel(queue="q", ids=("a",))
    results = writer.run([cancel, enqueue("a"), cancel])
    assert [result.error for result in results] == [None, None, None]
    assert results[0].answer.jobs != results[2].answer.jobs
    assert store.perform(Audit()).problems == ()
    store.engine.close_now()


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
