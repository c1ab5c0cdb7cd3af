"""The error tree: what each error knows, what it says, and that it travels."""

import asyncio
import copy
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

from holdfast import errors
from holdfast.errors import (
    Aborted,
    Cancel,
    GiveUp,
    HoldfastError,
    Interrupt,
    InvalidOption,
    JobFailed,
    Retry,
    Snooze,
    duration_us,
    instant_us,
)
from holdfast.model.text import ErrorInfo, describe


class CardDeclined(Exception):
    pass


DECLINED = ErrorInfo(f"{__name__}.CardDeclined", "no funds", "Traceback ...")

EXAMPLES: list[BaseException] = [
    errors.HoldfastError("Something."),
    errors.UsageError("Something."),
    errors.InvalidArguments("Bad.", task="resize", field="width"),
    errors.InvalidOption("Bad.", option="queue"),
    errors.UnknownTask(task="resise", known=["resize", "flaky"]),
    errors.DuplicateTask(task="resize"),
    errors.BlockingCall(method="enqueue", twin="aenqueue"),
    errors.Unsupported(capability="user_transactions", engine="memory"),
    errors.WrongDatabase(expected="shop", found="test"),
    errors.ConfigError("Bad.", key="worker.concurrency", source="holdfast.toml"),
    errors.Refused("No."),
    errors.QueueFull(queue="emails", depth=10, limit=10, lane="alice"),
    errors.IdConflict(job_id="a", queue="emails"),
    errors.KeyTaken(job_id="a", queue="emails", key="k", holder="b"),
    errors.AmbiguousId(job_id="a", queues=["emails", "default"]),
    errors.Busy(queue="emails", waited=2.0),
    errors.PayloadTooLarge(size=11, limit=10),
    errors.JobNotFound(job_id="a", queue="emails"),
    errors.ResultExpired(job_id="a", queue="emails"),
    errors.WrongState(job_id="a", state="blocked", verb="trigger"),
    errors.LeaseLost(job_id="a", queue="emails"),
    errors.JobError("It ended.", job_id="a", task="resize", attempts=3),
    errors.JobFailed(job_id="a", task="resize", attempts=3, reason="error", error=DECLINED),
    errors.JobCancelled(job_id="a", task="resize", attempts=1, reason="withdrawn"),
    errors.WaitTimeout(job_id="a", waited=30, why="No worker is alive."),
    errors.EngineError(engine="sqlite"),
    errors.EngineUnavailable(engine="redis"),
    errors.OutcomeUnknown(verb="enqueue", job_ids=["a", "b"], engine="postgres"),
    errors.SchemaMismatch(found="3", wanted="4", engine="postgres"),
    errors.StorageFull(engine="redis"),
    errors.HistoryLost(engine="redis"),
    errors.CorruptRecord(where="payload", job_id="a", engine="file"),
    Interrupt("why"),
    Retry("busy", delay=1.5),
    Snooze(at=datetime(2030, 1, 1, tzinfo=UTC), reason="later"),
    GiveUp("card expired"),
    Cancel("withdrawn"),
    Aborted("shutdown"),
]

every_error = pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)


def tree(cls: type[BaseException]) -> Iterator[type[BaseException]]:
    yield cls
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


def facts(error: BaseException) -> tuple[type, str, dict[str, Any]]:
    return type(error), str(error), vars(error)


def test_the_examples_here_cover_the_whole_tree() -> None:
    assert {type(error) for error in EXAMPLES} == {*tree(HoldfastError), *tree(Interrupt)}


def test_every_error_stands_in_the_drawing_at_the_head_of_the_file() -> None:
    drawing = errors.__doc__ or ""
    assert [cls.__name__ for cls in (*tree(HoldfastError), *tree(Interrupt)) if cls.__name__ not in drawing] == []


@every_error
def test_an_error_survives_a_shallow_copy(error: BaseException) -> None:
    assert facts(copy.copy(error)) == facts(error)


@every_error
def test_an_error_survives_a_deep_copy(error: BaseException) -> None:
    assert facts(copy.deepcopy(error)) == facts(error)


@every_error
def test_an_error_survives_the_way_to_another_process(error: BaseException) -> None:
    assert facts(ForkingPickler.loads(bytes(ForkingPickler.dumps(error)))) == facts(error)


@every_error
def test_a_note_added_to_an_error_goes_with_its_copy(error: BaseException) -> None:
    noted = copy.copy(error)
    noted.add_note("seen in staging")
    assert copy.copy(noted).__notes__ == ["seen in staging"]


@every_error
def test_an_error_explains_itself(error: BaseException) -> None:
    assert str(error)
    assert type(error).__doc__


@pytest.mark.parametrize("error", [e for e in EXAMPLES if hasattr(e, "job_id")], ids=lambda e: type(e).__name__)
def test_an_error_about_a_job_names_the_job(error: BaseException) -> None:
    if type(error) is not errors.JobError:  # whose message is its maker's
        assert "'a'" in str(error)


@pytest.mark.parametrize("error", [e for e in EXAMPLES if hasattr(e, "queue")], ids=lambda e: type(e).__name__)
def test_an_error_about_a_queue_names_the_queue(error: BaseException) -> None:
    assert "'emails'" in str(error)


def test_a_message_of_the_makers_own_takes_the_place_of_the_standard_one() -> None:
    assert str(errors.QueueFull("No room at all.", queue="q", depth=1, limit=1)) == "No room at all."


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.InvalidArguments, ValueError),
        (errors.InvalidArguments, TypeError),
        (errors.InvalidOption, ValueError),
        (errors.UnknownTask, LookupError),
        (errors.JobNotFound, LookupError),
        (errors.WaitTimeout, TimeoutError),
        (errors.EngineUnavailable, ConnectionError),
    ],
)
def test_an_error_is_also_what_python_calls_it(cls: type, builtin: type) -> None:
    assert issubclass(cls, builtin)


def test_an_unknown_task_suggests_the_name_that_was_meant() -> None:
    assert "'resize'" in str(errors.UnknownTask(task="resise", known=["resize", "flaky"]))


def test_a_full_queue_says_how_full() -> None:
    full = errors.QueueFull(queue="emails", depth=12, limit=10)
    assert (full.queue, full.lane, full.depth, full.limit) == ("emails", None, 12, 10)


@pytest.mark.parametrize("cls", [JobFailed, errors.JobCancelled])
def test_the_name_of_a_task_cannot_forge_a_line(cls: Any) -> None:
    assert "\n" not in str(cls(job_id="a", task="t\nERROR", attempts=1, reason="error"))


def test_a_failed_job_knows_the_class_that_caused_it_by_name() -> None:
    failed = JobFailed(job_id="a", task="t", attempts=1, reason="error", error=DECLINED)
    assert failed.caused_by(CardDeclined)


def test_a_failed_job_was_not_caused_by_another_class_of_the_same_bare_name() -> None:
    failed = JobFailed(job_id="a", task="t", attempts=1, reason="error", error=ErrorInfo("shop.CardDeclined", "", ""))
    assert not failed.caused_by(CardDeclined)


def test_a_job_that_failed_without_an_error_was_caused_by_no_class() -> None:
    assert not JobFailed(job_id="a", task="t", attempts=1, reason="worker_lost").caused_by(Exception)


def test_a_described_exception_is_recognised_as_the_cause() -> None:
    failed = JobFailed(job_id="a", task="t", attempts=1, reason="error", error=describe(KeyError("x")))
    assert failed.caused_by(KeyError)


def test_an_interrupt_passes_an_except_exception() -> None:
    def handler() -> None:
        try:
            raise Retry("busy")
        except Exception:  # what a careless handler does
            return

    with pytest.raises(Retry):
        handler()


async def test_an_interrupt_leaves_an_asyncio_task_unchanged() -> None:
    async def handler() -> None:
        raise GiveUp("card expired")

    with pytest.raises(GiveUp, match="card expired"):
        async with asyncio.timeout(5):
            await asyncio.ensure_future(handler())


def test_retry_needs_neither_reason_nor_delay() -> None:
    assert (Retry().reason, Retry().delay) == ("", None)


@pytest.mark.parametrize("given", [1.5, timedelta(seconds=1.5)])
def test_a_delay_is_kept_in_microseconds(given: float | timedelta) -> None:
    assert Retry(delay=given).delay == 1_500_000


def test_an_instant_is_kept_in_microseconds_since_1970() -> None:
    assert Snooze(at=datetime(1970, 1, 2, 1, tzinfo=timezone(timedelta(hours=1)))).at == 86_400_000_000


BAD_DURATIONS = [-1, -0.001, timedelta(seconds=-1), float("nan"), float("inf"), 1e300, 10**400, "five", True, [1]]


@pytest.mark.parametrize("bad", BAD_DURATIONS)
def test_a_delay_that_is_no_duration_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        Retry(delay=bad)
    assert caught.value.option == "delay"


@pytest.mark.parametrize("bad", BAD_DURATIONS)
def test_a_snooze_with_a_bad_delay_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidOption, match="delay"):
        Snooze(delay=bad)


@pytest.mark.parametrize("bad", [datetime(2030, 1, 1), "2030-01-01", 0])  # noqa: DTZ001 - naive on purpose
def test_a_snooze_until_no_instant_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        Snooze(at=bad)
    assert caught.value.option == "at"


def test_a_snooze_without_a_time_is_refused() -> None:
    with pytest.raises(InvalidOption):
        Snooze()


def test_a_snooze_with_two_times_is_refused() -> None:
    with pytest.raises(InvalidOption):
        Snooze(delay=1, at=datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("kind", [Retry, GiveUp, Cancel, Aborted])
def test_a_reason_that_is_no_text_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        kind(ValueError("x"))
    assert caught.value.option == "reason"


def test_giving_up_needs_a_reason() -> None:
    with pytest.raises(TypeError):
        GiveUp()  # type: ignore[call-arg]


def test_a_duration_of_zero_is_a_duration() -> None:
    assert duration_us(0, "delay") == 0


def test_a_duration_is_rounded_to_the_nearest_microsecond() -> None:
    assert duration_us(0.0000019, "delay") == 2


def test_an_instant_before_1970_is_negative() -> None:
    assert instant_us(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), "at") == -1_000_000


def test_a_message_that_ends_with_a_full_stop_gets_no_second_one() -> None:
    error = ErrorInfo("shop.Refused", "Correct one of them.", "")
    text = str(JobFailed(job_id="a", task="t", attempts=1, reason="error", error=error))
    assert text.endswith("Last error: shop.Refused: Correct one of them. Fix the cause, then requeue it.")


def test_an_instant_after_june_2255_never_comes() -> None:
    last = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=2**53)
    assert instant_us(last, "at") == 2**53
    assert instant_us(last + timedelta(microseconds=1), "at") == 2**62
