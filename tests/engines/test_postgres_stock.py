"""Empty stores from a stock: a used one comes back as it was when it was new."""

import psycopg
import pytest
from postgres import PostgresServer
from postgres_stock import SMALL, Stock, Store


def prepare(url: str, namespace: str) -> None:
    """What an engine might make: records of migrations, a table, a row that is always there, a counter."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (
            "CREATE SCHEMA {0}",
            "CREATE TABLE {0}.migration (number int)",
            "INSERT INTO {0}.migration VALUES (1)",
            "CREATE TABLE {0}.job (id int GENERATED ALWAYS AS IDENTITY, payload bytea)",
            "CREATE TABLE {0}.one (born timestamptz, secret bytea)",
            "INSERT INTO {0}.one VALUES (now(), '\\x00ff')",
            "CREATE SEQUENCE {0}.arrival",
        ):
            connection.execute(statement.format(namespace).encode())


@pytest.fixture
def stock(postgres_server: PostgresServer) -> Stock:
    return Stock(postgres_server, prepare)


def use(stock: Stock, store: Store, jobs: int = 3, payload: int = 10) -> None:
    stock.server.execute(
        f"INSERT INTO {store.namespace}.job (payload) SELECT decode(repeat('00', {payload}), 'hex')"
        f" FROM generate_series(1, {jobs})"
    )
    stock.server.execute(f"UPDATE {store.namespace}.one SET secret = NULL")
    stock.server.execute(f"SELECT nextval('{store.namespace}.arrival')")


def everything(stock: Stock, store: Store) -> list[object]:
    return [
        stock.server.execute(f"SELECT * FROM {store.namespace}.{table}") for table in ("migration", "job", "one")
    ] + [
        stock.server.execute(f"SELECT last_value, is_called FROM {store.namespace}.{name}")
        for name in ("arrival", "job_id_seq")
    ]


def test_two_stores_of_one_test_are_different(stock: Stock) -> None:
    assert stock.fresh().namespace != stock.fresh().namespace


def test_a_store_given_back_is_lent_again(stock: Stock) -> None:
    store = stock.fresh()
    stock.give_back()
    assert stock.fresh() == store


def test_one_of_several_can_be_given_back(stock: Stock) -> None:
    first, second = stock.fresh(), stock.fresh()
    stock.give_back(first.namespace)
    assert stock.fresh() == first
    assert stock.fresh() != second


@pytest.mark.parametrize(("jobs", "payload"), [(3, 10), (40, SMALL // 30)], ids=["small", "large"])
def test_a_used_store_comes_back_as_it_was_new(stock: Stock, jobs: int, payload: int) -> None:
    store = stock.fresh()
    new = everything(stock, store)
    use(stock, store, jobs, payload)
    stock.give_back()
    assert stock.fresh() == store
    assert everything(stock, store) == new


def test_what_was_made_beside_the_tables_is_gone(stock: Stock) -> None:
    store = stock.fresh()
    stock.server.execute(f"CREATE SEQUENCE {store.namespace}.turns; CREATE TABLE {store.namespace}.more (n int)")
    stock.give_back()
    assert stock.fresh() == store
    relations = "SELECT to_regclass(%s), to_regclass(%s)"
    assert stock.server.execute(relations, f"{store.namespace}.turns", f"{store.namespace}.more") == [(None, None)]


def test_a_store_that_somebody_still_holds_is_not_lent_again(stock: Stock) -> None:
    store = stock.fresh()
    with psycopg.connect(store.url) as holder:
        holder.execute(f"INSERT INTO {store.namespace}.job (payload) VALUES (NULL)".encode())
        stock.give_back()
        assert stock.fresh() != store


def test_everything_can_be_dropped(stock: Stock) -> None:
    store = stock.fresh()
    stock.drop_all()
    assert stock.server.execute("SELECT to_regnamespace(%s)", store.namespace) == [(None,)]
