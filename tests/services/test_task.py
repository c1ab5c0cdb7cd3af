"""Declaring tasks: names, options, templates, `using`, `draft`, `call`; what is wrong is refused where it stands."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from played import run

from holdfast import (
    App,
    Context,
    DuplicateTask,
    GiveUp,
    InvalidArguments,
    InvalidOption,
    exponential,
    fixed,
    presets,
)
from holdfast.model.instants import HOUR, SECOND
from holdfast.model.job import KeyScope
from holdfast.model.retry import Listed


@pytest.fixture
def jobs() -> App[object]:
    return App("memory://")


# Names


def test_a_task_is_named_after_its_function_not_its_module(jobs: App[object]) -> None:
    @jobs.task
    def resize(image: str) -> str:
        """Make it smaller."""
        return image

    assert resize.name == "resize"
    assert jobs.registry["resize"] is resize
    assert resize.__doc__ == "Make it smaller."
    assert resize("cat.png") == "cat.png"


def test_two_tasks_of_one_name_are_refused(jobs: App[object]) -> None:
    @jobs.task(name="resize")
    def first() -> None: ...

    with pytest.raises(DuplicateTask) as refused:

        @jobs.task(name="resize")
        def second() -> None: ...

    assert refused.value.task == "resize"
    assert jobs.registry["resize"] is first


def test_two_apps_do_not_know_each_others_tasks(jobs: App[object]) -> None:
    @jobs.task
    def resize() -> None: ...

    other = App("memory://")

    @other.task(name="resize")
    def also() -> None: ...

    assert list(other.registry) == ["resize"]
    assert other.registry["resize"] is also


@pytest.mark.parametrize("name", ["delay", "apply_async", "send", "kiq", "defer"])
def test_the_verbs_of_other_systems_lead_to_enqueue(jobs: App[object], name: str) -> None:
    @jobs.task
    def resize() -> None: ...

    with pytest.raises(AttributeError, match=r"use \.enqueue\(\.\.\.\)"):
        getattr(resize, name)
    assert not hasattr(resize, "anything_else")


def test_what_is_no_function_is_refused(jobs: App[object]) -> None:
    with pytest.raises(InvalidOption, match="function"):
        jobs.task("resize")  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="name="):
        jobs.task(lambda: None)
    assert jobs.task(name="quick")(lambda: 3)() == 3


def test_generators_are_refused(jobs: App[object]) -> None:
    def many() -> Iterator[int]:
        yield 1

    async def several() -> AsyncIterator[int]:
        yield 1

    for function in (many, several):
        with pytest.raises(InvalidOption, match="generator"):
            jobs.task(function)


# Options


def test_a_task_without_options_has_the_documented_defaults(jobs: App[object]) -> None:
    @jobs.task
    def resize() -> None: ...

    policy = resize.policy
    assert (policy.queue, policy.priority, policy.remote, policy.concurrency) == ("default", 0, False, None)
    assert (policy.retry.max_attempts, policy.retry.max_losses, policy.timeout) == (20, 5, None)
    assert (policy.lease, policy.result_ttl, policy.retention) == (30 * SECOND, HOUR, 24 * HOUR)
    assert policy.failed_retention == 30 * 24 * HOUR
    assert policy.retry.backoff == exponential(1, 2, 3600, 0.1)


def test_options_are_read_in_every_form_they_may_have(jobs: App[object]) -> None:
    @jobs.task(
        queue="quick",
        priority=-3,
        max_attempts=None,
        backoff=[1, timedelta(minutes=1)],
        give_up_on=(ValueError,),
        retry_for=timedelta(hours=1),
        timeout=1.5,
        lease=2,
        concurrency=4,
        unique_for=timedelta(days=1),
        result_ttl=0,
    )
    async def resize() -> None: ...

    policy = resize.policy
    assert (policy.queue, policy.priority, policy.concurrency, policy.result_ttl) == ("quick", -3, 4, 0)
    assert policy.retry.max_attempts is None
    assert policy.retry.backoff == Listed((SECOND, 60 * SECOND))
    assert (policy.retry.give_up_on, policy.retry.retry_for) == ((ValueError,), HOUR)
    assert (policy.timeout, policy.lease) == (1_500_000, 2 * SECOND)
    assert (policy.key_scope, policy.key_window) == (KeyScope.WINDOW, 24 * HOUR)


def test_a_preset_fits_the_decorator(jobs: App[object]) -> None:
    options: Any = presets.seed_004.options()

    @jobs.task(**options)
    def resize() -> None: ...

    assert resize.policy.retry.max_attempts == 3
    assert resize.policy.lease == HOUR


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("queue", ""),
        ("queue", 3),
        ("queue", "a" * 201),
        ("queue", "nul\0"),
        ("name", "\ud800"),
        ("priority", 40_000),
        ("priority", True),
        ("priority", 1.0),
        ("max_attempts", 0),
        ("max_attempts", "3"),
        ("backoff", math.nan),
        ("backoff", -1),
        ("backoff", []),
        ("retry_on", (3,)),
        ("give_up_on", "ValueError"),
        ("retry_for", math.inf),
        ("max_losses", 0),
        ("timeout", 0),
        ("timeout", math.nan),
        ("lease", 1.9),
        ("lease", "30"),
        ("concurrency", 0),
        ("lane", 3),
        ("unique_for", "always"),
        ("unique_for", 0),
        ("result_ttl", -1),
        ("retention", math.inf),
        ("middleware", 3),
        ("codec", "json"),
        ("remote", 1),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(jobs: App[object], option: str, value: object) -> None:
    options: Any = {option: value}
    with pytest.raises(InvalidOption) as refused:
        jobs.task(**options)
    assert refused.value.option == option


def test_a_misspelt_option_is_told_what_it_should_be(jobs: App[object]) -> None:
    options: Any = {"qeue": "quick"}
    with pytest.raises(InvalidOption, match="Did you mean `queue`"):
        jobs.task(**options)


def test_a_timeout_on_a_plain_function_is_warned_of(jobs: App[object], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):

        @jobs.task(timeout=3)
        async def can_be_stopped() -> None: ...

        assert caplog.records == []

        @jobs.task(timeout=3)
        def cannot_be_stopped() -> None: ...

    assert [record.name for record in caplog.records] == ["holdfast"]
    assert "cannot_be_stopped" in caplog.text


# Using


def test_using_makes_a_new_task_and_leaves_the_old_one(jobs: App[object]) -> None:
    @jobs.task
    def resize(image: str) -> None: ...

    quick = resize.using(queue="quick", priority=3)
    quicker = quick.using(priority=9)
    assert (resize.queue, quick.queue, quicker.queue) == ("default", "quick", "quick")
    priorities = [task.draft("a").job.priority for task in (resize, quick, quicker)]
    assert priorities == [0, 3, 9]
    assert type(quick) is type(resize)


def test_a_later_time_takes_the_place_of_an_earlier_one(jobs: App[object]) -> None:
    @jobs.task
    def resize() -> None: ...

    at = datetime(2030, 1, 1, tzinfo=UTC)
    job = resize.using(delay=3).using(at=at).draft().job
    assert (job.delay, job.due) == (0, int(at.timestamp()) * SECOND)
    assert resize.using(at=at).using(delay=3).draft().job.due is None


def test_what_is_given_at_enqueue_travels_with_the_job(jobs: App[object]) -> None:
    @jobs.task
    def resize() -> None: ...

    job = resize.using(max_attempts=None, timeout=2, result_ttl=60, retention=3, metadata={"by": "me"}).draft().job
    assert (job.given.max_attempts, job.given.timeout) == (0, 2 * SECOND)
    assert (job.given.result_ttl, job.given.retention) == (60 * SECOND, 3 * SECOND)
    assert job.metadata == {"by": "me"}
    assert resize.draft().job.given.max_attempts is None


def test_expires_is_an_instant_or_a_time_from_now(jobs: App[object]) -> None:
    @jobs.task
    def resize() -> None: ...

    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert resize.using(expires=at).draft().job.expires == int(at.timestamp()) * SECOND
    soon = resize.using(expires=60).draft().job.expires
    assert soon is not None
    assert abs(soon - jobs.runtime.wall() - 60 * SECOND) < 10 * SECOND


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("id", ""),
        ("id", 7),
        ("id", "nul\0"),
        ("delay", math.nan),
        ("delay", math.inf),
        ("delay", -1),
        ("delay", "3"),
        ("delay", True),
        ("at", datetime(2030, 1, 1)),  # noqa: DTZ001 - that is the mistake
        ("at", 3.0),
        ("expires", datetime(2030, 1, 1)),  # noqa: DTZ001
        ("expires", math.nan),
        ("lane", ""),
        ("unique_key", 3),
        ("unique_for", "never"),
        ("max_attempts", -1),
        ("timeout", 0),
        ("metadata", {"a": 1}),
        ("metadata", [("a", "b")]),
        ("metadata", {"a": "x" * 5_000}),
        ("wait", math.nan),
        ("wait_for_room", -1),
        ("priority", 1.5),
    ],
)
def test_an_option_of_using_that_cannot_be_is_refused_by_name(jobs: App[object], option: str, value: object) -> None:
    @jobs.task
    def resize() -> None: ...

    options: Any = {option: value}
    with pytest.raises(InvalidOption) as refused:
        resize.using(**options)
    assert refused.value.option == option


def test_delay_and_at_exclude_each_other(jobs: App[object]) -> None:
    @jobs.task
    def resize() -> None: ...

    with pytest.raises(InvalidOption, match="not both"):
        resize.using(delay=3, at=datetime.now(UTC))


# Lanes and keys


def test_a_template_is_filled_from_the_arguments_as_the_worker_will_see_them(jobs: App[object]) -> None:
    @jobs.task(lane="customer:{customer_id}", unique_key="{customer_id}/{kind}")
    def bill(customer_id: int, kind: str = "monthly") -> None: ...

    job = bill.draft(7).job
    assert (job.lane, job.unique_key) == ("customer:7", "7/monthly")
    assert bill.draft(kind="yearly", customer_id=8).job.unique_key == "8/yearly"


def test_a_function_of_the_arguments_does_as_well_as_a_template(jobs: App[object]) -> None:
    @jobs.task(lane=lambda order: order if order.startswith("a") else None)
    def ship(order: str) -> None: ...

    assert ship.draft("a1").job.lane == "a1"
    assert ship.draft("b1").job.lane is None


def test_a_template_that_names_no_parameter_is_refused_at_declaration(jobs: App[object]) -> None:
    with pytest.raises(InvalidOption, match=r"customer_di.*customer_id") as refused:

        @jobs.task(lane="customer:{customer_di}")
        def bill(ctx: Context, customer_id: int) -> None: ...

    assert refused.value.option == "lane"
    assert "bill" not in jobs.registry


@pytest.mark.parametrize("template", ["{}", "{0}", "{ctx}", "a{", ""])
def test_a_template_without_names_in_its_braces_is_refused(jobs: App[object], template: str) -> None:
    with pytest.raises(InvalidOption):

        @jobs.task(unique_key=template)
        def bill(ctx: Context, customer_id: int) -> None: ...


def test_a_lane_given_at_the_call_is_taken_literally(jobs: App[object]) -> None:
    @jobs.task(lane="{customer_id}")
    def bill(customer_id: int) -> None: ...

    assert bill.using(lane="{customer_id.__class__}").draft(7).job.lane == "{customer_id.__class__}"


def test_a_template_that_makes_no_name_is_refused_before_the_write(jobs: App[object]) -> None:
    @jobs.task(lane="{customer}")
    def bill(customer: str) -> None: ...

    with pytest.raises(InvalidOption, match="lane"):
        bill.draft("x" * 300)


# Drafts


def test_a_draft_has_its_id_and_does_no_io(jobs: App[object]) -> None:
    @jobs.task
    def resize(image: str) -> None: ...

    draft = resize.draft("secret.png")
    assert len(draft.id) == 26
    assert draft.queue == "default"
    assert resize.using(id="cat").draft("a").id == "cat"
    assert "secret" not in repr(draft)


def test_a_draft_is_checked(jobs: App[object]) -> None:
    @jobs.task
    def resize(image: str) -> None: ...

    with pytest.raises(InvalidArguments):
        resize.draft(7)  # type: ignore[arg-type]


# Calling


def test_call_runs_either_colour_from_either_colour(jobs: App[object]) -> None:
    @jobs.task
    def plain(n: int) -> int:
        return n + 1

    @jobs.task
    async def on_a_loop(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    assert (plain.call(1), on_a_loop.call(1)) == (2, 2)

    async def both() -> tuple[int, int]:
        return await plain.acall(1), await on_a_loop.acall(1)

    assert run(both()) == (2, 2)


def test_a_task_that_wants_a_context_gets_a_detached_one(jobs: App[object]) -> None:
    @jobs.task
    def plain(ctx: Context, n: int) -> tuple[int, bool, str]:
        return ctx.attempt + n, ctx.aborted, ctx.job.task

    @jobs.task
    async def on_a_loop(ctx: Context, n: int) -> int:
        return Context.current().attempt + n

    assert plain.call(1) == plain(1) == (2, False, "plain")
    assert on_a_loop.call(1) == 2


def test_what_a_called_function_raises_comes_out_as_it_is(jobs: App[object]) -> None:
    @jobs.task
    async def hopeless() -> None:
        raise GiveUp("card expired")

    with pytest.raises(GiveUp, match="card expired"):
        hopeless.call()


def test_call_needs_the_code(jobs: App[object]) -> None:
    with pytest.raises(InvalidOption, match="not in this process"):
        jobs.client.task("elsewhere").call()


# Hooks


def test_hooks_for_dead_letters_are_shared_by_all_copies_of_a_task(jobs: App[object]) -> None:
    @jobs.task
    def resize() -> None: ...

    @resize.using(queue="quick").on_dead_letter
    def note(job: object, error: object) -> None: ...

    assert jobs.registry["resize"].dead_letter_hooks == [note]


def test_middleware_of_a_task_is_kept_in_order(jobs: App[object]) -> None:
    async def one(ctx: Context, proceed: Any) -> object:
        return await proceed()

    async def two(ctx: Context, proceed: Any) -> object:
        return await proceed()

    @jobs.task(middleware=[one, two], backoff=fixed(1))
    def resize() -> None: ...

    assert resize.middleware == (one, two)
