"""The environment of a handler's process has nothing that gives access to the store."""

import pytest

from holdfast.isolation.environment import WITHHELD, child_environment
from holdfast.isolation.process import ProcessGone
from holdfast.model.text import ErrorInfo
from holdfast.processes import ProcessEnd
from holdfast.worker import isolated

ADDRESS = "postgresql://app:p%40ss@db.example/jobs"


def child(**environ: str) -> dict[str, str]:
    return child_environment(environ, (ADDRESS,), ("PGPASSWORD",))


def test_other_variables_stay() -> None:
    assert child(PATH="/bin", LANG="C", DB_HOST="db.example") == {"PATH": "/bin", "LANG": "C", "DB_HOST": "db.example"}


def test_holdfasts_own_and_those_of_the_driver_are_left_out() -> None:
    assert child(HOLDFAST_URL="x", HOLDFAST_POSTGRES_LISTEN_URL="y", PGPASSWORD="z") == {}


@pytest.mark.parametrize("password", ["p%40ss", "p@ss"])
def test_a_variable_that_is_the_password_is_left_out(password: str) -> None:
    assert child(DB_PASSWORD=password) == {}


@pytest.mark.parametrize(
    "value",
    [
        ADDRESS,
        f"url={ADDRESS}?sslmode=require",
        "postgresql+psycopg://app:p%40ss@db.example:5432/other",
        "host=db.example user=app password=p@ss",
    ],
)
def test_an_address_of_the_store_is_replaced(value: str) -> None:
    assert child(DATABASE_URL=value) == {"DATABASE_URL": WITHHELD}


def test_a_password_that_is_a_common_word_removes_no_other_text() -> None:
    environ = {"PATH": "/usr/lib/postgres/bin", "APP": "postgres-client"}
    assert child_environment(environ, ("postgresql://u:postgres@h/d",), ()) == environ


def test_an_address_that_says_nothing_removes_nothing() -> None:
    environ = {"NOTE": "tests use memory:// as their store"}
    assert child_environment(environ, ("memory://",), ()) == environ


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://db.example/shop?user=ada&password=s3cr%2Ft",
        "redis://ada:s3cr/t@cache.example/0",
        "redis+sentinel://ada@a.example/0?sentinel_password=s3cr%2Ft",
    ],
)
def test_a_password_is_found_in_each_place_of_an_address(address: str) -> None:
    environ = {"DB_PASSWORD": "s3cr/t", "OTHER": "x?password=s3cr/t", "PATH": "/bin"}
    assert child_environment(environ, (address,), ()) == {"OTHER": WITHHELD, "PATH": "/bin"}


def test_a_module_that_opens_the_withheld_address_gets_advice() -> None:
    failure = ErrorInfo("sqlalchemy.exc.NoSuchModuleError", "Can't load plugin: sqlalchemy.dialects:withheld", "")
    gone = ProcessGone(ProcessEnd(exit_code=1, peak_bytes=0), failure=failure)
    assert "give it another user and another variable" in isolated._start_failure(gone).message
