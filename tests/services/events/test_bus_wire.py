"""Events as messages: nothing is too long, nothing loses its place, and what cannot be read harms nothing else."""

from typing import Any

import pytest

from holdfast import events
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.telemetry.wire import KINDS, MAX_MESSAGE_BYTES, pack, unpack

JOB: dict[str, Any] = {"queue": "mail", "job_id": "j", "task": "send"}
ERROR = ErrorInfo("builtins.ValueError", "no \N{SNOWMAN}", "Traceback\n  here\n")

TOLD: list[events.Event] = [
    events.Queued(at=1, state=JobState.SCHEDULED, lane="3", **JOB),
    events.Assigned(at=2, worker="w", **JOB),
    events.Started(at=3, waited=7, attempt=1, worker="w", **JOB),
    events.Progressed(at=4, fraction=0.5, note="half", **JOB),
    events.Succeeded(at=4, ran=9, **JOB),
    events.Retrying(at=5, delay=1, reason=Reason.ERROR, error=ERROR, max_attempts=3, **JOB),
    events.Failed(at=6, reason=Reason.EXHAUSTED, note="so it goes", error=ERROR, **JOB),
    events.Cancelled(at=7, reason=Reason.ASKED, **JOB),
    events.Reaped(at=8, owner="v", losses=2, **JOB),
    events.OwnershipLost(at=9, **JOB),
    events.WorkerStarted(at=10, worker="w", queues=("a", "b"), tasks=("t",), slots=4),
    events.WorkerStopping(at=11, worker="w", grace=5, running=1),
    events.WorkerStopped(at=12, worker="w", released=1),
    events.LoopBlocked(at=13, worker="w", blocked=9, stack="here", job_ids=("j",)),
    events.QueuePaused(at=14, queue="q"),
    events.QueueResumed(at=15, queue="q", lane="1"),
    events.QueueCleared(at=16, queue="q", count=3),
    events.QueueEmpty(at=17, queue="q"),
    events.LaneEmpty(at=18, queue="q", lane="1"),
    events.SoftLimit(at=19, queue="q", depth=80, limit=100),
    events.UnknownTask(at=20, queue="q", task="t", job_id="j"),
    events.HistoryLost(at=21, store="127.0.0.1:6379/0", keys="holdfast:*"),
    events.StoreError(at=22, store="127.0.0.1:6379/0", error=ERROR),
]


def read(messages: list[bytes]) -> list[events.Event]:
    read = [unpack(message) for message in messages]
    assert [unread for _, unread in read if unread] == []
    return [event for told, _ in read for event in told]


def test_every_kind_comes_out_as_it_went_in() -> None:
    assert {type(event) for event in TOLD} == set(KINDS)
    assert read(list(pack(TOLD))) == TOLD


def test_many_share_messages_that_are_never_too_long() -> None:
    told = [events.Succeeded(at=n, queue="q", job_id=f"job {n}", task="t") for n in range(1_000)]
    messages = list(pack(told))
    assert 2 < len(messages) < 50
    assert max(map(len, messages)) <= MAX_MESSAGE_BYTES
    assert read(messages) == told


def failed(**fields: Any) -> events.Failed:
    return events.Failed(**{"at": 1, "queue": "q", "job_id": "j", "task": "t", **fields})


def test_an_event_that_is_too_long_loses_the_beginning_of_its_traceback() -> None:
    lines = "".join(f"line {n}\n" for n in range(2_000))
    (event,) = read(list(pack([failed(error=ErrorInfo("E", "no", lines), note="n")])))
    assert isinstance(event, events.Failed)
    assert event.error is not None
    assert (event.error.type, event.error.message, event.note) == ("E", "no", "n")
    assert event.error.traceback.endswith("line 1998\nline 1999\n")


@pytest.mark.parametrize(
    "event",
    [
        failed(error=ErrorInfo("E", "\N{SNOWMAN}" * 5_000, "\1" * 9_000), note="\2" * 5_000),
        failed(queue="\1" * 200, job_id="\1" * 200, task="\1" * 200, lane="\1" * 200, note="n" * 9_000),
        events.LoopBlocked(at=1, worker="w", blocked=1, stack="x" * 50_000),
        events.WorkerStarted(at=1, worker="w", tasks=tuple(f"{n}" * 100 for n in range(1_000))),
    ],
    ids=["error", "names", "stack", "tasks"],
)
def test_an_event_with_long_fields_is_published(event: events.Event) -> None:
    (message,) = pack([event])
    assert len(message) <= MAX_MESSAGE_BYTES
    (told,) = read([message])
    assert (type(told), told.at) == (type(event), event.at)


def test_an_event_that_is_no_valid_text_is_left_out() -> None:
    surrogate = events.LoopBlocked(at=1, worker="w", blocked=1, stack="\udc80")
    assert read(list(pack([surrogate, TOLD[0]]))) == [TOLD[0]]


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"\xff\xfe", b"[]", b'{"event":"Teleported","at":1}', b'{"event":"QueueEmpty"}', b'{"at":1}'],
)
def test_a_line_that_cannot_be_read_is_counted_and_the_rest_is_read(line: bytes) -> None:
    (good,) = pack([TOLD[0]])
    assert unpack(b"\n".join((good, line, good))) == ([TOLD[0], TOLD[0]], 1)


def test_what_a_newer_version_says_besides_is_ignored() -> None:
    told, unread = unpack(b'{"event":"QueuePaused","at":1,"queue":"q","by":"someone","lane":"2"}')
    assert (told, unread) == ([events.QueuePaused(at=1, queue="q", lane="2")], 0)
