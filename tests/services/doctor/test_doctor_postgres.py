"""What `doctor` finds on PostgreSQL: settings of the server, proxy, schema, rights, connections, old transactions."""

import re
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from bouncer import PROGRAM, WHY_NOT, Bouncer
from eventually import eventually_now
from findings import examine_app, examine_engine, examined, findings_of, worst
from postgres import PostgresServer, private_server
from postgres_roles import new_role
from postgres_stock import Store, unused_name
from proxy import Proxy

from holdfast import App
from holdfast.engines import open_engine
from holdfast.engines.postgres import examine
from holdfast.engines.postgres.examine import _durability
from holdfast.model.findings import (
    CLOCK,
    CONNECTION,
    CONNECTIONS,
    DURABILITY,
    LEASE,
    NOTIFICATIONS,
    OPENING,
    PROXY,
    SCHEMA,
    TRANSACTIONS,
    VERSION,
    WORKERS,
    WRITES,
    Level,
)
from holdfast.model.instants import MINUTE


@pytest.fixture
def store(postgres_store: Callable[[], Store]) -> Store:
    return postgres_store()


def app_at(store: Store, **options: Any) -> App[Any]:
    return App(store.url, namespace=store.namespace, **options)


def test_a_store_that_fits_is_examined_to_the_end(store: Store) -> None:
    findings = examine_app(app_at(store))
    for check in (VERSION, PROXY, CONNECTIONS, SCHEMA, CONNECTION, CLOCK, NOTIFICATIONS):
        assert worst(findings, check).level is Level.OK, worst(findings, check)
    assert worst(findings, WORKERS).level is Level.NOTE


def test_a_server_that_syncs_nothing_is_a_problem(store: Store) -> None:
    """The server of the tests does not."""
    found = examined(app_at(store), DURABILITY)
    assert (found.level, "fsync off" in found.found) == (Level.PROBLEM, True)


@pytest.mark.parametrize(
    ("durability", "settings", "pooled", "level"),
    [
        ("durable", ("on", "on", "on"), False, Level.OK),
        ("durable", ("on", "on", "off"), False, Level.OK),  # connections of the engine turn it on
        ("durable", ("on", "on", "off"), True, Level.PROBLEM),
        ("durable", ("on", "off", "on"), False, Level.WARNING),
        ("fast", ("on", "on", "off"), False, Level.NOTE),
        ("fast", ("off", "on", "off"), False, Level.PROBLEM),
    ],
)
def test_the_class_follows_from_the_settings(
    durability: str, settings: tuple[str, str, str], pooled: bool, level: Level
) -> None:
    assert _durability(durability, *settings, pooled=pooled, in_recovery=False).level is level
    assert _durability(durability, *settings, pooled=pooled, in_recovery=True).level is Level.PROBLEM


def test_a_missing_schema_is_a_problem_and_is_not_made(postgres_server: PostgresServer) -> None:
    name = unused_name()
    findings = examine_app(App(postgres_server.url(), namespace=name, auto_migrate=True))
    assert worst(findings, SCHEMA).level is Level.PROBLEM
    assert "holdfast migrate" in worst(findings, SCHEMA).advice
    assert worst(findings, OPENING).level is Level.NOTE
    assert postgres_server.execute("SELECT 1 FROM pg_namespace WHERE nspname LIKE %s", f"{name}%") == []


def test_rights_that_are_missing_are_reported(store: Store, postgres_server: PostgresServer) -> None:
    role = new_role(postgres_server)
    findings = examine_app(App(role.url, namespace=store.namespace))
    problems = [finding for finding in findings if finding.level is Level.PROBLEM and finding.check != DURABILITY.name]
    assert [finding.check for finding in problems] == [OPENING.name]
    assert "holdfast migrate --grant ROLE" in problems[0].found
    assert str(urlsplit(role.url).password) not in str(findings)


def test_a_role_with_the_rights_of_a_client_can_examine_everything(
    store: Store, postgres_server: PostgresServer
) -> None:
    role = new_role(postgres_server)
    app_at(store).migrate(grant=[role.name])
    with closing(psycopg.connect(postgres_server.url())):
        findings = examine_app(App(role.url, namespace=store.namespace))
    assert worst(findings, CONNECTION).level is worst(findings, WRITES).level is Level.OK
    used = int(worst(findings, CONNECTIONS).found.split()[0])
    assert used >= 2  # sessions of other roles count, too


def test_a_server_that_does_not_answer(store: Store, postgres_server: PostgresServer) -> None:
    with Proxy(postgres_server.port) as proxy:
        proxy.refuse()
        url = postgres_server.url(port=proxy.port)
        findings = examine_app(App(url, namespace=store.namespace))
    assert worst(findings, CONNECTION).level is Level.PROBLEM
    assert "cannot be reached" in worst(findings, CONNECTION).found


@pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)
def test_a_proxy_must_be_in_the_settings(store: Store, postgres_server: PostgresServer) -> None:
    with Bouncer(postgres_server, "transaction") as bouncer:
        url = bouncer.url
        findings = examine_app(App(url, namespace=store.namespace))
        assert worst(findings, PROXY).level is Level.PROBLEM
        assert "pooled = true" in worst(findings, PROXY).found
        pooled = open_engine(url, namespace=store.namespace, pooled=True, durability="fast")
        assert worst(examine_engine(pooled), PROXY).level is Level.NOTE
        direct = open_engine(
            url, namespace=store.namespace, pooled=True, durability="fast", listen_url=postgres_server.url()
        )
        assert worst(examine_engine(direct), PROXY).level is Level.OK


def test_an_old_transaction_is_named(
    store: Store, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "OLD_TRANSACTION_S", 0)
    with closing(psycopg.connect(postgres_server.url(), application_name="report")) as culprit:
        culprit.execute("SELECT 1")
        found = worst(examine_engine(open_engine(store.url, namespace=store.namespace)), TRANSACTIONS)
        pid = culprit.info.backend_pid
    assert (found.level, f"process {pid} (report, " in found.found) == (Level.WARNING, True)
    assert "idle in transaction" in found.found


def test_a_server_with_few_connections_left_is_a_warning(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "FULL", 0.0)
    found = worst(examine_engine(open_engine(store.url, namespace=store.namespace)), CONNECTIONS)
    assert (found.level, "max_connections" in found.advice) == (Level.WARNING, True)


def test_another_clock_of_the_server_is_a_warning(store: Store) -> None:
    app = app_at(store)
    app.engine.clock_offset = -MINUTE
    found = examined(app, CLOCK)
    assert found.level is Level.WARNING
    assert re.search(r"(59|60)\.\d s behind", found.found)  # it is measured


@pytest.mark.chaos
def test_a_store_that_answers_slowly_needs_longer_leases(store: Store, postgres_server: PostgresServer) -> None:
    with Proxy(postgres_server.port) as proxy:
        app: App[Any] = App(postgres_server.url(port=proxy.port), namespace=store.namespace)

        @app.task(lease=2)
        async def short() -> None: ...

        app.open()
        proxy.delay(0.25)  # each way
        found = examined(app, LEASE)
    assert (found.level, "short" in found.found) == (Level.WARNING, True)


def test_the_examination_leaves_no_session(store: Store, postgres_server: PostgresServer) -> None:
    findings = examine_app(app_at(store))
    assert findings_of(findings, CONNECTION)
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'"
        " AND query LIKE '%pg_is_in_recovery%'"
    )
    eventually_now(lambda: postgres_server.execute(query) == [(0,)], "the end of the session")


@pytest.mark.chaos
def test_a_server_of_its_own_whose_settings_change() -> None:
    """With the settings that PostgreSQL has by default, then with weaker ones, and with few connections."""
    with private_server(max_connections=20) as server:
        app: App[Any] = App(server.url(), auto_migrate=True)
        app.migrate()
        found = examined(app, DURABILITY)
        assert (found.level, found.found.startswith("durable: ")) == (Level.OK, True)
        assert examined(App(server.url(), durability="fast"), DURABILITY).level is Level.NOTE
        server.execute("ALTER SYSTEM SET full_page_writes = off")
        server.execute("ALTER SYSTEM SET synchronous_commit = off")
        server.execute("SELECT pg_reload_conf()")
        eventually_now(lambda: examined(app, DURABILITY).level is Level.WARNING, "the weaker settings")
        server.execute("ALTER SYSTEM SET full_page_writes = on")
        server.execute("SELECT pg_reload_conf()")
        eventually_now(lambda: "connections of Holdfast do" in examined(app, DURABILITY).found, "the setting of pages")
        others = [psycopg.connect(server.url()) for _ in range(13)]
        found = worst(examine_engine(open_engine(server.url())), CONNECTIONS)
        for other in others:
            other.close()
    assert (found.level, " of 17 connections are in use" in found.found) == (Level.WARNING, True)
