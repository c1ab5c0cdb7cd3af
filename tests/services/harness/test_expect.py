"""Looking at what was enqueued, and single attempts."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from holdfast import App, Context, GiveUp, InvalidArguments, JobFailed, JobState, Next, Retry, UsageError, events, fixed
from holdfast.testing import Harness, harness

jobs = App[Any]("sqlite:///there/is/no/such/folder/jobs.db")


@dataclass(frozen=True)
class Address:
    street: str
    number: int = 1


@jobs.task
def resize(image: str, width: int = 800) -> str:
    return f"{image}@{width}"


@jobs.task
async def send(to: Address, *lines: str, **headers: str) -> Address:
    return to


@jobs.task(max_attempts=2, backoff=fixed(5))
async def tries(ctx: Context, how: str) -> str:
    match how:
        case "raise":
            raise ValueError("broken")
        case "retry":
            raise Retry("not yet")
        case "give up":
            raise GiveUp("never")
        case "enqueue":
            await resize.aenqueue("from inside")
    return f"attempt {ctx.attempt} of {ctx.job.task} in {ctx.job.queue}"


@pytest.fixture
def h() -> Iterator[Harness]:
    with harness(jobs) as made:
        yield made


# --- Enqueued ---


def test_jobs_are_listed_in_the_order_in_which_they_came(h: Harness) -> None:
    first = resize.using(queue="z").enqueue("1")
    second = tries.enqueue("well")
    third = resize.using(delay=60).enqueue("3")
    h.drain()

    assert [job.id for job in h.enqueued()] == [first.id, second.id, third.id]
    assert [job.id for job in h.enqueued(resize)] == [first.id, third.id]
    assert [job.id for job in h.enqueued(queue="z")] == [first.id]
    assert [job.id for job in h.enqueued(resize, state="scheduled")] == [third.id]
    assert [job.arguments for job in h.enqueued(state=JobState.SUCCEEDED)] == [(["1"], {}), (["well"], {})]


def test_many_jobs_are_listed_whole(h: Harness) -> None:
    jobs.client.enqueue_many([resize.draft(str(number)) for number in range(250)])
    assert len(h.enqueued(resize)) == 250


# --- Expected ---


def test_a_call_is_found_however_it_is_written(h: Harness) -> None:
    handle = resize.enqueue("cat.png", 800)
    for job in (
        h.assert_enqueued(resize, "cat.png"),
        h.assert_enqueued(resize, "cat.png", width=800),
        h.assert_enqueued(resize, image="cat.png", width=800),
    ):
        assert job.id == handle.id


def test_arguments_are_compared_as_the_worker_sees_them(h: Harness) -> None:
    send.enqueue(Address("Elm Street", 13), "Dear sir", subject="x")
    h.assert_enqueued(send, Address("Elm Street", 13), "Dear sir", subject="x")
    with pytest.raises(AssertionError, match=r"number=13.*expected.*number=1"):
        h.assert_enqueued(send, Address("Elm Street"), "Dear sir", subject="x")
    with pytest.raises(AssertionError, match="lines"):
        h.assert_enqueued(send, Address("Elm Street", 13), subject="x")


def test_true_is_not_one() -> None:
    app = App("memory://")

    @app.task
    def takes(value: Any) -> None: ...

    with harness(app) as h:
        takes.enqueue(1)
        with pytest.raises(AssertionError, match="value: 1, expected True"):
            h.assert_enqueued(takes, True)


def test_options_count_where_they_are_named(h: Harness) -> None:
    late = resize.using(queue="bulk", delay=60, priority=3, metadata={"by": "me"}).enqueue("cat.png")
    assert h.assert_enqueued(resize, "cat.png").id == late.id
    assert h.assert_enqueued(resize.using(queue="bulk", delay=timedelta(minutes=1)), "cat.png").id == late.id
    assert h.assert_enqueued(resize.using(at=h.clock.now() + timedelta(minutes=1)), "cat.png").id == late.id
    assert h.assert_enqueued(resize.using(id=late.id, metadata={"by": "me"}), "cat.png").id == late.id
    with pytest.raises(AssertionError, match="priority: 3, expected 4"):
        h.assert_enqueued(resize.using(priority=4), "cat.png")


def test_what_is_not_there_is_shown_beside_what_is(h: Harness) -> None:
    resize.enqueue("dog.png", 10)
    near = resize.enqueue("cat.png", 10)
    tries.enqueue("well")
    with pytest.raises(AssertionError) as caught:
        h.assert_enqueued(resize, "cat.png", width=64)

    said = str(caught.value).splitlines()
    assert said[:4] == [
        "No job was enqueued as resize(image='cat.png', width=64).",
        "Of task resize there are 2 jobs:",
        f"  {near.id} in queue default, queued",
        "    width: 10, expected 64",
    ]
    assert said[5:] == ["    image: 'dog.png', expected 'cat.png'", "    width: 10, expected 64"]


def test_where_the_task_has_no_job_the_others_are_named(h: Harness) -> None:
    with pytest.raises(AssertionError, match="Nothing was enqueued at all"):
        h.assert_enqueued(resize, "cat.png")
    tries.enqueue("well")
    with pytest.raises(AssertionError, match="Enqueued were: tries ×1"):
        h.assert_enqueued(resize, "cat.png")


def test_an_expectation_that_no_call_could_meet_is_a_mistake_of_the_test(h: Harness) -> None:
    resize.enqueue("cat.png")
    with pytest.raises(InvalidArguments, match="width"):
        h.assert_enqueued(resize, "cat.png", width="wide")  # type: ignore[arg-type]


def test_looking_changes_nothing(h: Harness) -> None:
    resize.enqueue("cat.png")
    with harness(App("memory://")):  # has the same ids to give
        pass
    ids = []
    for look in (False, True):
        with harness(app := App("memory://")) as other:
            task = app.task(name="it")(lambda: None)
            task.enqueue()
            if look:
                other.assert_enqueued(task)
            ids.append(task.enqueue().id[10:])
    assert ids[0] == ids[1]


def test_what_was_not_to_be_enqueued_is_shown(h: Harness) -> None:
    h.assert_not_enqueued(resize)
    resize.enqueue("cat.png")
    h.assert_not_enqueued(tries)
    with pytest.raises(AssertionError, match=r"queued: resize\(image='cat.png', width=800\)"):
        h.assert_not_enqueued(resize)


# --- One attempt ---


def test_an_attempt_answers_what_the_handler_returns(h: Harness) -> None:
    assert h.attempt(tries, "well") == "attempt 1 of tries in default"
    assert h.attempt(tries.using(queue="other", delay=60), "well") == "attempt 1 of tries in other"
    assert h.attempt(send, Address("Elm Street", 13)) == Address("Elm Street", 13)
    assert h.enqueued() == []


def test_an_attempt_is_made_whatever_else_waits(h: Harness) -> None:
    resize.using(priority=100).enqueue("first in the queue")
    assert h.attempt(resize, "cat.png") == "cat.png@800"
    assert h.enqueued(resize)[0].state is JobState.QUEUED


def test_an_attempt_raises_what_the_handler_raises(h: Harness) -> None:
    with pytest.raises(ValueError, match="broken"):
        h.attempt(tries, "raise")
    with pytest.raises(Retry, match="not yet"):
        h.attempt(tries, "retry")
    with pytest.raises(GiveUp, match="never"):
        h.attempt(tries, "give up")
    assert [type(event) for event in h.events if isinstance(event, events.Failed | events.Retrying)] == [
        events.Retrying,
        events.Retrying,
        events.Failed,
    ]


def test_what_an_attempt_enqueues_is_seen(h: Harness) -> None:
    h.attempt(tries, "enqueue")
    h.assert_enqueued(resize, "from inside")


def test_an_attempt_goes_through_middleware_and_codec() -> None:
    app = App("memory://")

    @app.middleware
    async def around(ctx: Context, proceed: Next) -> object:
        return [await proceed(), "around"]

    @app.task
    def pair(x: int) -> list[Any]:
        return [x]

    @app.task
    def unstorable() -> object:
        return object()

    with harness(app) as h:
        assert h.attempt(pair, 1) == [[1], "around"]
        with pytest.raises(InvalidArguments):
            h.attempt(pair, "one")  # type: ignore[arg-type]
        with pytest.raises(JobFailed):
            h.attempt(unstorable)


async def test_an_attempt_can_be_awaited(h: Harness) -> None:
    assert (await h.aattempt(resize, "cat.png", width=3)) == "cat.png@3"


def test_a_task_whose_code_is_elsewhere_cannot_be_tried(h: Harness) -> None:
    with pytest.raises(UsageError, match="not in this process"):
        h.attempt(jobs.client.task("billing.send_invoice"), 42)


def test_nothing_answers_a_request_made_in_a_single_attempt(h: Harness) -> None:
    @jobs.task(name="asks")
    async def asks() -> str:
        return await resize.arequest("cat.png")

    with pytest.raises(UsageError, match="nothing in this test will run it"):
        h.attempt(asks)
