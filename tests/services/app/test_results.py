"""Results are checked against the declared return type where they are made: in the worker."""

import dataclasses
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field

from holdfast import App, Context, InvalidArguments, JobFailed, JobState
from holdfast.testing import harness


@dataclasses.dataclass(frozen=True)
class Parcel:
    weight: float


class Order(BaseModel):
    number: int


class Address(BaseModel):
    """Its aliases and its computed field are not what its constructor takes."""

    model_config = ConfigDict(extra="forbid", serialize_by_alias=True)

    street: str = Field(alias="streetName")
    city: str = Field(validation_alias="town", serialization_alias="place")

    @computed_field
    def line(self) -> str:
        return f"{self.street}, {self.city}"


ADDRESS = Address.model_validate({"streetName": "High Street", "town": "Oxford"})


def text_for_int() -> int:
    return "seven"  # type: ignore[return-value]


async def nothing_for_text() -> str:
    return None  # type: ignore[return-value]


def wrong_item() -> list[int]:
    return [1, "two"]  # type: ignore[list-item]


def wrong_field() -> Parcel:
    return Parcel("heavy")  # type: ignore[arg-type]


def wrong_class() -> Parcel:
    return Decimal("1.5")  # type: ignore[return-value]


def wrong_model() -> Order:
    return {"number": "many"}  # type: ignore[return-value]


def in_a_transaction(ctx: Context) -> int:
    with ctx.transaction() as connection:
        connection.execute("CREATE TABLE written (number INTEGER)")
        return "seven"  # type: ignore[return-value]


@pytest.mark.parametrize(
    "function", [text_for_int, nothing_for_text, wrong_item, wrong_field, wrong_class, wrong_model]
)
def test_a_result_that_does_not_fit_fails_the_job_at_once(function: Callable[[], Any]) -> None:
    jobs: App[Any] = App("memory://")
    task = jobs.task(function)
    with harness(jobs) as under_test:
        handle = task.enqueue()
        under_test.drain(raises=False)
        job = handle.refresh()
        assert (job.state, job.attempt) == (JobState.FAILED, 1)
        with pytest.raises(JobFailed):
            handle.result()


def test_the_error_names_job_task_declared_type_and_what_came() -> None:
    jobs: App[Any] = App("memory://")
    task = jobs.task(text_for_int)
    with harness(jobs) as under_test:
        handle = task.using(id="order-7").enqueue()
        under_test.drain(raises=False)
        error = handle.refresh().last_error
        assert error is not None
        for words in ("'order-7'", "'text_for_int'", "`int`", "type str"):
            assert words in error.message


def test_a_transaction_with_a_result_that_does_not_fit_is_rolled_back() -> None:
    jobs: App[Any] = App()
    task = jobs.task(in_a_transaction)
    with harness(jobs, store="sqlite") as under_test:
        handle = task.enqueue()
        under_test.drain(raises=False)
        assert handle.refresh().state is JobState.FAILED
        with jobs.engine.transaction() as connection:  # type: ignore[attr-defined]
            assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'written'").fetchone() == (0,)


FITTING: list[tuple[Any, Any]] = [
    (int, 7),
    (bool, True),
    (float, 7),
    (str, "seven"),
    (str, UUID(int=7)),
    (list[int], (1, 2)),
    (dict[int, str], {1: "one"}),
    (Parcel, Parcel(1.5)),
    (Order, Order(number=7)),
    (Order, {"number": 7}),
    (int | None, None),
    (None, "ignored"),
]


@pytest.mark.parametrize(("declared", "value"), FITTING)
def test_a_result_that_can_be_read_as_declared_succeeds(declared: Any, value: Any) -> None:
    def give() -> Any:
        return value

    give.__annotations__["return"] = declared
    jobs: App[Any] = App("memory://")
    task = jobs.task(give)
    with harness(jobs) as under_test:
        task.enqueue()
        assert under_test.drain().succeeded == 1


def test_a_stored_result_that_does_not_fit_here_is_reported_with_its_job(tmp_path: Path) -> None:
    """A worker with other code has stored it."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    theirs: App[Any] = App(url, durability="none")
    ours: App[Any] = App(url, durability="none")

    @theirs.task(name="count")
    def their_count() -> str:
        return "many"

    @ours.task(name="count")
    def our_count() -> int:
        return 1

    with theirs, ours:
        their_count.using(id="order-7").enqueue()
        theirs.worker(until_empty=True).run()
        with pytest.raises(InvalidArguments, match=r"Job 'order-7'.*does not fit"):
            our_count.handle("order-7").result()


def test_a_model_with_aliases_and_computed_fields_comes_back_as_it_was() -> None:
    jobs: App[Any] = App("memory://")

    @jobs.task
    def same(address: Address, others: list[Address]) -> Address:
        assert others == [address]
        return address

    with harness(jobs) as under_test:
        handle = same.enqueue(ADDRESS, [ADDRESS])
        under_test.drain()
        assert handle.result() == ADDRESS


def test_the_error_about_a_model_does_not_quote_the_value() -> None:
    jobs: App[Any] = App("memory://")
    task = jobs.task(wrong_model)
    with harness(jobs) as under_test:
        handle = task.enqueue()
        under_test.drain(raises=False)
        error = handle.refresh().last_error
        assert error is not None
        assert "number: Input should be a valid integer" in error.message
        assert "many" not in error.message
