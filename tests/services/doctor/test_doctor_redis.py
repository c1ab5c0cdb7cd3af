"""What `doctor` finds on Redis and Valkey: durability, eviction, memory, replicas, rights."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from findings import examine_app, examine_engine, examined, findings_of, worst
from redis_acl import limited
from redis_cluster import cluster
from redis_sentinel import SERVICE, private_sentinels
from redis_server import AOF_EVERYSEC, RedisServer, private_server
from redis_stores import Store, fresh_cluster_namespace

from holdfast import App
from holdfast.engines import open_engine
from holdfast.engines.redis.examine import check_format, check_server_version
from holdfast.model.findings import (
    CLOCK,
    CONNECTION,
    CONNECTIONS,
    DURABILITY,
    EVICTION,
    MEMORY,
    NOTIFICATIONS,
    OPENING,
    REPLICAS,
    SCHEMA,
    VERSION,
    Check,
    Finding,
    Level,
)
from holdfast.model.instants import MINUTE


@pytest.fixture(scope="module")
def private() -> Iterator[RedisServer]:
    """One that the tests of this file configure as they like."""
    with private_server(AOF_EVERYSEC) as server:
        yield server


@pytest.fixture
def server(private: RedisServer) -> RedisServer:
    private.configure(
        appendonly="yes", appendfsync="everysec", save="", maxmemory_policy="noeviction", maxmemory=0, maxclients=1000
    )
    App(private.url()).migrate()
    return private


def found_at(server: RedisServer, check: Check, **options: Any) -> Finding:
    """By the engine alone."""
    return worst(examine_engine(open_engine(server.url(), **options)), check)


def test_a_server_that_fits_is_examined_to_the_end(server: RedisServer) -> None:
    findings = examine_app(App(server.url()))
    for check in (VERSION, EVICTION, MEMORY, CONNECTIONS, REPLICAS, SCHEMA, CONNECTION, CLOCK, NOTIFICATIONS):
        assert worst(findings, check).level is Level.OK, worst(findings, check)
    assert server.password not in str(findings)


@pytest.mark.parametrize(
    ("settings", "level", "words"),
    [
        ({"appendfsync": "always"}, Level.OK, "durable"),
        ({}, Level.NOTE, "fast"),
        ({"appendonly": "no"}, Level.PROBLEM, "loses acknowledged jobs"),
        ({"appendonly": "no", "save": "60 1"}, Level.PROBLEM, "snapshots now and then"),
    ],
)
def test_the_durability_class_is_what_the_server_does(
    server: RedisServer, settings: dict[str, str], level: Level, words: str
) -> None:
    server.configure(**settings)
    found = found_at(server, DURABILITY)
    assert (found.level, words in found.found) == (level, True)


def test_a_class_that_was_accepted_by_name_is_a_warning(server: RedisServer) -> None:
    server.configure(appendonly="no")
    assert found_at(server, DURABILITY, durability="none").level is Level.WARNING


def test_a_server_that_evicts_is_a_problem_and_refused(server: RedisServer) -> None:
    server.configure(maxmemory_policy="allkeys-lru")
    findings = examine_app(App(server.url()))
    assert worst(findings, EVICTION).level is Level.PROBLEM
    assert "CONFIG SET maxmemory-policy noeviction" in worst(findings, EVICTION).advice
    assert worst(findings, DURABILITY).level is Level.NOTE  # the class is known all the same
    assert worst(findings, OPENING).level is Level.PROBLEM
    assert findings_of(findings, CONNECTION) == []
    assert found_at(server, EVICTION, allow_eviction=True).level is Level.WARNING


def test_a_server_without_memory_is_a_warning(server: RedisServer) -> None:
    server.configure(maxmemory=int(server.client.info("memory")["used_memory"]) + 64 * 1024)
    assert found_at(server, MEMORY).level is Level.WARNING


def test_a_server_without_connections_is_a_warning(server: RedisServer) -> None:
    others = [redis.Redis.from_url(server.url()) for _ in range(20)]
    for other in others:
        other.ping()
    server.configure(maxclients=26)  # two more are in use, and some of an earlier test may still be ending
    assert found_at(server, CONNECTIONS).level is Level.WARNING
    for other in others:
        other.close()


def test_missing_replicas_are_a_problem(server: RedisServer) -> None:
    assert found_at(server, REPLICAS, replicas=1).level is Level.PROBLEM
    assert found_at(server, REPLICAS).level is Level.OK


def test_a_replica_accepts_no_writes(server: RedisServer) -> None:
    server.execute("REPLICAOF", "127.0.0.1", "1")
    try:
        found = found_at(server, DURABILITY)
    finally:
        server.execute("REPLICAOF", "NO", "ONE")
    assert (found.level, "It is a replica" in found.found) == (Level.PROBLEM, True)


def test_an_empty_namespace_is_noted_and_stays_empty(server: RedisServer) -> None:
    findings = examine_app(App(server.url(), namespace="unused"))
    assert worst(findings, SCHEMA).level is Level.NOTE
    assert worst(findings, OPENING).level is Level.NOTE
    assert [key for key in server.client.keys("*") if b"unused" in key] == []


def test_another_format_is_a_problem() -> None:
    assert check_format(b"9").level is Level.PROBLEM
    assert check_format(b"1").level is Level.OK


@pytest.mark.parametrize(
    ("server", "level", "words"),
    [
        ({"redis_version": "6.0.9"}, Level.PROBLEM, "Redis 6.0.9"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, Level.OK, "Valkey 9.1.2"),
        ({}, Level.NOTE, "does not say"),
    ],
)
def test_the_version_is_judged(server: dict[str, str], level: Level, words: str) -> None:
    found = check_server_version(server, (6, 2))
    assert (found.level, words in found.found) == (level, True)


def test_a_server_that_hides_its_settings_is_reported_as_stated(
    redis_server: RedisServer, redis_store: Callable[[], Store]
) -> None:
    store = limited(redis_server, redis_store())
    user = store.url.partition("//")[2].partition(":")[0]
    redis_server.execute("ACL", "SETUSER", user, "-config|get", "-info")
    findings = examine_engine(open_engine(store.url, namespace=store.namespace, durability="fast"))
    assert "stated, not checked" in worst(findings, DURABILITY).found
    assert worst(findings, EVICTION).level is Level.NOTE


def test_another_clock_of_the_server_is_a_warning(server: RedisServer) -> None:
    app: App[Any] = App(server.url())
    app.engine.clock_offset = MINUTE
    found = examined(app, CLOCK)
    assert found.level is Level.WARNING
    assert re.search(r"(59|60)\.\d s ahead of", found.found)  # it is measured


def test_each_primary_of_a_cluster_is_examined() -> None:
    nodes = cluster()
    store = fresh_cluster_namespace(nodes)
    options: dict[str, Any] = {"namespace": store.namespace, "durability": "none"}
    assert worst(examine_engine(open_engine(store.url, **options)), SCHEMA).level is Level.NOTE
    App(store.url, namespace=store.namespace, durability="none").migrate()
    findings = examine_app(App(store.url, namespace=store.namespace, durability="none"))
    assert worst(findings, SCHEMA).level is worst(findings, CONNECTION).level is Level.OK
    assert len(findings_of(findings, MEMORY)) == len(nodes.primaries)
    assert worst(findings, MEMORY).found.startswith(f"Server 1 of {len(nodes.primaries)}: ")


@pytest.mark.chaos
def test_the_primary_behind_sentinels_is_examined() -> None:
    with private_sentinels() as group:
        url = f"redis+sentinel://:{group.password}@{group.places}/{SERVICE}"
        App(url, durability="none").migrate()
        findings = examine_app(App(url, durability="none"))
        assert worst(findings, CONNECTION).level is Level.OK
        assert worst(findings, REPLICAS).found.startswith(f"{len(group.replicas)} connected")
        assert "It is a replica" not in str(findings)


def test_a_server_that_does_not_answer(server: RedisServer) -> None:
    findings = examine_app(App("redis://127.0.0.1:1/0"))
    assert worst(findings, CONNECTION).level is Level.PROBLEM
    assert findings_of(findings, DURABILITY) == []
