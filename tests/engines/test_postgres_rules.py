"""The rules on PostgreSQL: rendered from the model, stamped with a number, installed beside each other."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from every_verb import every_verb
from opened_engine import opened_engine
from postgres import PostgresServer
from postgres_roles import app_role
from postgres_stock import Store, drop_namespace, unused_name

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.engines.postgres import rules
from holdfast.engines.postgres.columns import columns
from holdfast.engines.postgres.migrations import Rules, migrations, newest
from holdfast.engines.postgres.rules import RULES_VERSION, Rule, listed
from holdfast.errors import ConfigError, SchemaMismatch
from holdfast.model import states
from holdfast.model.instants import SECOND
from holdfast.model.produce import Enqueue, Group
from holdfast.model.records import WorkerRecord
from holdfast.model.states import Hold, JobState
from holdfast.testing.contract.builders import QUEUE, after, claim, new_job, succeed

Stores = Callable[[], Store]

# --- The text ---

FORBIDDEN = {
    r"\bhold\s*(?:&\s*~?|\||:=|=|<>)\s*[1-9]": "a bare hold bit: write {{hold.lane}}",
    r"\b[0-9]{8,}\b": "a bare duration or limit: name it in the model",
    r"->>\s*[0-9]+": "a bare position: generate it from the field",
    rf"\bIN \(\s*'(?:{'|'.join(JobState)})'": "a bare set of states: write {{terminal}}",
}
TALLY_LINE = "line ->> "
"""Lines that `count_moves` writes and `write_tally` reads, both in `step.sql`."""


def bare_literals(text: str) -> list[str]:
    """What a rule spells out although the model has it."""
    code = re.sub(r"--.*", "", text).replace(TALLY_LINE, "")
    return [found for pattern in FORBIDDEN for found in re.findall(pattern, code)]


@pytest.mark.parametrize("rule", rules.source(), ids=lambda rule: rule.stem)
def test_a_rule_takes_numbers_and_sets_from_the_model(rule: Rule) -> None:
    assert bare_literals(rule.text) == []


@pytest.mark.parametrize(
    "planted",
    ["j.hold & 8 = 0", "hold := 4", "3600000000", "given ->> 3", "state IN ('succeeded', 'failed')", "hold & ~16"],
)
def test_a_bare_literal_is_found(planted: str) -> None:
    assert bare_literals(f"SELECT {planted};") != []


def unbounded_loops(text: str) -> list[str]:
    """Loops that are not over numbers, rows or elements: nothing says that they end."""
    code = re.sub(r"--.*", "", text).replace("END LOOP;", ";")
    heads = [code[: found.start()].split(";")[-1] for found in re.finditer(r"\bLOOP\b", code)]
    words = [re.findall(r"\b(FOR|FOREACH|WHILE|LOOP)\b(?! UPDATE)", head) for head in heads]
    return [" ".join(head.split())[-60:] for head, found in zip(heads, words, strict=True) if not _is_for(found)]


def _is_for(words: list[str]) -> bool:
    return bool(words) and words[-1] in ("FOR", "FOREACH")


# PF1
@pytest.mark.parametrize("rule", rules.source(), ids=lambda rule: rule.stem)
def test_every_loop_of_a_rule_is_bounded(rule: Rule) -> None:
    assert unbounded_loops(rule.text) == []


@pytest.mark.parametrize(
    ("planted", "count"),
    [
        ("BEGIN LOOP x := 1; END LOOP;", 1),
        ("BEGIN WHILE NOT FOUND LOOP x := 1; END LOOP;", 1),
        ("BEGIN FOR i IN 1 .. 9 LOOP LOOP x := 1; END LOOP; END LOOP;", 1),
        ("PERFORM 1 FROM a FOR UPDATE; LOOP x := 1; END LOOP;", 1),
        ("BEGIN FOR i IN SELECT 1 FROM a FOR UPDATE LOOP x := 1; END LOOP; FOREACH v IN ARRAY w LOOP END LOOP;", 0),
    ],
)
def test_an_unbounded_loop_is_found(planted: str, count: int) -> None:
    assert len(unbounded_loops(planted)) == count


def test_a_name_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(KeyError, match=r"rules/mine\.sql: \{\{holds\.lane\}\}"):
        rules.render("shop", 1, [Rule("mine", "SELECT {{holds.lane}}")])


def test_the_text_has_the_number_it_is_stamped_with() -> None:
    assert rules.stamped().get(RULES_VERSION) == rules.checksum(), (
        "The rules of PostgreSQL, or what they take from the model, have changed. If the number of RULES_VERSION in "
        "engines/postgres/rules.py is released, raise it. Then run: .venv/bin/python tests/support/stamp_rules.py"
    )


def test_a_changed_line_changes_the_checksum() -> None:
    assert Rules(1, changed()).checksum() != Rules(1).checksum()
    assert Rules(2).checksum() == Rules(1).checksum()


@pytest.mark.parametrize("namespace", ["shop_rules_1", "x_rules_22"])
def test_a_namespace_that_looks_like_a_schema_of_rules_is_refused(namespace: str) -> None:
    with pytest.raises(ConfigError, match="_rules_"):
        open_engine("postgresql:///shop", namespace=namespace)


# --- What is installed ---


def test_every_function_is_valid_and_has_a_name_of_its_own(
    postgres_store: Stores, postgres_server: PostgresServer
) -> None:
    """They are created without a look at their bodies, so that their order does not matter."""
    schema = rules.schema_of(postgres_store().namespace)
    path = f"SET search_path = {schema}, {schema.rpartition('_rules_')[0]}"
    validate = """
        SELECT CASE lanname WHEN 'sql' THEN fmgr_sql_validator(p.oid)::text ELSE plpgsql_validator(p.oid)::text END
        FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang WHERE pronamespace = %s::regnamespace
    """
    postgres_server.execute(path)
    try:
        assert len(postgres_server.execute(validate, schema)) > 100
    finally:
        postgres_server.execute("RESET search_path")
    double = "SELECT proname FROM pg_proc WHERE pronamespace = %s::regnamespace GROUP BY 1 HAVING count(*) > 1"
    assert postgres_server.execute(double, schema) == []


def test_the_table_of_jobs_has_the_columns_of_the_model(
    postgres_store: Stores, postgres_server: PostgresServer
) -> None:
    found = postgres_server.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
        f"{postgres_store().namespace}.job",
    )
    assert {name for (name,) in found} == {*columns()}


def test_predicates_of_indexes_have_the_sets_of_the_model() -> None:
    """They are literal: a table's file never changes."""
    text = "\n".join(migration.text for migration in migrations())
    sets = {listed(JobState, members) for members in vars(states).values() if isinstance(members, frozenset)}
    predicates = re.findall(r"\bstate (?:NOT )?IN \(([^)]*)\)", text)
    assert len(predicates) == 5
    assert {*predicates} <= sets
    assert re.findall(r"hold & ([0-9]+) = ([0-9]+)", text) == [(str(Hold.LANE.value),) * 2]
    assert {*re.findall(r"\bstate = '(\w+)'", text)} <= {*JobState}


# --- Two versions at once ---


def changed() -> tuple[Rule, ...]:
    """The present rules with another text of one line: what `start` answers."""
    made = tuple(
        rule._replace(text=rule.text.replace("RETURN 'started';", "RETURN 'hold';")) for rule in rules.source()
    )
    assert made != rules.source()
    return made


@pytest.fixture
def name(postgres_server: PostgresServer) -> Iterator[str]:
    made = unused_name()
    yield made
    drop_namespace(postgres_server, made)


@pytest.fixture
def release(postgres_server: PostgresServer, name: str) -> Callable[..., Engine]:
    """An engine of the release with this number of rules."""

    def make(version: int, source: tuple[Rule, ...] | None = None, **options: Any) -> Engine:
        url = options.pop("url", None) or postgres_server.url()
        return open_engine(url, namespace=name, notify=False, rules=Rules(version, source), **options)

    return make


def schemas(server: PostgresServer, name: str) -> list[int]:
    found = server.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE %s", f"{name}\\_rules\\_%")
    return sorted(int(schema.rpartition("_")[2]) for (schema,) in found)


Release = Callable[..., Engine]


async def test_two_releases_work_on_one_queue_and_then_the_old_one_goes(
    postgres_server: PostgresServer, name: str, release: Release
) -> None:
    old, new = release(1), release(2, changed())
    await old.migrate()
    assert await new.migrate() == ("rules 2",)
    await old.open()
    await new.open()
    try:
        for engine in (old, new):
            await engine.enqueue(Group(tuple(new_job(f"{id(engine)} {number}") for number in range(2))))
        one = await old.claim(claim("a" * 32, limit=2))
        two = await new.claim(claim("b" * 32, limit=2))
        assert len(one.leases) == len(two.leases) == 2
        answers = [await old.exchange(map(succeed, two.leases)), await new.exchange(map(succeed, one.leases))]
        assert [answer.settled for answer in answers] == [("applied", "applied")] * 2
        assert (await new.stats(QUEUE)).queues[0].totals.succeeded == 4
        assert await old.audit() == await new.audit() == ()
    finally:
        await old.close()
        await new.close()
    assert await release(3).migrate() == ("rules 3", "rules 1 dropped")
    with pytest.raises(SchemaMismatch, match=f"needs tables {newest()}, rules {RULES_VERSION}"):
        await release(1).open()
    await new.open()
    await new.close()
    assert schemas(postgres_server, name) == [2, 3]


TABLES = ("job", "edge", "queue", "lane", "pool", "unique_key", "worker", "deferred", "tally", "counter")


@pytest.mark.parametrize("fast_paths", [True, False], ids=["fast", "general"])
async def test_a_column_that_a_later_release_adds_does_not_stop_this_one(
    postgres_server: PostgresServer, name: str, release: Release, *, fast_paths: bool
) -> None:
    engine = release(1, fast_paths=fast_paths)
    await engine.migrate()
    for table in TABLES:
        postgres_server.execute(f"ALTER TABLE {name}.{table} ADD COLUMN later bigint NOT NULL DEFAULT 7")
    async with opened_engine(engine):
        verbs = every_verb(engine)
        command = next(verbs)
        for _ in range(200):
            answer = await engine.perform(command)
            try:
                command = verbs.send(answer)
            except StopIteration:
                break
        parent = new_job("a", unique_key="k")
        await engine.enqueue(Group((parent, new_job("b", parents=after("a")), new_job("c", lane="x"))))
        async with engine.transaction() as connection:
            await engine.in_transaction(
                Enqueue(groups=(Group((new_job("d", lane="x", parents=after("a")),)),)), connection
            )
        assert {lease.id for lease in (await engine.claim(claim("one", limit=9))).leases} == {"a", "c"}
        assert await engine.audit() == ()
    assert postgres_server.execute(f"SELECT DISTINCT later FROM {name}.job") == [(7,)]


async def test_a_version_that_a_live_worker_uses_is_kept_and_named(
    postgres_server: PostgresServer, name: str, release: Release
) -> None:
    old = release(1)
    await old.migrate()
    await old.open()
    await old.heartbeat(WorkerRecord(worker="w1", interval=SECOND))
    await release(2).migrate()
    assert await release(3).migrate() == ("rules 3", "rules 1 kept: worker w1 uses it")
    await old.heartbeat(WorkerRecord(worker="w2", interval=SECOND))
    assert await release(3).migrate() == ("rules 1 kept: workers w1, w2 use it",)
    await old.close()
    postgres_server.execute(f"UPDATE {name}.worker SET seen = seen - %s", 61 * SECOND)
    assert await release(3).migrate() == ("rules 1 dropped",)
    assert await release(3).migrate() == ()
    assert schemas(postgres_server, name) == [2, 3]


async def test_a_new_version_has_the_grants_of_the_one_before(
    postgres_server: PostgresServer, name: str, release: Release
) -> None:
    role = app_role(postgres_server)
    reader = f"reader_{name}"
    postgres_server.execute(f"CREATE ROLE {reader}")
    more = (
        *rules.source(),
        Rule("more", "CREATE FUNCTION later_verb() RETURNS int LANGUAGE sql {{entry}} AS 'SELECT 1';"),
    )

    try:
        await release(1).migrate()
        await release(1).grant(role.name)
        postgres_server.execute(f"GRANT USAGE ON SCHEMA {name}_rules_1 TO {reader}")
        postgres_server.execute(f"GRANT EXECUTE ON FUNCTION {name}_rules_1.stats TO {reader}")
        await release(2, more).migrate()
        engine = release(2, more, url=role.url)
        await engine.open()
        await engine.enqueue(Group((new_job("a"),)))
        await engine.close()
        may = "SELECT has_function_privilege(%s, p.oid, 'EXECUTE') FROM pg_proc AS p WHERE p.oid::regproc = %s::regproc"
        found = [
            postgres_server.execute(may, who, f"{name}_rules_2.{function}")[0][0]
            for who in (role.name, reader)
            for function in ("stats", "enqueue", "later_verb", "put_job")
        ]
        assert found == [True, True, True, False, True, False, False, False]
    finally:
        postgres_server.execute(f"DROP OWNED BY {reader}; DROP ROLE {reader}")


async def test_another_text_under_an_installed_number_is_refused(
    postgres_server: PostgresServer, name: str, release: Release
) -> None:
    await release(1).migrate()
    with pytest.raises(SchemaMismatch, match="another text"):
        await release(1, changed()).migrate()
    await opened_and_closed(release(1))


async def test_what_a_dropped_namespace_has_left_is_replaced(
    postgres_server: PostgresServer, name: str, release: Release
) -> None:
    await release(1).migrate()
    postgres_server.execute(f"DROP SCHEMA {name} CASCADE")
    steps = await release(1).migrate()
    assert steps[-1] == "rules 1"
    await opened_and_closed(release(1))


async def test_without_fast_paths_no_function_of_them_is_called(release: Release) -> None:
    """They are not even installed here."""
    general = tuple(rule for rule in rules.source() if not rule.stem.startswith("fast_"))
    engine = release(1, general, fast_paths=False)
    await engine.migrate()
    async with opened_engine(engine):
        await engine.enqueue(Group(tuple(new_job(f"a{number}", fresh_id=True) for number in range(3))))
        await engine.enqueue(Group((new_job("b", fresh_id=True, priority=1), new_job("c", fresh_id=True))))
        leases = (await engine.claim(claim("a" * 32, limit=3))).leases
        await engine.exchange(map(succeed, leases), claim=claim("b" * 32, limit=1))
        assert (await engine.clear(QUEUE)).count == 2
        assert await engine.audit() == ()
    with pytest.raises(SchemaMismatch, match="enqueue_alike"):
        await put_one(release(1, general))


async def put_one(engine: Engine) -> None:
    await engine.open()
    try:
        await engine.enqueue(Group((new_job("fast", fresh_id=True),)))
    finally:
        await engine.close()


async def opened_and_closed(engine: Engine) -> None:
    await engine.open()
    await engine.close()
