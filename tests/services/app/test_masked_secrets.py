"""A secret in a model is stored as asterisks by default. Such a call or result is refused: the secret would be lost."""

from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, Secret, SecretBytes, SecretStr, field_serializer

from holdfast import App, InvalidArguments, JobFailed
from holdfast.testing import harness


class Login(BaseModel):
    model_config = ConfigDict(extra="allow")
    user: str = "ann"
    password: SecretStr = Field(default=SecretStr(""), alias="passWord")


class Passwords(RootModel[list[SecretStr]]): ...


class Account(BaseModel):
    """Secrets inside of other values."""

    logins: list[Login] = []
    keys: dict[str, SecretBytes] = {}
    birthdays: set[Secret[date]] = set()
    pins: dict[date, SecretStr] = {}
    """Its keys are dumped as text."""
    users: dict[SecretStr, int] = {}
    old: Passwords = Passwords([])


class Readable(BaseModel):
    password: SecretStr

    @field_serializer("password", when_used="json")
    def reveal(self, value: SecretStr) -> str:
        return value.get_secret_value()


@dataclass
class Visit:
    login: Login


PASSWORD = Login(passWord=SecretStr("open"))
MASKED = [
    (PASSWORD, "password"),
    (Login(token=SecretStr("open")), "token"),  # type: ignore[call-arg]
    (Account(logins=[Login(), PASSWORD]), r"logins\[1\].password"),
    (Account(keys={"door": SecretBytes(b"open")}), "keys.door"),
    (Account(birthdays={Secret[date](date(2001, 2, 3))}), r"birthdays\[0\]"),
    (Account(pins={date(2001, 2, 3): SecretStr("open")}), "pins.2001-02-03"),
    (Account(users={SecretStr("open"): 1}), r"users \(a key\)"),
    (Account(old=Passwords([SecretStr("open")])), r"old\[0\]"),
    (Passwords([SecretStr("open")]), r"\[0\]"),
    (Visit(PASSWORD), "password"),
]


@pytest.mark.parametrize(("value", "place"), MASKED)
def test_a_call_with_a_masked_secret_is_refused_and_the_error_names_the_field(value: Any, place: str) -> None:
    jobs: App[Any] = App("memory://")

    def enter(given: Any, *more: Any) -> None: ...

    enter.__annotations__["given"] = type(value)
    task = jobs.task(enter)
    with (
        harness(jobs),
        pytest.raises(InvalidArguments, match=f"Field `{place}` of .* is a Secret.*field_serializer") as refused,
    ):
        task.enqueue(value)
    assert "open" not in str(refused.value)


def test_a_secret_that_the_model_itself_reveals_arrives() -> None:
    jobs: App[Any] = App("memory://")

    @jobs.task
    def enter(given: Readable) -> str:
        return given.password.get_secret_value()

    with harness(jobs) as under_test:
        handle = enter.enqueue(Readable(password=SecretStr("open")))
        under_test.drain()
        assert handle.result() == "open"


def test_an_empty_secret_is_stored() -> None:
    jobs: App[Any] = App("memory://")

    @jobs.task
    def enter(given: Login) -> str:
        return given.password.get_secret_value()

    with harness(jobs) as under_test:
        handle = enter.enqueue(Login())
        under_test.drain()
        assert handle.result() == ""


def test_a_result_with_a_masked_secret_fails_the_job() -> None:
    jobs: App[Any] = App("memory://")

    @jobs.task
    def enter() -> Login:
        return PASSWORD

    with harness(jobs) as under_test:
        handle = enter.enqueue()
        under_test.drain(raises=False)
        with pytest.raises(JobFailed, match="Field `password` of Login is a SecretStr"):
            handle.result()
