"""The engines that the differential machine runs on. A new engine is one more line in ENGINES."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import redis_server
from fast_paths import FAST_PATHS

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.runtime import SystemRuntime
from holdfast.testing import FrozenRuntime

OTHER_REDIS = redis_server.names()[:-1]
"""The other versions on this machine: tests of a single server take the last one."""


def sqlite(folder: Path, *, fast_paths: bool = FAST_PATHS) -> Engine:
    url = f"sqlite:///{folder}/jobs.db"
    return open_engine(url, runtime=FrozenRuntime(), durability="none", fast_paths=fast_paths)


def file(folder: Path, *, fast_paths: bool = FAST_PATHS) -> Engine:
    url = f"file://{folder}/jobs"
    return open_engine(url, runtime=FrozenRuntime(), durability="none", fast_paths=fast_paths)


def postgres() -> Engine:
    """A server's clock cannot be frozen, so time flows here: the oracle follows the answers."""
    from kept_postgres import KeptPostgres

    return KeptPostgres()


def still_postgres() -> Engine:
    from kept_postgres import StillPostgres

    return StillPostgres()


def general_postgres() -> Engine:
    """Without its fast paths: the general functions do everything."""
    from kept_postgres import KeptPostgres

    return KeptPostgres(fast_paths=False)


def redis(name: str | None = None, *, fast_paths: bool = FAST_PATHS) -> Engine:
    """Its clock is the server's, as PostgreSQL's. On the server of this name; None: on one."""
    return many_redis(1, name, fast_paths=fast_paths)[0]


def redis_at(name: str, folder: Path) -> Engine:
    return redis(name)


def still_redis() -> Engine:
    """Its clock stands still and is moved by the caller: many things happen at one instant."""
    from redis_server import server
    from redis_stores import fresh_namespace
    from twin_redis import EngineAt

    store = fresh_namespace(server())
    return EngineAt(store.url, SystemRuntime(), namespace=store.namespace, durability="none", fast_paths=FAST_PATHS)


def still_queues() -> Engine:
    """On a cluster with a slot for each queue: the oracle applies a command over several queues at one time."""
    from redis_cluster import cluster
    from redis_stores import fresh_cluster_namespace
    from twin_redis import EngineAt

    store = fresh_cluster_namespace(cluster())
    url = f"{store.url}?cluster=queues"
    return EngineAt(url, SystemRuntime(), namespace=store.namespace, durability="none", fast_paths=FAST_PATHS)


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "memory": lambda folder: open_engine("memory://", runtime=FrozenRuntime()),
    "sqlite": sqlite,
    "sqlite-general": lambda folder: sqlite(folder, fast_paths=False),
    "file": file,
    "postgres": lambda folder: postgres(),
    "still-postgres": lambda folder: still_postgres(),
    "postgres-general": lambda folder: general_postgres(),
    "redis": lambda folder: redis(),
    "still-redis": lambda folder: still_redis(),
    "redis-general": lambda folder: redis(fast_paths=False),
    **{name: partial(redis_at, name) for name in OTHER_REDIS},
    "redis-namespace": lambda folder: many_cluster_redis(1, "namespace")[0],
    "still-redis-queues": lambda folder: still_queues(),
}


class Pace(NamedTuple):
    """How many runs an engine has time for, in the short form and in the long one; after how many rules it audits."""

    short: int = 75
    long: int = 2_000
    audit_every: int = 1


PACES = {
    "sqlite-general": Pace(short=30),
    "postgres": Pace(30, 600, 5),
    "still-postgres": Pace(42, 900, 5),
    "postgres-general": Pace(12, 600, 5),
    "redis": Pace(30, 600, 5),
    "still-redis": Pace(20, 600, 5),
    "redis-general": Pace(12, 600, 5),
    **{name: Pace(5, 600, 5) for name in OTHER_REDIS},
    "redis-namespace": Pace(6, 300, 5),
    "still-redis-queues": Pace(6, 300, 5),
}
"""A server answers in a millisecond, not in a tenth of one, and reads all its tables for an audit."""


def many_postgres(count: int) -> list[Engine]:
    from postgres import server
    from postgres_stock import fresh_namespace

    store = fresh_namespace(server())
    return [
        open_engine(store.url, namespace=store.namespace, notify=False, fast_paths=FAST_PATHS) for _ in range(count)
    ]


def many_redis(count: int, name: str | None = None, *, fast_paths: bool = FAST_PATHS) -> list[Engine]:
    from redis_server import server
    from redis_stores import fresh_namespace

    store = fresh_namespace(server(name))
    return [
        open_engine(store.url, namespace=store.namespace, durability="none", fast_paths=fast_paths)
        for _ in range(count)
    ]


def many_redis_at(name: str, folder: Path, count: int) -> list[Engine]:
    return many_redis(count, name)


def many_cluster_redis(count: int, mode: str) -> list[Engine]:
    """On a cluster: a slot for each queue, or one for the namespace."""
    from redis_cluster import cluster
    from redis_stores import fresh_cluster_namespace

    store = fresh_cluster_namespace(cluster())
    url = f"{store.url}?cluster={mode}"
    return [open_engine(url, namespace=store.namespace, durability="none", fast_paths=FAST_PATHS) for _ in range(count)]


def many_sqlite(folder: Path, count: int) -> list[Engine]:
    url = f"sqlite:///{folder}/jobs.db"
    return [open_engine(url, durability="none", fast_paths=FAST_PATHS) for _ in range(count)]


def many_file(folder: Path, count: int) -> list[Engine]:
    url = f"file://{folder}/jobs"
    return [open_engine(url, durability="none", fast_paths=FAST_PATHS) for _ in range(count)]


SHARED: dict[str, Callable[[Path, int], list[Engine]]] = {
    "memory": lambda folder, count: [open_engine("memory://")],
    "sqlite": many_sqlite,
    "file": many_file,
    "postgres": lambda folder, count: many_postgres(count),
    "redis": lambda folder, count: many_redis(count),
    **{name: partial(many_redis_at, name) for name in OTHER_REDIS},
    "redis-queues": lambda folder, count: many_cluster_redis(count, "queues"),
    "redis-namespace": lambda folder, count: many_cluster_redis(count, "namespace"),
}
"""Engines on one store, for callers that go at once."""


@pytest.fixture(params=sorted(SHARED))
def make_engines(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], list[Engine]]:
    """Makes up to so many engines on one empty store, not opened yet."""
    make = SHARED[request.param]
    return lambda count: make(tmp_path, count)


@pytest.fixture(params=sorted(ENGINES))
def make_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Engine]:
    """Makes an engine on an empty store, not opened yet."""
    make = ENGINES[request.param]
    return lambda: make(tmp_path_factory.mktemp(request.param))


@pytest.fixture
def pace(request: pytest.FixtureRequest) -> Pace:
    return PACES.get(request.node.callspec.params["make_engine"], Pace())


@pytest.fixture
def make_memory() -> Callable[[], Engine]:
    """For what is said of the machine itself, whatever the engine."""
    return lambda: open_engine("memory://", runtime=FrozenRuntime())
