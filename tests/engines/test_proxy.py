"""The proxy between an engine and its server: it cuts connections exactly where a test says."""

import gc
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
import redis
from postgres import PostgresServer
from postgres_stock import unused_name
from proxy import Cut, Direction, Proxy, RedisWire
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis_server import RedisServer
from redis_stores import Store

Connection = psycopg.Connection[tuple[int]]


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
def table(postgres_server: PostgresServer) -> Iterator[str]:
    name = unused_name()
    postgres_server.execute(f"CREATE TABLE {name} (n int)")
    yield name
    postgres_server.execute(f"DROP TABLE {name}")


@pytest.fixture
def client(proxy: Proxy, postgres_server: PostgresServer) -> Iterator[Connection]:
    with connect(proxy, postgres_server) as client:
        yield client


def connect(proxy: Proxy, server: PostgresServer) -> Connection:
    return psycopg.connect(server.url(port=proxy.port), autocommit=True, connect_timeout=30)


def insert(client: Connection, table: str, number: int = 1) -> None:
    client.execute(f"INSERT INTO {table} VALUES ({number})".encode())


def rows(server: PostgresServer, table: str) -> list[tuple[int]]:
    return [(number,) for (number,) in server.execute(f"SELECT n FROM {table} ORDER BY n")]


def test_it_forwards(client: Connection) -> None:
    assert client.execute("SELECT 1").fetchone() == (1,)


def test_it_forwards_more_than_one_read(client: Connection) -> None:
    text = "x" * 1_000_000
    assert client.execute("SELECT length(%s::text)", (text,)).fetchone() == (1_000_000,)
    rows = client.execute("SELECT n FROM generate_series(1, 100000) AS n").fetchall()
    assert rows == [(number,) for number in range(1, 100_001)]


def test_all_connections_can_be_cut(proxy: Proxy, client: Connection, postgres_server: PostgresServer) -> None:
    with connect(proxy, postgres_server) as other:
        assert proxy.cut() == 2
        for each in (client, other):
            with pytest.raises(psycopg.OperationalError):
                each.execute("SELECT 1")


@pytest.mark.usefixtures("client")
def test_after_a_cut_new_connections_work(proxy: Proxy, postgres_server: PostgresServer) -> None:
    proxy.cut()
    with connect(proxy, postgres_server) as again:
        assert again.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    ("where", "carried_out"), [(Cut.BEFORE_REQUEST, False), (Cut.BEFORE_REPLY, True), (Cut.IN_REPLY, True)]
)
def test_the_place_of_a_cut_decides_whether_the_server_carried_out_the_request(
    proxy: Proxy, client: Connection, postgres_server: PostgresServer, table: str, where: Cut, carried_out: bool
) -> None:
    proxy.cut_at(where)
    with pytest.raises(psycopg.OperationalError):
        insert(client, table)
    proxy.wait_until_cut()
    assert rows(postgres_server, table) == ([(1,)] if carried_out else [])


def test_the_nth_request_is_cut_and_those_before_it_are_answered(
    proxy: Proxy, client: Connection, postgres_server: PostgresServer, table: str
) -> None:
    proxy.cut_at(Cut.BEFORE_REPLY, nth=3)
    insert(client, table, 1)
    insert(client, table, 2)
    with pytest.raises(psycopg.OperationalError):
        insert(client, table, 3)
    assert rows(postgres_server, table) == [(1,), (2,), (3,)]


def test_a_cut_happens_once(proxy: Proxy, client: Connection, postgres_server: PostgresServer, table: str) -> None:
    proxy.cut_at(Cut.BEFORE_REPLY)
    with pytest.raises(psycopg.OperationalError):
        insert(client, table)
    with connect(proxy, postgres_server) as again:
        insert(again, table, 2)
    assert rows(postgres_server, table) == [(1,), (2,)]


def test_connecting_and_closing_are_not_requests(
    proxy: Proxy, client: Connection, postgres_server: PostgresServer
) -> None:
    proxy.cut_at(Cut.BEFORE_REQUEST)
    with connect(proxy, postgres_server):
        pass
    with pytest.raises(psycopg.OperationalError):
        client.execute("SELECT 1")


def test_a_request_held_before_the_server_is_carried_out_after_the_release(
    proxy: Proxy, client: Connection, postgres_server: PostgresServer, table: str
) -> None:
    proxy.hold(Direction.TO_SERVER)
    request = threading.Thread(target=insert, args=(client, table))
    request.start()
    request.join(0.2)
    assert request.is_alive()
    assert rows(postgres_server, table) == []
    proxy.release()
    request.join(30)
    assert rows(postgres_server, table) == [(1,)]


def test_a_request_whose_reply_is_held_is_carried_out(
    proxy: Proxy, client: Connection, postgres_server: PostgresServer, table: str
) -> None:
    proxy.hold(Direction.TO_CLIENT)
    request = threading.Thread(target=insert, args=(client, table))
    request.start()
    pause = threading.Event()
    while not rows(postgres_server, table):
        pause.wait(0.01)
    assert request.is_alive()
    proxy.release()
    request.join(30)
    assert not request.is_alive()


def test_a_held_connection_can_be_cut(proxy: Proxy, client: Connection) -> None:
    proxy.hold()
    failures: list[BaseException] = []

    def select() -> None:
        try:
            client.execute("SELECT 1")
        except psycopg.OperationalError as error:
            failures.append(error)

    request = threading.Thread(target=select)
    request.start()
    request.join(0.2)
    proxy.cut()
    request.join(30)
    assert len(failures) == 1


def test_new_connections_are_refused_and_open_ones_stay(
    proxy: Proxy, client: Connection, postgres_server: PostgresServer
) -> None:
    port = proxy.port
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        connect(proxy, postgres_server)
    assert client.execute("SELECT 1").fetchone() == (1,)
    proxy.accept()
    with connect(proxy, postgres_server) as again:
        assert again.execute("SELECT 1").fetchone() == (1,)
    assert proxy.port == port


def test_delayed_bytes_arrive(proxy: Proxy, client: Connection) -> None:
    proxy.delay(0.01)
    assert client.execute("SELECT 1").fetchone() == (1,)


def test_a_proxy_closes_the_connections_that_are_being_made() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(30):
            with ExitStack() as clients, Proxy(server.getsockname()[1]) as proxy:
                for _ in range(3):
                    clients.enter_context(socket.create_connection(("127.0.0.1", proxy.port)))
    gc.collect()  # a transport that is still open warns now, which fails this test


# Redis


@pytest.fixture
def redis_proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.port, RedisWire) as proxy:
        yield proxy


@pytest.fixture
def redis_client(redis_proxy: Proxy, redis_server: RedisServer) -> Iterator[redis.Redis]:
    url = redis_server.url(port=redis_proxy.port)
    with redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), single_connection_client=True) as client:
        yield client


def run_script(client: redis.Redis, key: str, number: int = 1) -> None:
    client.eval("redis.call('RPUSH', KEYS[1], ARGV[1])", 1, key, number)


@pytest.mark.parametrize(
    ("where", "carried_out"), [(Cut.BEFORE_REQUEST, False), (Cut.BEFORE_REPLY, True), (Cut.IN_REPLY, True)]
)
def test_the_place_of_a_cut_decides_whether_redis_ran_the_script(
    redis_proxy: Proxy,
    redis_client: redis.Redis,
    redis_server: RedisServer,
    redis_store: Callable[[], Store],
    where: Cut,
    carried_out: bool,
) -> None:
    key = redis_store().namespace
    redis_proxy.cut_at(where, nth=2)
    run_script(redis_client, key)
    assert redis_client.ping()  # only scripts count
    with pytest.raises(redis.ConnectionError):
        run_script(redis_client, key, 2)
    redis_proxy.wait_until_cut()
    assert redis_server.execute("LRANGE", key, 0, -1) == ([b"1", b"2"] if carried_out else [b"1"])
