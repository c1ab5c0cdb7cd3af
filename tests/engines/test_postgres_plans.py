"""What the functions of the PostgreSQL engine read in a store of two hundred thousand jobs, as the server itself says.

The statements stand inside functions, so they are not explained one by one here: whole verbs run, and `auto_explain`
reports every statement inside, with its plan and what it met. Each verb runs with and without statistics on the tables
and with plans made for its parameters and for any; and is rolled back, so that every test finds the same store.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest
from psycopg.errors import FeatureNotSupported, InsufficientPrivilege, UndefinedFile

from holdfast.engines.postgres.encode_calls import call_of
from holdfast.engines.postgres.messages import Read
from holdfast.engines.postgres.migrations import PRESENT, script
from holdfast.model.command import A, Command
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Audit, Find, Get, Lanes, Prune, Stats
from holdfast.model.operate import Cancel, Requeue
from holdfast.model.produce import DepthLimit, Enqueue, Group, NewJob, Parent
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Exchange, Expired, QueueClaim, Renew, Renewal, Settlement, TaskClaim

if TYPE_CHECKING:
    from postgres import PostgresServer

QUEUE = "work"
KNOWN, UNKNOWN = "known", "unknown"

FILL = """
INSERT INTO job (
    queue, id, task, payload, codec, payload_hash, priority, lane, unique_key, key_scope, key_window, expires, reply,
    state, hold, arrival, created, due, owner, token, fence, granted, lease_expires, lease_len, finished,
    visible_until, result_until, key_until)
SELECT
    'work', 'job-' || n, CASE kind WHEN 'unknown' THEN 'unknown' ELSE 'known' END, decode(repeat('78', 100), 'hex'),
    'json', '', 0, CASE kind WHEN 'blocked' THEN 'lane-' || n %% 100 END,
    CASE WHEN kind = 'queued' AND n %% 10 = 0 THEN 'key-' || n END, 'result', 0,
    CASE WHEN kind = 'waiting' THEN now + 86400000000 END, '{}',
    CASE kind WHEN 'unknown' THEN 'queued' WHEN 'waiting' THEN 'scheduled' WHEN 'leased' THEN 'running'
        WHEN 'blocked' THEN CASE WHEN first THEN 'queued' ELSE 'blocked' END
        WHEN 'finished' THEN CASE WHEN n %% 10 = 0 THEN 'failed' ELSE 'succeeded' END ELSE kind END,
    (kind = 'blocked' AND NOT first)::int, n, now, now + (kind = 'waiting')::int * (3600000000 + n),
    CASE kind WHEN 'leased' THEN 'worker' ELSE '' END, CASE kind WHEN 'leased' THEN 'old.' || n END,
    (kind = 'leased')::int, kind = 'leased', CASE kind WHEN 'leased' THEN now + 30000000 + n END,
    (kind = 'leased')::int * 30000000, CASE kind WHEN 'finished' THEN now END,
    (kind = 'finished')::int * (now + 86400000000 + n), (kind = 'finished')::int * (now + 3600000000),
    (kind = 'finished')::int * (now + 3600000000)
FROM (
    SELECT kind, 1000000 * place + n AS n, n <= 100 AS first,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 1000000 AS now
    FROM unnest(%s::text[], %s::int[]) WITH ORDINALITY AS mix (kind, jobs, place), generate_series(1, jobs) AS n
) AS made
"""

DERIVED = """
INSERT INTO counter SELECT queue, state, count(*), CASE WHEN is_terminal(state) THEN count(*) ELSE 0 END
FROM job GROUP BY queue, state;
INSERT INTO lane (queue, lane, head, depth)
SELECT queue, lane, min(id) FILTER (WHERE hold = 0), count(*) FROM job WHERE lane IS NOT NULL GROUP BY queue, lane;
INSERT INTO unique_key SELECT queue, task, unique_key, id FROM job WHERE unique_key IS NOT NULL;
SELECT setval('arrival', 100000000);
"""


class Node(NamedTuple):
    """A table as a statement read it: how, by what index, and how many of its rows were looked at."""

    table: str
    how: str
    by: str
    rows: float
    statement: str


class Stock:
    """A schema full of jobs, and a connection that can say what a verb does in it."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._db = connection
        self._schema = schema
        self._rules = PRESENT.schema(schema)

    def fill(self, **jobs: int) -> None:
        self._db.execute(script(self._schema).encode())
        self._db.execute(f"SET search_path = {self._schema}, {self._rules}".encode())
        self._db.execute("ALTER TABLE job SET (autovacuum_enabled = off)")
        self._db.execute(FILL.encode(), (list(jobs), list(jobs.values())))
        self._db.execute(DERIVED.encode())
        for table in ("job", "counter", "tally", "lane", "unique_key", "edge"):
            self._db.execute(f"VACUUM ANALYZE {table}".encode())

    def drop(self) -> None:
        self._db.execute(f"DROP SCHEMA IF EXISTS {self._rules}, {self._schema} CASCADE".encode())

    def ask(self, command: Command[A]) -> A:
        sql, values, read = self._call(command)
        answer: A = read(self._db.execute(f"SELECT * FROM {sql}".encode(), values).fetchall()).answer
        return answer

    def _call(self, command: Command[A]) -> tuple[str, list[Any], Read]:
        call = call_of(command)
        values = [list(value) if isinstance(value, tuple) else value for value in (*call.arguments, 0, 0)]
        return f"{self._rules}.{call.function}({', '.join(['%s'] * len(values))})", values, call.read

    def blocks(self, command: Command[A]) -> int:
        """How many blocks of the server's memory the command touches."""
        sql, values, _ = self._call(command)
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM {sql}"
        row = self._db.execute(explain.encode(), values).fetchone()
        assert row is not None
        plan = row[0][0]["Plan"]
        touched: int = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return touched

    # Plans

    @contextmanager
    def mode(self, *, analysed: bool, generic: bool) -> Iterator[None]:
        """As a server might have it. Nothing that is done here stays."""
        with self._db.transaction(force_rollback=True):
            which = "force_generic_plan" if generic else "force_custom_plan"
            self._db.execute(f"SET LOCAL plan_cache_mode = {which}".encode())
            if not analysed:
                self._db.execute("DELETE FROM pg_statistic WHERE starelid::regclass::text IN ('job', 'lane', 'edge')")
                self._db.execute("UPDATE pg_class SET relpages = 0, reltuples = -1 WHERE oid = 'job'::regclass")
            yield

    @contextmanager
    def statistics(self, which: str) -> Iterator[None]:
        """The tables as they are while autovacuum has not come by yet. Nothing that is done here stays."""
        with self._db.transaction(force_rollback=True):
            if which in ("none", "of the empty table"):
                self._db.execute("DELETE FROM pg_statistic WHERE starelid = 'job'::regclass")
                tuples = -1 if which == "none" else 0
                self._db.execute(
                    "UPDATE pg_class SET relpages = 0, reltuples = %s WHERE oid = 'job'::regclass", (tuples,)
                )
                self._db.execute(
                    "UPDATE pg_class SET relpages = 1, reltuples = 0 WHERE oid IN ("
                    "SELECT indexrelid FROM pg_index WHERE indrelid = 'job'::regclass)"
                )
            elif which == "before the queue was drained":
                self._db.execute(
                    "UPDATE job SET state = 'succeeded', finished = created, visible_until = created + 86400000000 "
                    "WHERE state = 'queued' AND arrival % 1000 > 50"
                )
            yield

    def scans(self) -> dict[str, tuple[int, int]]:
        """Scans and rows in this transaction: of the table as a whole, and of each of its indexes."""
        query = """SELECT relname, pg_stat_get_xact_numscans(oid), pg_stat_get_xact_tuples_returned(oid) FROM pg_class
            WHERE oid = 'job'::regclass OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'job'::regclass)"""
        return {name: (scans, rows) for name, scans, rows in self._db.execute(query).fetchall()}

    def reads(self, command: Command[A]) -> list[Node]:
        """What every statement inside the command reads."""
        messages: list[str] = []
        self._db.add_notice_handler(listen := lambda notice: messages.append(notice.message_primary or ""))
        try:
            self.ask(command)
        finally:
            self._db.remove_notice_handler(listen)
        plans = [json.loads(text[text.index("{") :]) for text in messages if "plan:" in text]
        assert plans, "the server explained nothing"
        return [node for plan in plans for node in _nodes(plan["Plan"], plan["Query Text"])]


def _nodes(plan: dict[str, Any], statement: str) -> Iterator[Node]:
    if plan["Node Type"].endswith("Scan") and ("Relation Name" in plan or "Index Name" in plan):
        passed_over = sum(plan.get(f"Rows Removed by {what}", 0) for what in ("Filter", "Index Recheck"))
        rows = (plan["Actual Rows"] + passed_over) * plan["Actual Loops"]
        yield Node(plan.get("Relation Name", ""), plan["Node Type"], plan.get("Index Name", ""), rows, statement)
    for part in plan.get("Plans", ()):
        yield from _nodes(part, statement)


def connect(server: "PostgresServer") -> psycopg.Connection[Any]:
    return psycopg.connect(server.url(), autocommit=True, application_name="holdfast-plans")


@pytest.fixture(scope="module")
def stock(postgres_server: "PostgresServer") -> Iterator[Stock]:
    with connect(postgres_server) as connection:
        try:
            connection.execute("LOAD 'auto_explain'")
        except (FeatureNotSupported, InsufficientPrivilege, UndefinedFile) as error:
            pytest.skip(f"the server does not let us load auto_explain: {error}")
        for name, value in {
            "log_min_duration": "0",
            "log_nested_statements": "on",
            "log_analyze": "on",
            "log_timing": "off",
            "log_format": "json",
            "log_level": "notice",
        }.items():
            connection.execute(f"SET auto_explain.{name} = '{value}'".encode())
        full = Stock(connection, f"plans_{connection.info.backend_pid}")
        full.drop()
        try:
            full.fill(finished=100_000, queued=45_000, blocked=25_000, unknown=20_000, waiting=9_000, leased=1_000)
            yield full
        finally:
            full.drop()


def claim(number: int = 1, limit: int = 10) -> Claim:
    tasks = (TaskClaim(task=KNOWN, lease_len=30 * SECOND),)
    return Claim(claim_id=f"claim-{number}", worker="w", queues=(QueueClaim(QUEUE, tasks),), limit=limit)


def name(kind: int, number: int = 1) -> str:
    """The id of a job of the store: kinds in the order in which they were filled in, from one."""
    return f"job-{1_000_000 * kind + number}"


def settlement(number: int, **fields: Any) -> Settlement:
    """Of one of the jobs that are leased in the store."""
    leased = 6_000_000 + number
    return Settlement(queue=QUEUE, id=f"job-{leased}", token=f"old.{leased}", target=JobState.SUCCEEDED, **fields)


NEW = NewJob(queue=QUEUE, id="new", task=KNOWN)
VERBS: dict[str, tuple[Command[Any], set[str]]] = {
    "claim": (Exchange(claim=claim()), {"job_ready", "job_due", "job_token"}),
    "settle": (Exchange(settlements=tuple(settlement(n) for n in range(1, 11))), set()),
    "settle and claim": (Exchange(settlements=(settlement(1),), claim=claim()), {"job_ready"}),
    "retry": (Exchange(settlements=(Settlement(
        queue=QUEUE, id=name(6), token="old.6000001", target=JobState.RETRYING),)), {"job_pkey"}),
    "renew": (Renew(jobs=tuple(
        Renewal(QUEUE, name(6, n), f"old.{6_000_000 + n}") for n in range(1, 11))), {"job_pkey"}),
    "expired": (Expired(worker="w"), {"job_token"}),
    "enqueue": (Enqueue(groups=(Group((NEW,)),)), {"job_pkey"}),
    "enqueue under a key": (Enqueue(groups=(Group((NewJob(
        queue=QUEUE, id="new", task=KNOWN, unique_key="key-2000010"),)),)), {"job_pkey", "unique_key_pkey"}),
    "enqueue into a lane": (Enqueue(groups=(Group((NewJob(
        queue=QUEUE, id="new", task=KNOWN, lane="lane-1"),)),)), {"job_pkey", "lane_pkey"}),
    "enqueue a child": (Enqueue(groups=(Group((NewJob(
        queue=QUEUE, id="new", task=KNOWN, parents=(Parent(JobKey(QUEUE, name(2))),)),)),)), {"job_pkey"}),
    "enqueue under a limit": (Enqueue(groups=(Group((NEW,), (DepthLimit(QUEUE, 10**9),)),)), {"job_pkey"}),
    "cancel": (Cancel(queue=QUEUE, ids=(name(2), name(5))), {"job_pkey"}),
    "cancel a lane's head": (Cancel(queue=QUEUE, ids=(name(3),)), {"job_lane_next", "lane_pkey"}),
    "requeue": (Requeue(queue=QUEUE, ids=(name(1, 10),)), {"job_pkey"}),
    "get": (Get(jobs=(JobKey(QUEUE, name(1)), JobKey(QUEUE, name(2)))), {"job_pkey"}),
    "find": (Find(queue=QUEUE, state=JobState.SUCCEEDED), {"job_state"}),
    "find a needle": (Find(queue=QUEUE, state=JobState.SUCCEEDED, task="needle", scan=500), {"job_state"}),
    "find further on": (Find(queue=QUEUE, state=JobState.BLOCKED, cursor=3_010_000), {"job_state"}),
    "find what runs": (Find(queue=QUEUE, state=JobState.RUNNING), {"job_token"}),
    "stats": (Stats(), {"job_ready", "job_due"}),
    "lanes": (Lanes(queue=QUEUE), {"lane_pkey", "job_pkey"}),
    "prune": (Prune(), {"job_ended", "job_expires"}),
}  # fmt: skip
"""Verbs that may not depend on what else is stored, and indexes that serve them."""


def test_the_store_is_one_that_the_engine_could_have_made(stock: Stock) -> None:
    assert stock.ask(Audit()).problems == ()


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("analysed", [False, True], ids=["no-statistics", "analysed"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_ranges_of_its_indexes_and_no_more(stock: Stock, verb: str, analysed: bool, generic: bool) -> None:
    command, indexes = VERBS[verb]
    with stock.mode(analysed=analysed, generic=generic):
        nodes = stock.reads(command)
    large = [node for node in nodes if node.table in ("job", "lane", "edge", "unique_key")]
    assert [node for node in large if node.how == "Seq Scan"] == []
    assert [node for node in large if node.rows > 1_000] == []
    assert indexes <= {node.by for node in nodes}


STATISTICS = ("none", "of the empty table", "before the queue was drained", "fresh")
BY_SEVERAL_TASKS = tuple(TaskClaim(task=task, lease_len=30 * SECOND) for task in (KNOWN, UNKNOWN, "absent"))
HOT: dict[str, Command[Any]] = {
    **{verb: VERBS[verb][0] for verb in ("claim", "settle", "settle and claim", "retry", "renew", "enqueue")},
    "claim many": Exchange(claim=claim(limit=500)),
    "claim several tasks": Exchange(
        claim=Claim(claim_id="several", worker="w", queues=(QueueClaim(QUEUE, BY_SEVERAL_TASKS),), limit=10)
    ),
}


def wrong_plans(server: "PostgresServer", queued: int) -> list[str]:
    """What the hot path reads that it must not read, whatever the statistics of the tables are."""
    found = []
    with connect(server) as connection:
        stock = Stock(connection, f"statistics_{connection.info.backend_pid}")
        stock.drop()
        try:
            stock.fill(finished=0, queued=queued, blocked=0, unknown=100, waiting=0, leased=100)
            for which in STATISTICS:
                for verb, command in HOT.items():
                    with stock.statistics(which):
                        before = stock.scans()
                        stock.ask(command)
                        after = stock.scans()
                    reads = {name: [n - m for n, m in zip(after[name], before[name], strict=True)] for name in after}
                    if reads["job"][0] or reads["job_state"][0]:
                        found.append(f"{verb}, statistics {which}: {reads}")
                    if which != "before the queue was drained" and max(rows for _, rows in reads.values()) > 600:
                        found.append(f"{verb}, statistics {which}, too many rows: {reads}")
        finally:
            stock.drop()
    return found


def test_no_plan_of_the_hot_path_depends_on_statistics(postgres_server: "PostgresServer") -> None:
    # R2
    assert wrong_plans(postgres_server, 40_000) == []


@pytest.mark.long
@pytest.mark.parametrize("queued", [1_000, 10_000, 25_000, 100_000])
def test_no_plan_of_the_hot_path_depends_on_statistics_at_any_size(
    postgres_server: "PostgresServer", queued: int
) -> None:
    # R2
    assert wrong_plans(postgres_server, queued) == []


def blocks_per_job(server: "PostgresServer", schema: str, calls: int = 3, limit: int = 100, **jobs: int) -> float:
    """Blocks of memory touched per claimed job. Called before it counts: a first call reads catalogues and plans."""
    with connect(server) as connection:
        stock = Stock(connection, f"{schema}_{connection.info.backend_pid}")
        stock.drop()
        try:
            stock.fill(**jobs)
            for number in range(6):  # by then the server uses plans for any parameters
                assert len(stock.ask(Exchange(claim=claim(number, 10))).leases) == 10
            touched = sum(stock.blocks(Exchange(claim=claim(number, limit))) for number in range(10, 10 + calls))
        finally:
            stock.drop()
    return touched / (calls * limit)


def growth(server: "PostgresServer", scale: int) -> float:
    small = blocks_per_job(server, "small", finished=0, queued=1_000)
    large = blocks_per_job(
        server,
        "large",
        finished=500_000 // scale,
        queued=200_000 // scale,
        blocked=90_000 // scale,
        unknown=100_000 // scale,
    )
    return large / small


def test_claiming_costs_the_same_whatever_waits_or_has_ended(postgres_server: "PostgresServer") -> None:
    assert growth(postgres_server, 10) <= 1.3


@pytest.mark.long
def test_claiming_costs_the_same_in_a_store_of_nine_hundred_thousand_jobs(postgres_server: "PostgresServer") -> None:
    assert growth(postgres_server, 1) <= 1.3
