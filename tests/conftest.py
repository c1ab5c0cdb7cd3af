"""What tests of every folder share: how a test runs, the run's PostgreSQL and Redis servers, and empty stores on them.

An `async def` test runs on an event loop of its own. A test that needs the same loop for its fixtures asks for the
fixture `runner`. Every test has a time limit; `@pytest.mark.time_limit(seconds)` gives it another one.

Servers are imported late, so that a run without them neither starts one nor loads a driver.
"""

import asyncio
import gc
import inspect
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from time_limit import time_limit

from holdfast.testing.async_tests import run_async_test

if TYPE_CHECKING:
    import redis_stores
    from postgres import PostgresServer
    from postgres_stock import Store
    from redis_server import RedisServer

LIMIT_S = 120.0
"""Seconds for each phase of a test (set-up, call, teardown). Generous: the machine may be busy with other things."""
LONG_LIMIT_S = 3_600.0
"""Seconds for a test that `make long` or `make chaos` runs."""
BLOCKED_S = 10.0
"""Seconds that an async test gets after its limit to end by its cancellation. Then its loop counts as blocked."""


# --- How a test runs ---

# A shell starts background jobs with SIGINT ignored, and child processes inherit that. Some tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A property is tested with the same examples in every run, and an example may take as long as it needs: a busy machine
# would fail it else. The proofs of `make long` choose their own settings.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def limit_of(item: pytest.Item) -> float:
    if (mark := item.get_closest_marker("time_limit")) is not None:
        return float(mark.args[0])
    is_long = any(item.get_closest_marker(name) for name in ("long", "chaos"))
    return LONG_LIMIT_S if is_long else LIMIT_S


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with time_limit(f"The set-up of {item.nodeid}", limit_of(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with time_limit(item.nodeid, limit_of(item) + BLOCKED_S):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with time_limit(f"The teardown of {item.nodeid}", limit_of(item)):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test, on the loop of the fixture `runner` if it has that."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    fixtures = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    test = pyfuncitem.obj(**fixtures)
    shared = pyfuncitem.funcargs.get("runner")
    with nullcontext(shared) if isinstance(shared, asyncio.Runner) else asyncio.Runner() as runner:
        run_async_test(runner, test, name=pyfuncitem.nodeid, limit_s=limit_of(pyfuncitem))
    return True


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for a test and its fixtures."""
    with asyncio.Runner() as runner:
        yield runner


def pytest_collection_finish() -> None:
    gc.freeze()  # the collected tests stay until the end: to look at them again takes most of the time of `gc.collect`


@pytest.fixture(scope="module", autouse=True)
def _garbage_is_collected() -> Iterator[None]:
    """What a module left open warns at its end, and fails its last test, not a test of another module."""
    yield
    gc.collect()


# --- PostgreSQL ---


@pytest.fixture(scope="session")
def postgres_server() -> "PostgresServer":
    """The server of this run: shared, fast, not to be stopped."""
    from postgres import server

    return server()


@pytest.fixture
def postgres_store(postgres_server: "PostgresServer") -> "Callable[[], Store]":
    """Answers an empty store, as often as it is called: address and namespace."""
    from postgres_stock import fresh_namespace

    return lambda: fresh_namespace(postgres_server)


# --- Redis and Valkey ---


@pytest.fixture(scope="session")
def redis_server() -> "RedisServer":
    """A server of this run, for tests that need any one: shared, without persistence, not to be stopped."""
    from redis_server import server

    return server()


@pytest.fixture
def redis_store(redis_server: "RedisServer", monkeypatch: pytest.MonkeyPatch) -> "Callable[[], redis_stores.Store]":
    """Answers an empty store, as often as it is called: address and namespace.

    The server keeps nothing. So an engine on it must be given `durability="none"`; Apps of the test and of its child
    processes read that from the environment.
    """
    from redis_stores import fresh_namespace

    monkeypatch.setenv("HOLDFAST_DURABILITY", "none")
    return lambda: fresh_namespace(redis_server)


@pytest.fixture
def confirmed_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until Redis confirms a subscription, however busy the machine is.

    The engine goes on after a moment: what is sent before the confirmation is found by polling. This is for tests that
    do not poll.
    """
    monkeypatch.setattr("holdfast.engines.redis.notifier.SUBSCRIBE_TIMEOUT_S", 60.0)


@pytest.fixture(autouse=True)
def _stores_are_given_back() -> Iterator[None]:
    yield
    if (stocks := sys.modules.get("postgres_stock")) is not None:
        stocks.give_back_all()
    if (stores := sys.modules.get("redis_stores")) is not None:
        stores.remove_all()


@pytest.fixture(scope="session", autouse=True)
def _stores_are_dropped() -> Iterator[None]:
    yield
    if (stocks := sys.modules.get("postgres_stock")) is not None:
        stocks.drop_all()
