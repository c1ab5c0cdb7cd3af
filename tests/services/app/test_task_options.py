"""The options of `@jobs.task` and of `using`: every form they may have, and a refusal by name for the rest."""

import logging
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import App, InvalidOption, exponential, presets
from holdfast.model.instants import HOUR, SECOND
from holdfast.model.job import KeyScope
from holdfast.model.retry import Listed

# Of the decorator


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
    options: Any = presets.long_running.options()

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
        ("lease", "long"),
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


def test_a_misspelt_option_is_refused_with_the_right_spelling(jobs: App[object]) -> None:
    options: Any = {"qeue": "quick"}
    with pytest.raises(InvalidOption, match="Did you mean `queue`"):
        jobs.task(**options)


async def test_a_timeout_on_a_plain_function_is_warned_of_where_a_worker_starts(
    jobs: App[object], caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task(timeout=3)
    async def can_be_stopped() -> None: ...

    @jobs.task(timeout=3)
    def cannot_be_stopped() -> None: ...

    pool = jobs.pool("ledger", int, lanes=2)

    @pool.handler(timeout=3)
    def book(number: int) -> None: ...

    with caplog.at_level(logging.WARNING, "holdfast"):
        async with jobs:
            await jobs.control.aqueues()
            assert caplog.records == []
            async with jobs.worker():
                pass
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "cannot be stopped: cannot_be_stopped, ledger." in warning


# Of using


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
        ("delay", "soon"),
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
