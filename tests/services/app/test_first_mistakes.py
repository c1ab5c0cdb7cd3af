"""What a new user types first, from a habit with another system: it works, or the error says what to type."""

import builtins
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from holdfast import App, InvalidArguments, InvalidOption, WaitTimeout
from holdfast.codec import MsgpackCodec
from holdfast.core import job_end
from holdfast.errors import DuplicateTask, Snooze, duration_us
from holdfast.model.instants import SECOND
from holdfast.testing import harness


@pytest.fixture
def jobs() -> App[Any]:
    return App("memory://")


# A notebook

CELL = """
@jobs.task
def resize(image: str) -> str:
    return image + VERSION
"""


def run_cell(jobs: App[Any], version: str) -> Any:
    names: dict[str, Any] = {"jobs": jobs, "VERSION": version, "__name__": "__main__"}
    exec(CELL, names)
    return names["resize"]


@pytest.mark.parametrize("shell", ["ipython", "python"])
def test_a_cell_that_is_run_again_replaces_its_task(
    jobs: App[Any], monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    if shell == "ipython":
        monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    else:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    run_cell(jobs, "@1")
    resize = run_cell(jobs, "@2")
    with harness(jobs) as under_test:
        assert under_test.attempt(resize, "cat") == "cat@2"


def test_a_running_worker_uses_the_function_of_a_cell_that_is_run_again(
    jobs: App[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    first = run_cell(jobs, "@1")
    with jobs.worker():
        assert first.request("cat") == "cat@1"
        assert run_cell(jobs, "@2").request("cat") == "cat@2"
    run_cell(jobs, "@3")
    lines = [record.getMessage() for record in caplog.records if "was defined again" in record.getMessage()]
    assert len(lines) == 1
    assert "uses the new function from the next job on, with the earlier options" in lines[0]


@pytest.mark.usefixtures("at_once")
async def test_a_task_of_a_notebook_is_not_looked_for_in_another_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    jobs: App[Any] = App(f"sqlite:///{tmp_path / 'jobs.db'}")
    resize = run_cell(jobs, "@1")
    with pytest.raises(WaitTimeout):
        await resize.using(wait=0.5).arequest("cat")
    await jobs.aclose()
    assert "Start one in this process:  async with jobs.worker():" in caplog.text


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_end, "WARN_AFTER_S", 0.05)


def test_another_function_of_that_name_is_refused_in_a_notebook_too(
    jobs: App[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    run_cell(jobs, "@1")

    with pytest.raises(DuplicateTask):

        @jobs.task
        def resize() -> None: ...


def test_a_handler_of_a_pool_can_be_run_again_in_a_notebook(jobs: App[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    pool = jobs.pool("scans", str, lanes=2)
    for _ in range(2):

        @pool.handler
        def scan(path: str) -> None: ...

    assert jobs.registry["scans"].function is scan.function


def test_outside_of_a_notebook_a_second_definition_is_refused(jobs: App[Any]) -> None:
    run_cell(jobs, "@1")
    with pytest.raises(DuplicateTask):
        run_cell(jobs, "@2")


# A method


def test_a_method_is_refused_when_it_is_decorated(jobs: App[Any]) -> None:
    with pytest.raises(InvalidOption, match=r"'send' is a method.*static method"):

        class Mailer:
            @jobs.task
            def send(self, to: str) -> None: ...


def test_a_class_method_is_refused_when_it_is_decorated(jobs: App[Any]) -> None:
    with pytest.raises(InvalidOption, match="is a method"):

        class Mailer:
            @jobs.task
            @classmethod
            def send(cls, to: str) -> None: ...


def test_static_and_bound_methods_are_tasks(jobs: App[Any]) -> None:
    class Mailer:
        @jobs.task
        @staticmethod
        def send(to: str) -> str:
            return to

        def receive(self, sender: str) -> str:
            return sender

    receive = jobs.task(Mailer().receive)
    with harness(jobs) as under_test:
        assert under_test.attempt(Mailer.send, "ada") == under_test.attempt(receive, "ada") == "ada"


# Durations


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("10m", 600), ("1.5h", 5400), ("250ms", 0.25), ("7", 7)])
def test_a_duration_may_be_text_in_code_as_in_settings(jobs: App[Any], text: str, seconds: float) -> None:
    assert duration_us(text, "timeout") == duration_us(timedelta(seconds=seconds), "timeout") == seconds * SECOND


def test_options_take_durations_as_text(jobs: App[Any]) -> None:
    @jobs.task(timeout="30s", lease="1m", backoff=["1s", "1m"], retention="2d", result_ttl="1h")
    async def fetch(page: str) -> None: ...

    assert (fetch.policy.timeout, fetch.policy.lease) == (30 * SECOND, 60 * SECOND)
    assert fetch.using(delay="10m", expires="1h", timeout="5s").draft("news").job.delay == 600 * SECOND
    assert Snooze(delay="1m").delay == 60 * SECOND


@pytest.mark.parametrize("unique_for", ["1d", 86_400, timedelta(days=1)])
def test_a_key_may_be_taken_for_a_duration_as_text(jobs: App[Any], unique_for: Any) -> None:
    @jobs.task(unique_key="k", unique_for=unique_for)
    def remind() -> None: ...

    for task in (remind, remind.using(unique_for=unique_for)):
        assert task.draft().job.key_window == 86_400 * 1_000_000


def test_text_that_is_no_duration_is_refused_with_examples(jobs: App[Any]) -> None:
    with pytest.raises(InvalidOption, match="`timeout` must be seconds, a timedelta or text such as 30s"):
        jobs.task(timeout="soon")


# Names of other systems


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("retries", "max_attempts=4"),
        ("max_retries", "max_attempts"),
        ("retry_backoff", "`backoff`"),
        ("retry_delay", "`backoff`"),
        ("bind", "`Context`"),
        ("rate_limit", "`concurrency`"),
        ("acks_late", "always so"),
        ("countdown", "using(delay=...)"),
        ("eta", "using(at=...)"),
        ("time_limit", "`timeout`"),
        ("autoretry_for", "`retry_on`"),
        ("queue_name", "`queue`"),
        ("queueing_lock", "`unique_key`"),
        ("cron", "from cron"),
        ("after", "chaining.md"),
        ("depends_on", "chaining.md"),
        ("debounce", "`unique_key`"),
        ("tags", "using(metadata={...})"),
        ("lane_limit", "`lane_max_depth`"),
        ("delay", "using(delay=...)"),
        ("metadata", "using(metadata=...)"),
        ("max_attempt", "Did you mean `max_attempts`?"),
    ],
)
def test_an_option_of_another_system_gets_the_name_here(jobs: App[Any], option: str, advice: str) -> None:
    options: dict[str, Any] = {option: 3}
    with pytest.raises(InvalidOption) as refused:
        jobs.task(**options)
    assert advice in str(refused.value)
    assert "remote" not in str(refused.value)


@pytest.mark.parametrize(
    ("option", "advice"), [("backoff", "@jobs.task"), ("countdown", "using(delay=...)"), ("job_id", "using(id=...)")]
)
def test_using_says_where_an_option_belongs(jobs: App[Any], option: str, advice: str) -> None:
    @jobs.task
    def resize(image: str) -> None: ...

    options: dict[str, Any] = {option: 3}
    with pytest.raises(InvalidOption) as refused:
        resize.using(**options)
    assert advice in str(refused.value)


@pytest.mark.parametrize(
    ("argument", "advice"),
    [("delay", "using(delay=...)"), ("countdown", "using(delay=...)"), ("eta", "using(at=...)"), ("widht", "`width`")],
)
def test_an_option_among_the_arguments_gets_the_hint_to_using(jobs: App[Any], argument: str, advice: str) -> None:
    @jobs.task
    def resize(image: str, width: int = 800) -> None: ...

    enqueue: Any = resize.enqueue
    with pytest.raises(InvalidArguments) as refused:
        enqueue("cat.png", **{argument: 10})
    assert advice in str(refused.value)


# Unions of models


class Card(BaseModel):
    kind: Literal["card"] = "card"
    number: str


class Transfer(BaseModel):
    kind: Literal["transfer"] = "transfer"
    iban: str


Payment = Annotated[Card | Transfer, Field(discriminator="kind")]


def test_a_discriminated_union_of_models_arrives_as_the_model_that_was_sent(jobs: App[Any]) -> None:
    @jobs.task
    def pay(one: Payment, rest: list[Payment], maybe: Payment | None = None) -> list[Payment]:
        assert maybe is None
        return [one, *rest]

    sent: list[Any] = [Card(number="4111"), Transfer(iban="BE68"), Card(number="5500")]
    with harness(jobs) as under_test:
        handle = pay.enqueue(sent[0], sent[1:])
        under_test.drain()
        assert handle.result() == sent


def test_data_that_fits_no_model_of_the_union_is_refused(jobs: App[Any]) -> None:
    @jobs.task
    def pay(payment: Payment) -> None: ...

    with pytest.raises(InvalidArguments, match="payment"):
        pay.enqueue({"kind": "cash"})  # type: ignore[arg-type]


def test_a_queue_takes_a_discriminated_union(jobs: App[Any]) -> None:
    payments: Any = jobs.queue("payments", Payment)  # type: ignore[arg-type]
    payments.enqueue(Transfer(iban="BE68"))
    (lease,) = payments.claim(wait=5)
    with lease:
        assert lease.payload == Transfer(iban="BE68")
        lease.complete()


def test_a_union_of_models_without_a_discriminator_is_refused_with_advice(jobs: App[Any]) -> None:
    with pytest.raises(InvalidOption, match=r"Field\(discriminator=...\)"):

        @jobs.task
        def pay(payment: Card | Transfer) -> None: ...


# Values without a type hint


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    LARGE = "large"


@dataclass
class Parcel:
    weight: float


CHANGED: list[Any] = [
    Decimal("1.10"),
    UUID(int=7),
    b"bytes",
    datetime(2027, 1, 1, tzinfo=UTC),
    timedelta(seconds=3),
    {1, 2},
    Colour.RED,
    Parcel(1.5),
    [1, Decimal("2")],
    {"price": {"net": Decimal("2")}},
    {1: "a key that is no text"},
]


def store(value) -> None:  # type: ignore[no-untyped-def]
    """A task without hints."""


def store_all(*values, **named) -> None:  # type: ignore[no-untyped-def]
    """The same, for any number of arguments."""


@pytest.mark.parametrize("value", CHANGED)
def test_a_value_without_a_hint_that_would_change_its_type_is_refused(jobs: App[Any], value: Any) -> None:
    one: Any = jobs.task(store)
    several: Any = jobs.task(store_all)
    calls: list[Callable[[], Any]] = [
        lambda: one.draft(value),
        lambda: one.draft(value=value),
        lambda: several.draft(1, value),
        lambda: several.draft(named=value),
    ]
    for call in calls:
        with pytest.raises(InvalidArguments, match=r"has no type hint. Add the hint"):
            call()


def test_the_refusal_names_place_and_types_and_not_the_value(jobs: App[Any]) -> None:
    with pytest.raises(InvalidArguments) as refused:
        jobs.task(store).draft({"price": [Decimal("19.99")]})
    assert "`value.price[0]`: the handler would get Decimal as str" in str(refused.value)
    assert "19.99" not in str(refused.value)


UNCHANGED: list[Any] = [1, 1.5, True, None, "text", [1, [2.5]], {"a": [None, {"b": "c"}]}, (1, (2, 3)), Size.LARGE]
UNCHANGED.append(defaultdict(list, a=[(1, 2)]))


@pytest.mark.parametrize("value", UNCHANGED)
def test_plain_values_without_a_hint_are_accepted(jobs: App[Any], value: Any) -> None:
    jobs.task(store).draft(value)
    jobs.task(store_all).draft(value, named=value)


def test_a_value_is_not_refused_where_the_type_is_any_or_unknown_here(jobs: App[Any]) -> None:
    @jobs.task
    def keep(value: Any) -> None: ...

    keep.draft(Decimal(1))
    jobs.client.task("somewhere_else").draft(Decimal(1))


def test_bytes_without_a_hint_are_accepted_by_a_codec_that_keeps_them() -> None:
    jobs: App[Any] = App("memory://", codec=MsgpackCodec())
    jobs.task(store).draft(b"bytes")
