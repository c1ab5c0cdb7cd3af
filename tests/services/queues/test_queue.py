"""A queue of payloads: what goes in is checked, what comes out is what went in, and nothing is lost in between."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from eventually import idle
from scan_queue import Scan

from holdfast import (
    App,
    IdConflict,
    InvalidArguments,
    InvalidOption,
    JobState,
    events,
)
from holdfast.codec import MsgpackCodec
from holdfast.errors import EngineUnavailable
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import Reason
from holdfast.queue import Queue
from holdfast.worker import Worker
from holdfast.worker.keeper import Keeper


class Page(msgspec.Struct, frozen=True):
    url: str
    tags: list[str] = []


# What goes in


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Scan, Scan("a", depth=3)),
        (Page, Page("b", ["x"])),
        (int, 7),
        (str, "text"),
        (dict[str, int], {"a": 1}),
        (list[Scan], [Scan("c")]),
        (datetime, datetime(2027, 1, 2, tzinfo=UTC)),
        (type(None), None),
    ],
)
def test_a_payload_comes_out_as_it_went_in(jobs: App[object], kind: Any, value: object) -> None:
    queue = jobs.queue("values", kind)
    queue.enqueue(value)
    (lease,) = queue.claim()
    assert lease.payload == value
    assert type(lease.payload) is type(value)
    lease.complete()


def test_a_bare_payload_has_no_task_and_its_value_is_its_only_argument(scans: Queue[Scan]) -> None:
    job = scans.enqueue(Scan("a")).refresh()
    assert (job.queue, job.task, job.arguments) == ("scans", "", ([{"path": "a", "depth": 1}], {}))


def test_a_field_of_the_wrong_type_is_named_and_nothing_is_written(jobs: App[object], scans: Queue[Scan]) -> None:
    wrong: Any = Scan("a", depth="deep")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match=r"Queue 'scans' refuses field `depth` of the payload") as refused:
        scans.enqueue(wrong)
    assert refused.value.field == "depth"
    missing: Any = {"depth": 3}
    with pytest.raises(InvalidArguments, match="missing required field") as refused:
        scans.enqueue(missing)
    assert refused.value.field == "path"
    assert jobs.control.queues() == []


def test_a_payload_that_is_wrong_altogether_is_named_too(jobs: App[object]) -> None:
    counts, lists = jobs.queue("counts", int), jobs.queue("lists", list[Scan])
    wrong: Any = "three"
    with pytest.raises(InvalidArguments, match="refuses the payload: Expected `int`, got `str`") as refused:
        counts.enqueue(wrong)
    assert refused.value.field == "payload"
    inside: Any = [Scan("a"), Scan(2)]  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments) as refused:
        lists.enqueue(inside)
    assert refused.value.field == "[1].path"
    with pytest.raises(InvalidArguments, match="cannot be encoded"):
        counts.enqueue(object())  # type: ignore[arg-type]


def test_a_type_that_nothing_can_be_read_as_is_refused_where_it_is_declared(jobs: App[object]) -> None:
    either: Any = Scan | Page
    with pytest.raises(InvalidOption, match="Queue 'scans' cannot take") as refused:
        jobs.queue("scans", either)
    assert refused.value.option == "payload"


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"priorty": 3}, "priorty"),
        ({"queue": "other"}, "queue"),
        ({"timeout": 3}, "timeout"),
        ({"priority": "high"}, "priority"),
        ({"delay": -1}, "delay"),
        ({"delay": 1, "at": datetime(2027, 1, 1, tzinfo=UTC)}, "at"),
        ({"lane": ""}, "lane"),
        ({"metadata": {"a": 1}}, "metadata"),
    ],
)
def test_an_option_that_cannot_be_is_named(scans: Queue[Scan], given: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        scans.enqueue(Scan("a"), **given)
    assert refused.value.option == option


def test_the_options_of_an_enqueue_reach_the_job(scans: Queue[Scan]) -> None:
    job = scans.enqueue(
        Scan("a"), id="mine", priority=5, delay=timedelta(hours=1), expires=7200, lane="left", metadata={"by": "me"}
    ).refresh()
    assert (job.id, job.priority, job.state, job.lane) == ("mine", 5, JobState.SCHEDULED, "left")
    assert job.metadata == {"by": "me"}
    assert job.due_at - job.enqueued_at == timedelta(hours=1)
    assert job.expires_at is not None
    assert scans.enqueue(Scan("b"), at=datetime(2000, 1, 1, tzinfo=UTC), id=None).refresh().state is JobState.QUEUED


def test_one_id_is_one_payload(scans: Queue[Scan]) -> None:
    assert scans.enqueue(Scan("a"), id="one").created
    assert not scans.enqueue(Scan("a"), id="one").created
    with pytest.raises(IdConflict):
        scans.enqueue(Scan("b"), id="one")
    assert scans.enqueue(Scan("a"), unique_key="k").created
    assert not scans.enqueue(Scan("b"), unique_key="k").created


def test_many_payloads_go_in_with_one_call_or_none_of_them(jobs: App[object], scans: Queue[Scan]) -> None:
    handles = jobs.client.enqueue_many([scans.draft(Scan(f"{n}"), id=f"{n}") for n in range(20)])
    assert [handle.id for handle in handles] == [f"{n}" for n in range(20)]
    with pytest.raises(IdConflict):
        jobs.client.enqueue_many([scans.draft(Scan("new")), scans.draft(Scan("other"), id="3")])
    assert scans.status().depth == 20


def test_another_codec_writes_and_reads_payloads(tmp_path: Path) -> None:
    jobs = App(f"sqlite:///{tmp_path}/jobs.db", codec=MsgpackCodec())
    blobs = jobs.queue("blobs", bytes)
    with jobs:
        handle = blobs.enqueue(b"\0\1")
        (lease,) = blobs.claim()
        assert lease.payload == b"\0\1"
        lease.complete(b"\2")
        assert handle.result() == b"\2"


# PayloadClaims


def test_payloads_come_by_priority_and_then_in_order(scans: Queue[Scan]) -> None:
    for n in range(3):
        scans.enqueue(Scan(f"plain-{n}"))
    scans.enqueue(Scan("urgent"), priority=1)
    taken = [lease.payload.path for lease in scans.claim(10)]
    assert taken == ["urgent", "plain-0", "plain-1", "plain-2"]


def test_a_claim_takes_no_more_than_asked_and_never_what_another_holds(scans: Queue[Scan]) -> None:
    for n in range(5):
        scans.enqueue(Scan(f"{n}"))
    first, second, third = scans.claim(2), scans.claim(2), scans.claim(2)
    assert [[lease.payload.path for lease in leases] for leases in (first, second, third)] == [
        ["0", "1"],
        ["2", "3"],
        ["4"],
    ]
    assert scans.claim() == []


async def test_a_claim_may_wait_for_work(jobs: App[object]) -> None:
    scans = jobs.queue("scans", Scan)
    async with jobs:
        assert await scans.aclaim(wait=0.01) == []
        waiting = asyncio.create_task(scans.aclaim(5, wait=20))
        await idle()
        await scans.aenqueue(Scan("late"))
        (lease,) = await waiting
        assert lease.payload == Scan("late")
        await lease.acomplete()


def test_a_claim_may_wait_for_work_in_a_thread(jobs: App[object], scans: Queue[Scan]) -> None:
    taken: list[str] = []

    def consume() -> None:
        for lease in scans.claim(wait=20):
            taken.append(lease.payload.path)
            lease.complete()

    with jobs:
        thread = threading.Thread(target=consume)
        thread.start()
        scans.enqueue(Scan("late"))
        thread.join(20)
        assert taken == ["late"]


def test_a_claim_that_waits_wakes_when_a_delayed_payload_falls_due(scans: Queue[Scan]) -> None:
    scans.enqueue(Scan("soon"), delay=0.05)
    (lease,) = scans.claim(wait=20)
    assert lease.payload.path == "soon"


@pytest.mark.parametrize(
    ("asked", "option"),
    [({"limit": 0}, "limit"), ({"limit": 5000}, "limit"), ({"lease": 1}, "lease"), ({"wait": -1}, "wait")],
)
def test_a_claim_that_cannot_be_is_refused(scans: Queue[Scan], asked: dict[str, Any], option: str) -> None:
    others = {name: value for name, value in asked.items() if name != "limit"}
    with pytest.raises(InvalidOption) as refused:
        scans.claim(asked.get("limit", 1), **others)
    assert refused.value.option == option


async def test_workers_leave_bare_payloads_to_those_who_pull(jobs: App[object], scans: Queue[Scan]) -> None:
    await scans.aenqueue(Scan("a"), id="a")
    await Worker(jobs, queues=["scans"], until_empty=True).arun()
    assert (await jobs.control.aget("a", queue="scans")).state is JobState.QUEUED
    await jobs.aclose()


def test_a_payload_that_cannot_be_read_is_set_aside_with_its_bytes(jobs: App[object], scans: Queue[Scan]) -> None:
    broken = {"no json": b"\xff\xfe", "half": b'[[{"path":'}

    async def plant() -> None:
        await jobs.aopen()
        for name, payload in broken.items():
            await jobs.engine.enqueue(Group((NewJob(queue="scans", id=name, payload=payload),)))

    failed: list[events.Failed] = []
    jobs.on(events.Failed)(failed.append)
    with jobs:
        asyncio.run(plant())
        scans.enqueue(Scan("good"))
        assert [lease.payload for lease in scans.claim()] == [Scan("good")]
        assert scans.claim(10) == []
        for name, payload in broken.items():
            job = jobs.control.get(name, queue="scans")
            assert (job.state, job.reason) == (JobState.FAILED, Reason.UNDECODABLE)
            assert job.last_error is not None
            assert job._payload == payload
        assert {event.job_id for event in failed} == set(broken)
        assert scans.status().failed == 2


@pytest.mark.parametrize(
    ("payload", "codec"),
    [(b'{"path":"a"}', "json"), (b'[[{"path":7}],{}]', "json"), (b"[[],{}]", "json"), (b"x", "rot13")],
)
def test_a_payload_of_another_type_or_codec_is_retried(
    jobs: App[object], scans: Queue[Scan], payload: bytes, codec: str
) -> None:
    """A puller of a newer release may be able to read it."""

    async def plant() -> None:
        await jobs.aopen()
        await jobs.engine.enqueue(Group((NewJob(queue="scans", id="newer", payload=payload, codec=codec),)))

    with jobs:
        asyncio.run(plant())
        assert scans.claim() == []
        job = jobs.control.get("newer", queue="scans")
        assert (job.state, job.reason) == (JobState.RETRYING, Reason.UNDECODABLE)
        assert job._payload == payload


def test_a_claim_that_waits_gets_its_job_when_leases_can_be_renewed_again(
    monkeypatch: pytest.MonkeyPatch, jobs: App[object], scans: Queue[Scan]
) -> None:
    problems = ["renewals fail"] * 3
    monkeypatch.setattr(Keeper, "problem", property(lambda keeper: problems.pop() if problems else None))
    with jobs:
        scans.enqueue(Scan("a"))
        with pytest.raises(EngineUnavailable, match="renewals fail"):
            scans.claim()
        (lease,) = scans.claim(wait=20)
        assert lease.payload == Scan("a")
        assert problems == []


# Those who went away


def test_a_payload_whose_puller_went_away_is_handed_out_again(
    monkeypatch: pytest.MonkeyPatch, jobs: App[object], scans: Queue[Scan]
) -> None:
    monkeypatch.setenv("HOLDFAST_WORKER_REAP_INTERVAL", "0.001")
    with jobs:
        scans.enqueue(Scan("a"), id="a")
        lost = scans.claim(lease=30)
        assert scans.claim() == []
        jobs.engine.clock_offset += 31_000_000
        (lease,) = scans.claim(wait=20)
        assert (lease.attempt, lease.payload) == (2, Scan("a"))
        assert lease.fence > lost[0].fence
        lease.complete()
        job = jobs.control.get("a", queue="scans")
        assert [attempt.outcome for attempt in job.attempts] == ["worker_lost", "succeeded"]


def test_who_pulls_is_on_record_until_the_app_is_closed(jobs: App[object], scans: Queue[Scan]) -> None:
    with jobs:
        scans.claim()
        jobs.queue("others", int).claim()
        (puller,) = jobs.control.workers()
        assert (puller.tasks, puller.slots, puller.alive) == (("",), 0, True)
        assert "-pull-" in puller.name
    assert jobs.control.workers() == []
    jobs.close()


def test_an_app_pulls_again_after_it_was_closed(jobs: App[object], scans: Queue[Scan]) -> None:
    with jobs:
        scans.enqueue(Scan("a"), id="a")
        (lease,) = scans.claim()
    lease.complete()
    with jobs:
        scans.enqueue(Scan("b"))
        (second,) = scans.claim()
        second.complete()
        assert scans.status().succeeded == 2
