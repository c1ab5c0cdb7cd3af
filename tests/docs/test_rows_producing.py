"""Producing, as `docs/contributing/seeds.md` has it row by row: through the public API, on every engine."""

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import (
    App,
    IdConflict,
    InvalidArguments,
    JobCancelled,
    JobFailed,
    PayloadTooLarge,
    QueueFull,
    ResultExpired,
    WaitTimeout,
    content_id,
    events,
)
from holdfast.codec import MsgpackCodec
from holdfast.testing import FakeClock

SECONDS = 20.0


def test_many_are_accepted_together_or_not_at_all(jobs: App[Any]) -> None:
    @jobs.task
    def work(number: int) -> int:
        return number

    handles = jobs.client.enqueue_many([work.draft(number) for number in range(100)])
    assert len({handle.id for handle in handles}) == 100
    taken = work.using(id="one").enqueue(1)
    with pytest.raises(IdConflict):
        jobs.client.enqueue_many([work.draft(7), work.using(id="one").draft(2)])
    assert jobs.control.status("default").depth == 101
    assert taken.refresh().arguments == ([1], {})


def test_input_that_does_not_fit_names_its_field_and_writes_nothing(
    jobs: App[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LIMITS_PAYLOAD", "1000")

    @jobs.task
    def work(number: int, text: str = "") -> None: ...

    with pytest.raises(InvalidArguments) as refused:
        work.enqueue("seven")  # type: ignore[arg-type]
    assert (refused.value.task, refused.value.field) == ("work", "number")
    with pytest.raises(PayloadTooLarge):
        work.enqueue(7, "x" * 2_000)
    assert jobs.control.queues() == []


def test_a_payload_that_does_not_fit_names_its_field(jobs: App[Any]) -> None:
    @dataclass(frozen=True)
    class Transfer:
        account: str
        cents: int

    with pytest.raises(InvalidArguments) as refused:
        jobs.pool("ledger", Transfer, lanes=2).enqueue({"account": "ada", "cents": "many"})  # type: ignore[arg-type]
    assert refused.value.field == "cents"
    with pytest.raises(InvalidArguments):
        jobs.queue("ledger", Transfer).enqueue({"account": "ada"})  # type: ignore[arg-type]
    assert jobs.control.queues() == []


def test_an_id_is_answered_created_then_duplicate_then_completed(jobs: App[Any]) -> None:
    @jobs.task
    def work(number: int) -> int:
        return number * 2

    once = work.using(id="one")
    answers = [once.enqueue(4).receipt, once.enqueue(4).receipt]
    with jobs.worker():
        once.enqueue(4).result(timeout=SECONDS)
    late = once.enqueue(4)
    assert [receipt and receipt.answer for receipt in (*answers, late.receipt)] == ["created", "duplicate", "completed"]
    assert late.result() == 8
    with pytest.raises(IdConflict):
        once.enqueue(5)


def test_of_racing_callers_one_creates(jobs: App[Any]) -> None:
    @jobs.task(unique_key="only")
    def work() -> None: ...

    made: list[bool] = []
    threads = [threading.Thread(target=lambda: made.append(work.enqueue().created)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 15 + [True]


def test_the_id_of_a_cancelled_job_may_be_used_again(jobs: App[Any]) -> None:
    @jobs.task
    def work() -> None: ...

    work.using(id="one").enqueue().cancel()
    assert work.using(id="one").enqueue().created


def test_the_receipt_has_arrival_position_and_depth(jobs: App[Any]) -> None:
    @jobs.task(lane="only")
    def work() -> None: ...

    first, second = work.enqueue().receipt, work.enqueue().receipt
    assert first is not None
    assert second is not None
    assert (first.state, first.position, first.depth) == ("queued", 0, 1)
    assert (second.state, second.position, second.depth) == ("blocked", 1, 2)
    assert first.arrival < second.arrival


def test_delay_time_and_priority_decide_which_job_runs_first(jobs: App[Any]) -> None:
    ran: list[str] = []

    @jobs.task
    def work(name: str) -> None:
        ran.append(name)

    late = work.using(delay=3600).enqueue("late")
    work.using(at=datetime.now(UTC) - timedelta(days=1)).enqueue("past")
    work.using(priority=9).enqueue("urgent")
    last = work.enqueue("usual")
    with jobs.worker(concurrency=1):
        last.result(timeout=SECONDS)
        FakeClock(jobs.engine).advance(hours=1)
        work.enqueue("bell")  # the notification makes an idle worker read the clock again
        late.result(timeout=SECONDS)
    assert ran[:3] == ["urgent", "past", "usual"]
    assert "late" in ran


def test_a_full_queue_refuses_warns_before_and_can_be_waited_for(
    jobs: App[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_QUEUES_DEFAULT_MAX_DEPTH", "5")
    warned: list[int] = []

    @jobs.task
    def work() -> None: ...

    @jobs.on(events.SoftLimit)
    def warn(event: events.SoftLimit) -> None:
        warned.append(event.depth)

    for _ in range(5):
        work.enqueue()
    with pytest.raises(QueueFull) as full:
        work.enqueue()
    assert (full.value.queue, full.value.depth, full.value.limit) == ("default", 5, 5)
    assert warned == [4]
    with jobs.worker():
        work.using(wait_for_room=SECONDS).enqueue().result(timeout=SECONDS)


def test_a_request_brings_the_result_or_how_the_job_ended(jobs: App[Any]) -> None:
    @jobs.task(max_attempts=1)
    def work(how: str) -> str | None:
        if how == "fails":
            raise ValueError("no")
        return {"large": "x" * 100_000}.get(how)

    with jobs.worker():
        assert work.request("large") == "x" * 100_000
        assert work.request("nothing") is None
        with pytest.raises(JobFailed) as failed:
            work.request("fails")
        assert failed.value.caused_by(ValueError)
        answered = work.using(id="asked").request("large")
        assert work.using(id="asked").request("large") == answered
    assert jobs.control.status("default").succeeded == 3


def test_a_wait_ends_and_the_job_continues(jobs: App[Any]) -> None:
    @jobs.task
    def work() -> int:
        return 7

    with pytest.raises(WaitTimeout):
        work.using(id="slow", wait=0.01).request()
    with jobs.worker():
        assert work.using(id="slow").request() == 7


def test_a_caller_that_waits_for_a_cancelled_job_is_notified(jobs: App[Any]) -> None:
    @jobs.task
    def work() -> None: ...

    handle = work.using(delay=3600).enqueue()
    reasons: list[str] = []

    def wait() -> None:
        try:
            handle.result(timeout=SECONDS)
        except JobCancelled as cancelled:
            reasons.append(cancelled.reason)

    thread = threading.Thread(target=wait)
    thread.start()
    assert handle.cancel("sold out").answer == "cancelled"
    thread.join()
    assert reasons == ["sold out"]


def test_results_are_kept_for_their_ttl(jobs: App[Any]) -> None:
    @jobs.task(result_ttl=60)
    def work() -> int:
        return 7

    with jobs.worker():
        short, long = work.enqueue(), work.using(result_ttl=600).enqueue()
        kept = work.enqueue()
        assert [handle.result(timeout=SECONDS) for handle in (short, long, kept)] == [7, 7, 7]
    jobs.control.set_result_ttl(kept.id, 600)
    FakeClock(jobs.engine).advance(minutes=5)
    with pytest.raises(ResultExpired):
        short.result()
    assert (long.result(), kept.result()) == (7, 7)
    assert short.refresh().state == "succeeded"  # the record has a clock of its own


class Reversed:
    """A custom codec: JSON, written backwards."""

    name = "reversed"

    def encode(self, value: Any) -> bytes:
        return MsgpackCodec().encode(value)[::-1]

    def decode(self, data: bytes, type: Any = Any) -> Any:
        return MsgpackCodec().decode(data[::-1], type)


@pytest.mark.parametrize("codec", [MsgpackCodec(), Reversed()], ids=["msgpack", "own"])
def test_another_codec_carries_payload_and_result(jobs: App[Any], codec: Any) -> None:
    @jobs.task(codec=codec)
    def work(data: bytes) -> bytes:
        return data + b"!"

    with jobs.worker():
        handle = work.enqueue(b"\x00\xff")
        assert handle.result(timeout=SECONDS) == b"\x00\xff!"
    assert jobs.control.get(handle.id).task == "work"  # the envelope is no codec's business


def test_equal_payloads_are_one_job(jobs: App[Any]) -> None:
    @jobs.task
    def work(order: dict[str, int]) -> None: ...

    def enqueue(order: dict[str, int]) -> bool:
        return work.using(id=content_id(order)).enqueue(order).created

    assert [enqueue({"a": 1, "b": 2}), enqueue({"b": 2, "a": 1}), enqueue({"a": 2, "b": 2})] == [True, False, True]
