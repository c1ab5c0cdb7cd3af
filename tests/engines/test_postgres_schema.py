"""The schema on PostgreSQL: made by a call or by a script, by one or by many, newer or older; and who may use it."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import pytest
from postgres import PostgresServer
from postgres_roles import Role, app_role, new_role
from postgres_stock import Store, drop_namespace, unused_name

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.engines.postgres.encode_calls import call_of, verb_of
from holdfast.engines.postgres.migrations import migrations, newest, script
from holdfast.engines.postgres.rules import RULES_VERSION, entry_functions, schema_of
from holdfast.engines.postgres.schema import grants
from holdfast.errors import ConfigError, EngineError, EngineUnavailable, SchemaMismatch, Unsupported
from holdfast.model.command import Command
from holdfast.model.produce import Enqueue, Group
from holdfast.testing.contract.builders import new_job

Stores = Callable[[], Store]

RELATIONS = """
SELECT c.relname, c.relkind, c.reloptions::text, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
    a.attidentity, a.attcollation::regcollation::text, pg_get_expr(d.adbin, d.adrelid)
FROM pg_class AS c LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = %s::regnamespace ORDER BY c.relname, a.attnum
"""
INDEXES = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = %s ORDER BY 1"
CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = %s::regnamespace ORDER BY 1, 2
"""
VIEWS = "SELECT viewname, definition FROM pg_views WHERE schemaname = %s ORDER BY 1"
FUNCTIONS = """
SELECT pg_get_functiondef(oid), proacl::text FROM pg_proc WHERE pronamespace = %s::regnamespace
ORDER BY oid::regprocedure::text
"""


def dump(server: PostgresServer, schema: str) -> list[str]:
    """Everything that stands in a namespace, without its name and without rows, but for what is installed."""
    rows = [
        row
        for query in (RELATIONS, INDEXES, CONSTRAINTS, VIEWS, FUNCTIONS)
        for part in (schema, schema_of(schema))
        for row in server.execute(query, part)
    ]
    rows += server.execute(f"SELECT number, name FROM {schema}.migration ORDER BY 1")
    rows += server.execute(f"SELECT version, checksum FROM {schema}.rules ORDER BY 1")
    return [repr(row).replace(schema, "SCHEMA") for row in rows]


def fresh(server: PostgresServer, request: pytest.FixtureRequest) -> str:
    """A namespace that is not there, and will not be there after the test."""
    name = unused_name()
    request.addfinalizer(lambda: drop_namespace(server, name))
    return name


def of(server: PostgresServer, namespace: str, **options: Any) -> Engine:
    return open_engine(server.url(), namespace=namespace, **options)


async def opened_and_closed(engine: Engine) -> None:
    await engine.open()
    await engine.close()


# --- Migrations ---


async def test_the_script_makes_the_same_schema_as_the_call(
    postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> None:
    called, scripted = fresh(postgres_server, request), fresh(postgres_server, request)
    steps = await of(postgres_server, called).migrate()
    postgres_server.execute(await of(postgres_server, scripted).migration_script())

    assert len(steps) == len(migrations()) + 1
    assert steps[-1] == f"rules {RULES_VERSION}"
    assert len(dump(postgres_server, called)) > 300
    assert dump(postgres_server, scripted) == dump(postgres_server, called)
    await opened_and_closed(of(postgres_server, scripted))


async def test_the_script_holds_only_what_the_store_lacks(
    postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> None:
    name = fresh(postgres_server, request)
    engine = of(postgres_server, name)
    everything = await engine.migration_script()
    await engine.migrate()

    assert (await engine.migration_script()) == ""
    assert (await engine.migration_script(after=0)) == everything == script(name)
    last = await engine.migration_script(after=newest() - 1)
    assert re.findall(r"INSERT INTO migration .*VALUES \((\d+),", last) == [str(newest())]
    rules = await engine.migration_script(after=newest())
    assert "CREATE TABLE job" not in rules
    assert f"CREATE SCHEMA {schema_of(name)};" in rules


def test_a_script_that_was_run_already_changes_nothing(
    postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> None:
    name = fresh(postgres_server, request)
    postgres_server.execute(script(name))
    before = dump(postgres_server, name)
    with pytest.raises(Exception, match="already exists"):
        postgres_server.execute(script(name))
    postgres_server.execute("ROLLBACK")
    assert dump(postgres_server, name) == before


@pytest.mark.parametrize("by_script", [False, True])
async def test_tables_that_were_restored_without_the_rules_get_them_again(
    postgres_server: PostgresServer, request: pytest.FixtureRequest, by_script: bool
) -> None:
    name = fresh(postgres_server, request)
    engine = of(postgres_server, name)
    await engine.migrate()
    postgres_server.execute(f"DROP SCHEMA {schema_of(name)} CASCADE")  # `pg_dump -n` leaves it out
    with pytest.raises(SchemaMismatch, match="Run: holdfast migrate"):
        await engine.open()

    if by_script:
        postgres_server.execute(await engine.migration_script())
    else:
        assert await engine.migrate() == (f"rules {RULES_VERSION}",)
    await opened_and_closed(of(postgres_server, name))


async def test_of_many_that_migrate_at_once_one_does_it(
    postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> None:
    name = fresh(postgres_server, request)

    done = await asyncio.gather(*(of(postgres_server, name).migrate() for _ in range(5)))
    assert sorted(len(steps) for steps in done) == [0, 0, 0, 0, len(migrations()) + 1]


async def test_a_schema_that_is_newer_is_accepted(postgres_store: Stores, postgres_server: PostgresServer) -> None:
    store = postgres_store()
    postgres_server.execute(f"INSERT INTO {store.namespace}.migration (number, name) VALUES (9999, 'later')")
    try:
        await opened_and_closed(of(postgres_server, store.namespace))
    finally:
        postgres_server.execute(f"DELETE FROM {store.namespace}.migration WHERE number = 9999")


async def test_a_schema_that_is_missing_or_older_says_which_command_to_type(
    postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> None:
    name = fresh(postgres_server, request)
    with pytest.raises(SchemaMismatch, match="holdfast migrate") as missing:
        await of(postgres_server, name).open()
    wanted = f"tables {newest()}, rules {RULES_VERSION}"
    assert (missing.value.found, missing.value.wanted) == ("no tables of Holdfast yet", wanted)
    assert str(missing.value).endswith("has no tables of Holdfast yet. Run: holdfast migrate")

    await of(postgres_server, name).migrate()
    postgres_server.execute(f"UPDATE {name}.migration SET number = 0 WHERE number = %s", newest())
    with pytest.raises(SchemaMismatch, match="holdfast migrate") as older:
        await of(postgres_server, name).open()
    assert older.value.found == f"tables unknown, rules {RULES_VERSION}"

    postgres_server.execute(f"UPDATE {name}.migration SET number = %s WHERE number = 0", newest())
    postgres_server.execute(f"ALTER SCHEMA {schema_of(name)} RENAME TO {schema_of(name, 77)}")
    with pytest.raises(SchemaMismatch, match="holdfast migrate") as without:
        await of(postgres_server, name).open()
    assert without.value.found == f"tables {newest()}, rules 77"


async def test_with_auto_migrate_the_first_one_to_open_makes_the_schema(
    postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> None:
    name = fresh(postgres_server, request)

    await asyncio.gather(*(opened_and_closed(of(postgres_server, name, auto_migrate=True)) for _ in range(3)))
    assert (await of(postgres_server, name).migrate()) == ()


# --- Roles ---


@pytest.fixture
def role(postgres_server: PostgresServer) -> Role:
    return app_role(postgres_server)


def as_role(role: Role, namespace: str, **options: Any) -> Engine:
    return open_engine(role.url, namespace=namespace, **options)


async def put_one(engine: Engine, id: str) -> None:
    await engine.open()
    try:
        await engine.enqueue(Group((new_job(id),)))
    finally:
        await engine.close()


async def test_a_role_that_was_granted_nothing_is_told_so(
    postgres_store: Stores, postgres_server: PostgresServer
) -> None:
    stranger = new_role(postgres_server)
    with pytest.raises(EngineError, match="holdfast migrate --grant"):
        await as_role(stranger, postgres_store().namespace).open()


async def test_a_role_that_may_not_migrate_is_told_so(
    postgres_server: PostgresServer, request: pytest.FixtureRequest, role: Role
) -> None:
    name = fresh(postgres_server, request)
    for migrating in (as_role(role, name).migrate(), as_role(role, name, auto_migrate=True).open()):
        with pytest.raises(EngineError, match="Let the owner"):
            await migrating


async def test_a_granted_role_works_and_can_touch_no_table(
    postgres_store: Stores, postgres_server: PostgresServer, role: Role
) -> None:
    store = postgres_store()
    await of(postgres_server, store.namespace).grant(role.name)
    await put_one(as_role(role, store.namespace), "a")

    async def touch(statement: str) -> None:
        connection = await asyncpg.connect(role.url)
        try:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
        finally:
            await connection.close()

    tables = postgres_server.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", store.namespace)
    assert len(tables) > 8
    for (table,) in tables:
        await touch(f"SELECT FROM {store.namespace}.{table}")
        await touch(f"DELETE FROM {store.namespace}.{table}")
    await touch(f"CREATE TABLE {store.namespace}.mine (n int)")


async def test_the_script_grants_what_the_call_grants(
    postgres_server: PostgresServer, request: pytest.FixtureRequest, role: Role
) -> None:
    name = fresh(postgres_server, request)
    postgres_server.execute(await of(postgres_server, name).migration_script(roles=[role.name]))
    await put_one(as_role(role, name), "a")


async def test_a_role_may_call_the_verbs_and_no_helper(
    postgres_store: Stores, postgres_server: PostgresServer, role: Role
) -> None:
    store = postgres_store()
    await of(postgres_server, store.namespace).grant(role.name)
    callable = postgres_server.execute(
        "SELECT prosecdef, bool_and(allowed), bool_or(allowed) FROM pg_proc,"
        " has_function_privilege(%s, oid, 'EXECUTE') AS allowed"
        " WHERE pronamespace = %s::regnamespace GROUP BY prosecdef ORDER BY prosecdef",
        role.name,
        schema_of(store.namespace),
    )
    assert callable == [(False, False, False), (True, True, True)]


async def test_any_name_of_a_role_is_only_a_name(postgres_store: Stores, postgres_server: PostgresServer) -> None:
    store = postgres_store()
    strange = new_role(postgres_server, f'Odd "{unused_name()}"; DROP SCHEMA {store.namespace} CASCADE; --')
    await of(postgres_server, store.namespace).grant(strange.name)
    usage = "SELECT has_schema_privilege(%s, %s, 'USAGE')"
    assert postgres_server.execute(usage, strange.name, schema_of(store.namespace)) == [(True,)]
    for no_role in ("", "public", "a\0b"):
        with pytest.raises(ConfigError):
            grants(store.namespace, no_role)
    with pytest.raises(EngineError, match="does not exist"):
        await of(postgres_server, store.namespace).grant("nobody_of_that_name")


# --- What a caller cannot do to functions that run with their owner's rights ---


def test_nobody_may_call_a_function_who_was_not_granted_it(
    postgres_store: Stores, postgres_server: PostgresServer
) -> None:
    open_to_all = postgres_server.execute(
        """
        SELECT p.oid::regprocedure::text FROM pg_proc AS p
        CROSS JOIN aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
        WHERE p.pronamespace = %s::regnamespace AND a.grantee = 0
        """,
        schema_of(postgres_store().namespace),
    )
    assert open_to_all == []


def test_the_verbs_have_the_rights_of_their_owner_and_a_fixed_search_path(
    postgres_store: Stores, postgres_server: PostgresServer
) -> None:
    name = postgres_store().namespace
    found = postgres_server.execute(
        "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = %s::regnamespace AND prosecdef", schema_of(name)
    )
    commands = [one for one in Command.__subclasses__() if not one.__module__.startswith("holdfast.engines.redis")]
    called = {verb_of(command) for command in commands}
    assert len(called) > 25
    also = {
        "installed",
        "lock_holders",
        "enqueue_alike",
        "enqueue_fast",
        "enqueue_in_transaction",
        "settle_in_transaction",
    }
    assert {verb for verb, _ in found} == called | also == {*entry_functions()}
    path = f"search_path={schema_of(name)}, {name}, pg_temp"
    assert [verb for verb, settings in found if path not in settings] == []
    # PF1
    assert [verb for verb, settings in found if not any(one.startswith("lock_timeout=") for one in settings)] == []


def test_the_only_dynamic_statements_have_names_in_them_that_the_server_made(
    postgres_store: Stores, postgres_server: PostgresServer
) -> None:
    namespace = postgres_store().namespace
    bodies = postgres_server.execute(
        "SELECT proname, replace(replace(prosrc, %s, 'RULES'), %s, 'TABLES') FROM pg_proc"
        " WHERE pronamespace = %s::regnamespace",
        schema_of(namespace),
        namespace,
        schema_of(namespace),
    )
    dynamic = {name: re.findall(r"\bEXECUTE (format.{0,30})", body, re.DOTALL) for name, body in bodies}
    assert sum(len(re.findall(r"^ *(?:FOR \w+ IN )?EXECUTE\b", body, re.MULTILINE)) for _, body in bodies) == 6
    assert {name: found for name, found in dynamic.items() if found} == {
        "declare_pool": ["format('CREATE SEQUENCE TABLES.%I', "],
        "turns_given": ["format('SELECT CASE WHEN is_called T"],
        "find": ["format($find$\n        SELECT j.arriv"],  # one of two constant conditions goes into it
        "adopt_grants": ["format('GRANT USAGE ON SCHEMA RULES ", "format('GRANT EXECUTE ON FUNCTION RU"],
        "drop_old_versions": ["format('DROP SCHEMA IF EXISTS %I CAS"],
    }


async def test_objects_of_the_caller_do_not_stand_in_for_those_of_the_schema(
    postgres_store: Stores, postgres_server: PostgresServer, role: Role
) -> None:
    store = postgres_store()
    await of(postgres_server, store.namespace).grant(role.name)

    connection = await asyncpg.connect(role.url)
    verb = call_of(Enqueue(groups=(Group((new_job("a"),)),)))
    try:
        await connection.execute("CREATE TEMP TABLE job (n int); CREATE TEMP TABLE tally (n int)")
        await connection.execute('SET search_path = pg_temp; SET holdfast.moves = \'["planted", "queued", 5, 0]\'')
        await connection.fetchval(
            f"SELECT {schema_of(store.namespace)}.{verb.function}($1, $2, $3, 0, 0)", *verb.arguments
        )
    finally:
        await connection.close()
    assert postgres_server.execute(f"SELECT id FROM {store.namespace}.job") == [("a",)]
    assert postgres_server.execute(f"SELECT queue, jobs FROM {store.namespace}.counts") == [("work", 1)]


# --- Durability classes ---


async def commits(engine: Engine) -> str:
    """What the engine's connections say after it was opened."""
    await engine.open()
    try:
        async with engine.transaction() as connection:
            return str(await connection.fetchval("SHOW synchronous_commit"))
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("of_role", "durability", "found"),
    [("on", "fast", "off"), ("off", "durable", "on"), ("on", "durable", "on"), ("local", "durable", "local")],
)
async def test_a_class_decides_whether_commits_wait_for_the_disk(
    postgres_store: Stores, postgres_server: PostgresServer, of_role: str, durability: str, found: str
) -> None:
    store = postgres_store()
    role = app_role(postgres_server)
    postgres_server.execute(grants(store.namespace, role.name))
    postgres_server.execute(f"ALTER ROLE {role.name} SET synchronous_commit = '{of_role}'")
    try:
        assert (await commits(as_role(role, store.namespace, durability=durability))) == found
    finally:
        postgres_server.execute(f"ALTER ROLE {role.name} RESET synchronous_commit")


async def test_behind_a_proxy_durable_is_refused_where_commits_do_not_wait(
    postgres_store: Stores, postgres_server: PostgresServer
) -> None:
    store = postgres_store()
    role = app_role(postgres_server)
    postgres_server.execute(grants(store.namespace, role.name))
    postgres_server.execute(f"ALTER ROLE {role.name} SET synchronous_commit = off")
    try:
        with pytest.raises(ConfigError, match="ALTER ROLE"):
            await as_role(role, store.namespace, pooled=True).open()
        assert (await commits(as_role(role, store.namespace, pooled=True, durability="fast"))) == "off"
    finally:
        postgres_server.execute(f"ALTER ROLE {role.name} RESET synchronous_commit")


def test_a_class_that_postgresql_does_not_have_is_refused(postgres_server: PostgresServer) -> None:
    with pytest.raises(ConfigError, match="durable, fast"):
        open_engine(postgres_server.url(), durability="none")


# --- The driver ---


def test_without_its_driver_the_engine_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "from holdfast.engines import open_engine\n"
        "try: open_engine('postgresql:///shop')\n"
        f"except Exception as error: print(type(error).__name__ == '{Unsupported.__name__}', error)\n"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.startswith("True ")
    assert "pip install 'holdfast[postgres]'" in output


# --- Schemas of others ---


@pytest.mark.parametrize("name", ["public", "information_schema", "pg_catalog", "pg_mine"])
def test_a_schema_that_every_database_has_is_refused_by_name(postgres_server: PostgresServer, name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'.*one of its own"):
        of(postgres_server, name)


@pytest.mark.parametrize("by", ["call", "script"])
@pytest.mark.parametrize("suffix", ["", "_rules_1"])
async def test_a_schema_with_objects_of_an_application_is_refused_and_left_alone(
    postgres_server: PostgresServer, request: pytest.FixtureRequest, role: Role, suffix: str, by: str
) -> None:
    name = fresh(postgres_server, request)
    schema = f"{name}{suffix}"
    postgres_server.execute(f"CREATE SCHEMA {schema}")
    postgres_server.execute(f"CREATE TABLE {schema}.migration (n int)")
    postgres_server.execute(f"CREATE FUNCTION {schema}.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    refusal = f"{schema} contains tables or functions that are not Holdfast's"
    if by == "call":
        with pytest.raises(ConfigError, match=refusal):
            await of(postgres_server, name).migrate()
    else:
        with pytest.raises(psycopg.errors.DuplicateSchema, match=refusal):
            postgres_server.execute(script(name))
        postgres_server.execute("ROLLBACK")
    assert postgres_server.execute(f"SELECT has_function_privilege(%s, '{schema}.mine()', 'EXECUTE')", role.name) == [
        (True,)
    ]
    assert postgres_server.execute(f"SELECT count(*) FROM {schema}.migration") == [(0,)]


async def test_an_empty_schema_that_was_made_for_holdfast_is_used(
    postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> None:
    name = fresh(postgres_server, request)
    postgres_server.execute(f"CREATE SCHEMA {name}")
    assert await of(postgres_server, name).migrate()
    await of(postgres_server, name).migrate()


async def test_a_migration_does_not_wait_for_ever_for_another(
    postgres_server: PostgresServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PF1: the limit is one second here."""
    monkeypatch.setattr("holdfast.engines.postgres.migrations.LOCK_TIMEOUT_S", 1)
    name = fresh(postgres_server, request)
    other = await asyncpg.connect(postgres_server.url())
    try:
        async with other.transaction():
            await other.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"holdfast migrate {name}")
            with pytest.raises(EngineUnavailable, match=r"waited .* for another migration .* pg_stat_activity"):
                await of(postgres_server, name).migrate()
    finally:
        await other.close()
