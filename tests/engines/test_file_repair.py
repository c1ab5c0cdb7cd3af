"""Repair of a store of the file engine after a change was lost."""

from collections.abc import Iterator
from typing import Any

import pytest
from file_scenarios import SCENARIOS, Advance, Scenario, mixed
from msgspec.structs import replace

from holdfast.engines.file.changes import encode, encode_record
from holdfast.engines.file.records import Records
from holdfast.engines.file.repair import repair
from holdfast.engines.ledger import Ledger
from holdfast.engines.ledger.state import Change, Name, Record
from holdfast.engines.tables import Tables
from holdfast.model.command import Command
from holdfast.model.instants import SECOND, At
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.records import Edge, LaneRecord, PoolRecord, QueueRecord
from holdfast.model.states import Hold, JobState, Reason
from holdfast.testing.clock import FrozenRuntime

NOW = At(1_000_000, 1_000_000)


def changes_of(scenario: Scenario) -> Iterator[tuple[Change, At]]:
    """All changes of a scenario, each with the time of its frame."""
    clock = FrozenRuntime()
    ledger = Ledger(Tables(), record_changes=True)
    items = scenario.run()
    answer: Any = None
    while True:
        try:
            item = items.send(answer)
        except StopIteration:
            return
        answer = None
        if isinstance(item, Advance):
            clock.advance(item.step_us / SECOND)
        elif isinstance(item, Command):
            decision = ledger.decide(item, At(clock.wall(), clock.boot()))
            answer = decision.answer
            for change in decision.changes:
                yield change, ledger.clock


def problems_of(records: Records) -> list[str]:
    tables = Tables()
    records.fill(tables)
    return list(tables.problems(records.at.wall))


def records_of(changes: list[tuple[Change, At]], lost: int | None) -> Records:
    records = Records()
    for number, (change, at) in enumerate(changes):
        if number != lost:
            records.apply((encode(change),))
        records.at = at
        if isinstance(change.after, JobRecord):
            records.arrival = max(records.arrival, change.after.arrival)
    return records


def test_every_lost_change_is_repaired() -> None:
    for scenario in SCENARIOS[:-2]:
        check_repairs(scenario)


@pytest.mark.long
def test_every_lost_change_of_many_histories_is_repaired() -> None:
    for seed in range(40):
        check_repairs(Scenario(f"mixed {seed}", mixed(seed)))


def check_repairs(scenario: Scenario) -> None:
    changes = list(changes_of(scenario))
    sound = records_of(changes, None)
    assert problems_of(sound) == []
    for number, (change, _) in enumerate(changes):
        records = records_of(changes, number)
        repair(records)
        what = f"{scenario.name}: {number}: {change}"
        assert problems_of(records) == [], what
        own = {_name(change.before), _name(change.after)}
        # No other job is lost or has another end. One job that depends on the lost change may have failed.
        assert set(sound.jobs) - set(records.jobs) <= own, what
        failed = {name for name, job in records.jobs.items() if job.reason is Reason.UNDECODABLE}
        assert len(failed) <= 1, what
        for name in set(sound.jobs) & set(records.jobs) - own - failed:
            before, after = sound.jobs[name], records.jobs[name]
            assert (before.terminal, before.payload) == (after.terminal, after.payload), what
            assert before.token in (None, after.token), what


def _name(record: Record | None) -> Name | None:
    return (record.queue, record.id) if isinstance(record, JobRecord) else None


def test_sound_records_stay_as_they_are() -> None:
    for scenario in SCENARIOS:
        records = records_of(list(changes_of(scenario)), None)
        before = [encode_record(record) for record in records.in_order()]
        repair(records)
        assert sorted(before) == sorted(encode_record(record) for record in records.in_order()), scenario.name


def some_records(*records: Any) -> Records:
    loaded = Records()
    loaded.at = NOW
    loaded.apply(encode_record(record) for record in records)
    loaded.arrival = max((job.arrival for job in loaded.jobs.values()), default=0)
    return loaded


def job(id: str, arrival: int = 1, **fields: Any) -> JobRecord:
    return JobRecord(queue="q", id=id, arrival=arrival, **fields)


def blocked(id: str, arrival: int, hold: Hold, **fields: Any) -> JobRecord:
    return job(id, arrival, state=JobState.BLOCKED, hold=hold, **fields)


def leased(id: str, arrival: int = 1, **fields: Any) -> JobRecord:
    return job(id, arrival, state=JobState.RUNNING, token=f"{id}.0", lease_expires=9, **fields)


QUEUE = QueueRecord(queue="q")


def test_the_next_job_of_a_lane_is_its_head_if_the_head_is_lost() -> None:
    records = some_records(
        QUEUE,
        LaneRecord(queue="q", lane="x", head="lost", depth=3),
        blocked("second", 2, Hold.LANE, lane="x"),
        blocked("third", 3, Hold.LANE, lane="x", priority=5),
    )
    repair(records)
    lane = records.lanes["q", "x"]
    assert (lane.head, lane.depth) == ("third", 2)
    assert records.jobs["q", "third"].state is JobState.QUEUED
    assert records.jobs["q", "second"].hold == Hold.LANE


def test_a_lane_that_is_lost_is_made_from_its_jobs() -> None:
    records = some_records(
        leased("first", 1, lane="x", fence=7),
        blocked("second", 2, Hold.LANE, lane="x"),
        blocked("other", 3, Hold.PAUSED, lane="y"),
    )
    repair(records)
    lane = records.lanes["q", "x"]
    assert (lane.head, lane.depth, lane.fence) == ("first", 2, 7)
    assert records.lanes["q", "y"].paused
    assert records.jobs["q", "first"].token == "first.0"
    assert records.queues == {"q": QUEUE}


def test_a_head_whose_end_is_lost_has_failed() -> None:
    """The lane has gone on, and the next job runs."""
    records = some_records(
        QUEUE,
        LaneRecord(queue="q", lane="x", head="second", depth=1),
        leased("first", 1, lane="x"),
        leased("second", 2, lane="x"),
    )
    repair(records)
    first = records.jobs["q", "first"]
    assert (first.state, first.reason, first.token) == (JobState.FAILED, Reason.UNDECODABLE, None)
    assert (records.lanes["q", "x"].head, records.lanes["q", "x"].depth) == ("second", 1)
    assert records.jobs["q", "second"].token == "second.0"
    assert records.queues["q"].totals.failed == 1


def test_a_job_without_its_payload_has_failed() -> None:
    changes = [
        Change(job("a", payload=b"p" * 500), replace(job("a", payload=b"p" * 500), state=JobState.QUEUED)),
    ]
    before = changes[0].before
    assert isinstance(before, JobRecord)
    after = replace(before, state=JobState.RUNNING, token="t.0", lease_expires=4)
    records = some_records(QUEUE)
    records.apply((encode(Change(before, after)),))
    assert records.without_payload == {("q", "a")}
    repair(records)
    found = records.jobs["q", "a"]
    assert (found.state, found.reason, found.payload) == (JobState.FAILED, Reason.UNDECODABLE, b"")


def test_an_ended_job_needs_no_payload() -> None:
    before = job("a", payload=b"p" * 500, state=JobState.RUNNING)
    after = replace(before, state=JobState.SUCCEEDED, finished=5, visible_until=10**9)
    records = some_records(QUEUE)
    records.apply((encode(Change(before, after)),))
    repair(records)
    assert records.jobs["q", "a"].state is JobState.SUCCEEDED


def test_the_children_of_a_lost_parent_are_those_of_a_failed_one() -> None:
    parent, child = JobKey("q", "parent"), JobKey("q", "child")
    records = some_records(
        QUEUE, blocked("child", 2, Hold.PARENTS, parents_left=1), Edge(parent=parent, child=child, arrival=2)
    )
    repair(records)
    lost = records.jobs["q", "parent"]
    assert (lost.state, lost.reason, lost.arrival) == (JobState.FAILED, Reason.UNDECODABLE, 3)
    assert records.jobs["q", "child"].state is JobState.BLOCKED  # the rules cancel it
    assert problems_of(records) == []


def test_a_child_whose_edge_is_lost_has_failed() -> None:
    records = some_records(QUEUE, job("parent"), blocked("child", 2, Hold.PARENTS, parents_left=1))
    repair(records)
    assert records.jobs["q", "child"].reason is Reason.UNDECODABLE
    assert records.jobs["q", "parent"].state is JobState.QUEUED


def test_an_edge_of_an_ended_parent_is_dropped_if_the_child_counts_it_no_more() -> None:
    child = JobKey("q", "child")
    records = some_records(
        QUEUE,
        job("ended", state=JobState.SUCCEEDED, finished=3, visible_until=10**9),
        job("other", 2),
        blocked("child", 3, Hold.PARENTS, parents_left=1),
        Edge(parent=JobKey("q", "ended"), child=child, arrival=3),
        Edge(parent=JobKey("q", "other"), child=child, arrival=3),
    )
    repair(records)
    assert [edge.parent.id for edge in records.edges.values()] == ["other"]
    assert records.jobs["q", "child"].parents_left == 1


def test_one_of_two_live_jobs_keeps_a_key() -> None:
    records = some_records(QUEUE, job("old", 1, unique_key="k"), job("new", 2, unique_key="k"))
    repair(records)
    assert records.jobs["q", "old"].reason is Reason.UNDECODABLE
    assert records.jobs["q", "new"].state is JobState.QUEUED
    assert problems_of(records) == []


def test_a_live_job_keeps_a_key_before_one_that_has_succeeded() -> None:
    old = job("old", 1, unique_key="k", state=JobState.SUCCEEDED, finished=1, visible_until=10**9, key_until=10**9)
    records = some_records(QUEUE, old, job("new", 2, unique_key="k"))
    repair(records)
    assert records.jobs["q", "old"].key_until == NOW.wall
    assert problems_of(records) == []


def test_a_pool_counts_its_older_jobs_again() -> None:
    records = some_records(
        QUEUE,
        PoolRecord(name="q", lanes=3, epoch=2, old_live=1),
        LaneRecord(queue="q", lane="1", head="new", depth=1),
        blocked("new", 2, Hold.EPOCH, epoch=2, lane="1", pool_key="k"),
    )
    repair(records)
    assert records.pools["q"].old_live == 0
    assert records.jobs["q", "new"].state is JobState.QUEUED


def test_a_pool_that_is_lost_is_made_from_its_jobs() -> None:
    records = some_records(
        QUEUE,
        LaneRecord(queue="q", lane="4", head="old", depth=1),
        LaneRecord(queue="q", lane="1", head="new", depth=1),
        job("old", 1, epoch=1, lane="4"),
        blocked("new", 2, Hold.EPOCH, epoch=2, lane="1", pool_key="k"),
    )
    repair(records)
    assert records.pools["q"] == PoolRecord(name="q", lanes=5, epoch=2, old_live=1)
    assert records.jobs["q", "new"].hold == Hold.EPOCH
