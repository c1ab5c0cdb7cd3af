"""Runs the public suite on our own engines. A new engine is one more line in ENGINES."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import redis_binaries
import redis_cluster
import redis_server
import redis_stores
from fast_paths import FAST_PATHS, SHORT
from file_store import opened
from postgres import server
from postgres_roles import app_role
from postgres_stock import fresh_namespace
from redis_acl import limited

import holdfast.testing.contract
from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.engines.file.frames import frame_length
from holdfast.engines.file.store_folder import StoreFolder
from holdfast.engines.postgres.schema import grants
from holdfast.testing.contract.bench import DamageOneChange, EngineMaker, UserTransaction

SUITE = Path(holdfast.testing.contract.__file__).parent

NewFolder = Callable[[], Path]
"""Makes an empty folder."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes an engine on an empty store, in a new folder if it needs one; and says what only its author knows."""

    name: str
    make: Callable[[NewFolder], Engine]
    transaction: Callable[[Engine], UserTransaction] | None = None
    damage: DamageOneChange | None = None
    only: frozenset[str] = frozenset()
    """The files of the suite that are run on it; none: all."""
    mark: pytest.MarkDecorator | None = None
    """For all its examples: `make long` or `make chaos` runs them."""
    mark_of_others: pytest.MarkDecorator | None = None
    """For the files that are not in `only`. Without a mark they do not run on it."""

    def marks_for(self, file: str) -> tuple[pytest.MarkDecorator, ...] | None:
        """The marks of an example in this file of the suite; None: it does not run on this engine."""
        mark = self.mark
        if self.only and file not in self.only:
            if self.mark_of_others is None:
                return None
            mark = self.mark_of_others
        return () if mark is None else (mark,)


def sqlite_engine(new_folder: NewFolder, *, fast_paths: bool = FAST_PATHS) -> Engine:
    return open_engine(f"sqlite:///{new_folder()}/jobs.db", durability="none", fast_paths=fast_paths)


def file_engine(new_folder: NewFolder, *, fast_paths: bool = FAST_PATHS) -> Engine:
    return open_engine(f"file://{new_folder()}/jobs", durability="none", fast_paths=fast_paths)


async def damage_file_store(engine: Engine) -> None:
    """One byte in the middle of the last frame, whose changes have no copy there."""
    store: Any = engine
    folder: StoreFolder = store._folder
    await engine.close()
    with opened(folder.root) as process:
        process.journal.sync()  # what was not synced could be a torn tail
        segment = folder.segment_path(process.journal.position.segment)
    data = segment.read_bytes()
    begin = end = 0
    while end < len(data):
        begin, end = end, end + (frame_length(data, end) or 0)
    damaged = bytearray(data)
    damaged[(begin + end) // 2] ^= 1
    segment.write_bytes(damaged)
    await engine.open()


def sqlite_transaction(engine: Engine) -> UserTransaction:
    """As a user would: a connection of their own to the same file."""
    store: Any = engine

    @asynccontextmanager
    async def transaction() -> AsyncIterator[object]:
        db = sqlite3.connect(store._store.path, isolation_level=None)
        try:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
        finally:
            db.close()

    return transaction


def postgres_engine(*, fast_paths: bool = FAST_PATHS) -> Engine:
    store = fresh_namespace(server())
    engine = open_engine(store.url, namespace=store.namespace, fast_paths=fast_paths)
    engine.migrate = _nothing  # type: ignore[method-assign]  # the stock has done it; it takes a connection of its own
    return engine


async def _nothing() -> tuple[str, ...]:
    return ()


def least_privilege_engine() -> Engine:
    """By a role that may do nothing but call the functions of the schema."""
    store, role = fresh_namespace(server()), app_role(server())
    server().execute(grants(store.namespace, role.name))
    return open_engine(role.url, namespace=store.namespace, fast_paths=FAST_PATHS)


def postgres_transaction(engine: Engine) -> UserTransaction:
    store: Any = engine

    @asynccontextmanager
    async def transaction() -> AsyncIterator[object]:
        connection = await asyncpg.connect(store._url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()

    return transaction


def redis_engine(name: str | None = None, *, fast_paths: bool = FAST_PATHS) -> Engine:
    """On the server of this name; None: on one. By a user who has no other rights than those in the guide."""
    server = redis_server.server(name)
    store = limited(server, redis_stores.fresh_namespace(server))
    return open_engine(store.url, namespace=store.namespace, durability="none", fast_paths=fast_paths)


def redis_cluster_engine(mode: str, name: str | None = None) -> Engine:
    """On a cluster of three nodes: a slot for each queue, or one for the namespace."""
    store = redis_stores.fresh_cluster_namespace(redis_cluster.cluster(name))
    url = f"{store.url}?cluster={mode}"
    return open_engine(url, namespace=store.namespace, durability="none", fast_paths=FAST_PATHS)


def redis_makers() -> list[Maker]:
    """Each version found on this machine: redis62 and valkey91 come with the tests, redis70 with Debian.

    The last one, which is also the server of tests that run on a single version, runs the whole suite.
    """
    *others, last = redis_server.names()
    return [
        *(Maker(name, partial(_redis_engine, name), only=VERSIONS, mark_of_others=pytest.mark.long) for name in others),
        Maker(last, partial(_redis_engine, last)),
    ]


def _redis_engine(name: str, _: NewFolder) -> Engine:
    return redis_engine(name)


def cluster_makers(name: str) -> list[Maker]:
    """A cluster of this version, in both modes."""
    return [
        Maker(f"{name}-{mode}", partial(_cluster_engine, mode, name), mark=pytest.mark.chaos)
        for mode in ("queues", "namespace")
    ]


def _cluster_engine(mode: str, name: str, _: NewFolder) -> Engine:
    return redis_cluster_engine(mode, name)


LEAST = frozenset({"test_enqueue", "test_exchange", "test_lanes", "test_pools", "test_transactions"})
"""The files of the suite for an engine with few rights."""

SEVERAL_QUEUES = frozenset(
    f"test_{verb}"
    for verb in (
        "claim",
        "claim_again",
        "claim_options",
        "disown",
        "enqueue",
        "exchange",
        "expired",
        "notifications",
        "prune",
        "remove",
    )
) | {"test_open_close", "test_parents", "test_stats", "test_workers"}
"""The files of the suite for an engine that keeps each queue apart."""

VERSIONS = SHORT | {f"test_{verb}" for verb in ("notifications", "open_close", "prune", "remove", "stats", "workers")}
"""The files of the suite for another version of a server: together they send every command except HSCAN."""

ENGINES = (
    Maker("memory", lambda _: open_engine("memory://")),
    # What is tested here is behaviour; that commits are synced is tested in tests/engines.
    Maker("sqlite", sqlite_engine, transaction=sqlite_transaction),
    Maker(
        "sqlite-general",
        lambda new_folder: sqlite_engine(new_folder, fast_paths=False),
        transaction=sqlite_transaction,
        only=SHORT,
    ),
    Maker("file", file_engine, damage=damage_file_store),
    Maker("postgres", lambda _: postgres_engine(), transaction=postgres_transaction),
    # That every verb has the rights of its owner is tested in tests/engines; here, that they are enough.
    Maker(
        "postgres-least",
        lambda _: least_privilege_engine(),
        transaction=postgres_transaction,
        only=LEAST,
    ),
    # What has a fast path, without it. `make long` runs the whole suite that way.
    Maker(
        "postgres-general",
        lambda _: postgres_engine(fast_paths=False),
        transaction=postgres_transaction,
        only=SHORT,
    ),
    # `make long` runs the whole suite on every version.
    *redis_makers(),
    # What concerns several queues. `make chaos` runs the whole suite, on clusters of every version.
    Maker("redis-queues", lambda _: redis_cluster_engine("queues"), only=SEVERAL_QUEUES),
    Maker("redis-namespace", lambda _: redis_cluster_engine("namespace"), only=LEAST),
    *(maker for binary in redis_binaries.find_all() for maker in cluster_makers(binary.name)),
    Maker("redis-general", lambda _: redis_engine(fast_paths=False), only=SHORT),
)


class ParameterPerEngine:
    """A pytest plugin: gives each example the engines that run its file.

    The modules of the suite stand elsewhere, so a hook of this file alone would not be called for them. Examples that
    the run leaves out by their mark are not made at all: they would take half of the time that the collection takes.
    """

    def __init__(self, config: pytest.Config) -> None:
        expression = config.getoption("markexpr")
        self._left_out = {name for name in ("long", "chaos") if f"not {name}" in expression}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if metafunc.definition.getparent(Suite) is None or "make_engine" not in metafunc.fixturenames:
            return
        file = metafunc.definition.path.stem
        makers = [
            pytest.param(maker, marks=marks, id=maker.name)
            for maker in ENGINES
            if (marks := maker.marks_for(file)) is not None and not any(mark.name in self._left_out for mark in marks)
        ]
        metafunc.parametrize("make_engine", makers, indirect=True)


@pytest.fixture
def make_engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, confirmed_subscriptions: None
) -> EngineMaker:
    maker: Maker = request.param
    return lambda: maker.make(lambda: tmp_path_factory.mktemp(maker.name))


@pytest.fixture
def user_transaction(engine: Engine, request: pytest.FixtureRequest) -> UserTransaction:
    maker: Maker = request.node.callspec.params["make_engine"]
    if maker.transaction is None:
        assert not engine.capabilities.user_transactions, f"{maker.name} joins transactions: say here how to open one"
        pytest.skip(f"not offered: {maker.name} does not take part in transactions of its users")
    return maker.transaction(engine)


@pytest.fixture
def damage_one_change(request: pytest.FixtureRequest) -> DamageOneChange:
    maker: Maker = request.node.callspec.params["make_engine"]
    if maker.damage is None:
        pytest.skip(f"not offered: {maker.name} has no journal of changes to damage")
    return maker.damage


class Suite(pytest.File):
    """Stands for `suite.py` in a test's name, and holds the modules of the public suite."""

    def collect(self) -> Iterator[pytest.Collector]:
        self.config.pluginmanager.import_plugin("holdfast.testing.conformance")
        if not self.config.pluginmanager.has_plugin(ParameterPerEngine.__name__):
            self.config.pluginmanager.register(ParameterPerEngine(self.config), ParameterPerEngine.__name__)
        for path in sorted(SUITE.glob("test_*.py")):
            yield pytest.Module.from_parent(self, path=path, name=path.stem, nodeid=f"{self.nodeid}::{path.stem}")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return Suite.from_parent(parent, path=file_path) if file_path.name == "suite.py" else None
