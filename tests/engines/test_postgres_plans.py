"""How the functions of the PostgreSQL engine read a store of more than a hundred thousand jobs.

The statements stand inside functions, so whole verbs run. The server prints the plan of each statement inside, and its
counters say how many rows the verb read from each table and index. Both work on every server, without an extension.
Each verb runs with every kind of statistics on the tables, with plans made for its parameters and for any; and is
rolled back, so that every test finds the same store.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from eventually import eventually_now
from postgres_plans import Scan, printed_plans, scans_of

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


NEARLY_DRAINED = """
UPDATE job SET state = 'succeeded', finished = created, visible_until = created + 86400000000, key_until = created
WHERE state = 'queued' AND lane IS NULL AND arrival % 1000 > 50
"""

LAST_WRITE = "SELECT max(xmin::text::bigint) FROM job"
OLDER_TRANSACTIONS = "SELECT %s >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
"""True while a transaction runs, in any database, that began before the write: new snapshots still count it."""
OTHER_SNAPSHOTS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL
"""
"""Sessions, of autovacuum mostly, that may still see the jobs which have ended: the index keeps entries for them."""

STATISTICS = {
    "none": "The tables were never analysed.",
    "empty": "They were analysed when they were empty, then filled.",
    "drained": "They were analysed when they were full. Then most queued jobs ended.",
    "fresh": "They were analysed as they are.",
}
LARGE = ("job", "lane", "edge", "unique_key")
"""Tables that have a row for each of many jobs."""


class Stock:
    """A schema full of jobs, and a connection that can say what a verb does in it."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._db = connection
        self._schema = schema
        self._rules = PRESENT.schema(schema)
        self._names: dict[int, str] = {}

    def fill(self, statistics: str, **jobs: int) -> None:
        self._db.execute(script(self._schema).encode())
        self._db.execute(f"SET search_path = {self._schema}, {self._rules}".encode())
        query = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = %s::regnamespace"
        tables = [table for (table,) in self._db.execute(query, (self._schema,)).fetchall()]
        for table in tables:
            self._db.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
        if statistics == "empty":
            self._db.execute(f"ANALYZE {', '.join(tables)}".encode())
        self._db.execute(FILL.encode(), (list(jobs), list(jobs.values())))
        if statistics == "drained":
            self._db.execute(f"VACUUM ANALYZE {', '.join(tables)}".encode())
            self._db.execute(NEARLY_DRAINED)
            self._wait_until_all_see_the_last_write()
        self._db.execute(DERIVED.encode())
        if statistics == "fresh":
            self._db.execute(f"VACUUM ANALYZE {', '.join(tables)}".encode())
        names = "SELECT oid::int, relname FROM pg_class WHERE relkind IN ('r', 'i') AND relnamespace = %s::regnamespace"
        self._names = dict(self._db.execute(names, (self._schema,)).fetchall())

    def _wait_until_all_see_the_last_write(self) -> None:
        (written,) = self._db.execute(LAST_WRITE).fetchall()
        eventually_now(
            lambda: self._db.execute(OLDER_TRANSACTIONS, written).fetchall() == [(False,)], "older transactions to end"
        )
        eventually_now(lambda: not self._db.execute(OTHER_SNAPSHOTS).fetchall(), "older snapshots to end")

    def drop(self) -> None:
        self._db.execute(f"DROP SCHEMA IF EXISTS {self._rules}, {self._schema} CASCADE".encode())

    def _run(self, command: Command[Any] | str) -> None:
        if isinstance(command, str):
            self._db.execute(command.encode())
        else:
            self.ask(command)

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

    @contextmanager
    def rolled_back(self, *, generic: bool | None = None) -> Iterator[None]:
        """With plans for any parameters or for those of the call; None: as the server chooses."""
        with self._db.transaction(force_rollback=True):
            if generic is not None:
                which = "force_generic_plan" if generic else "force_custom_plan"
                self._db.execute(f"SET LOCAL plan_cache_mode = {which}".encode())
            yield

    def plans(self, command: Command[Any] | str) -> list[Scan]:
        """The scans in the plans of all statements inside the command."""
        with printed_plans(self._db) as plans:
            self._run(command)
        assert plans, "the server printed no plan"
        return [scan for plan in plans for scan in scans_of(plan, self._names)]

    def rows_read(self, command: Command[Any] | str) -> dict[str, int]:
        """How many rows the command reads from each table as a whole, and from each index."""
        before = self._counters()
        self._run(command)
        after = self._counters()
        return {name: after[name] - before[name] for name in after if after[name] > before[name]}

    def _counters(self) -> dict[str, int]:
        """Of this transaction: those of a table count the rows of sequential scans, those of an index its entries."""
        query = "SELECT oid::int, pg_stat_get_xact_tuples_returned(oid) FROM pg_class WHERE oid = ANY (%s)"
        return {self._names[oid]: rows for oid, rows in self._db.execute(query, (list(self._names),)).fetchall()}


def connect(server: "PostgresServer") -> psycopg.Connection[Any]:
    return psycopg.connect(server.url(), autocommit=True, application_name="holdfast-plans")


@contextmanager
def filled(server: "PostgresServer", statistics: str, **jobs: int) -> Iterator[Stock]:
    with connect(server) as connection:
        stock = Stock(connection, f"plans_{connection.info.backend_pid}")
        stock.drop()
        try:
            stock.fill(statistics, **jobs)
            yield stock
        finally:
            stock.drop()


@pytest.fixture(scope="module", params=STATISTICS)
def stock(request: pytest.FixtureRequest, postgres_server: "PostgresServer") -> Iterator[Stock]:
    jobs = {
        "finished": 40_000,
        "queued": 40_000,
        "blocked": 10_000,
        "unknown": 10_000,
        "waiting": 5_000,
        "leased": 500,
    }
    with filled(postgres_server, request.param, **jobs) as stock:
        yield stock


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
    "lanes by name": (Lanes(queue=QUEUE, lanes=("1", "2")), {"lane_pkey", "job_pkey"}),
    "prune": (Prune(), {"job_ended", "job_expires"}),
}  # fmt: skip
"""Verbs that may not depend on what else is stored, and indexes that serve them."""


def test_the_store_is_one_that_the_engine_could_have_made(stock: Stock) -> None:
    assert stock.ask(Audit()).problems == ()


def test_a_scan_of_a_whole_table_inside_a_function_is_noticed(stock: Stock) -> None:
    with stock.rolled_back():
        body = "BEGIN RETURN (SELECT count(*) FROM job WHERE note = p_note); END"
        stock.plans(f"CREATE FUNCTION walk(p_note text) RETURNS bigint LANGUAGE plpgsql AS $$ {body} $$; SELECT 1")
        assert Scan("SEQSCAN", "job", "") in stock.plans("SELECT walk('a')")
        assert stock.rows_read("SELECT walk('a')")["job"] == 105_500


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("verb", VERBS)
def test_the_plans_of_a_verb_use_its_indexes_and_no_table_as_a_whole(stock: Stock, verb: str, generic: bool) -> None:
    # R2
    command, indexes = VERBS[verb]
    with stock.rolled_back(generic=generic):
        scans = stock.plans(command)
    assert [scan for scan in scans if scan.table in LARGE and scan.how in ("SEQSCAN", "SAMPLESCAN")] == []
    assert indexes <= {scan.by for scan in scans}


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_a_bounded_number_of_rows(stock: Stock, verb: str, generic: bool) -> None:
    # R2
    command, _ = VERBS[verb]
    with stock.rolled_back(generic=generic):
        stock.ask(command)  # a first scan marks the index entries of jobs that have ended
    with stock.rolled_back(generic=generic):
        rows = stock.rows_read(command)
    assert {name: count for name, count in rows.items() if count > 1_000} == {}
    assert rows.keys().isdisjoint(LARGE)


BY_SEVERAL_TASKS = tuple(TaskClaim(task=task, lease_len=30 * SECOND) for task in (KNOWN, UNKNOWN, "absent"))
HOT: dict[str, Command[Any]] = {
    **{verb: VERBS[verb][0] for verb in ("claim", "settle", "settle and claim", "retry", "renew", "enqueue")},
    "claim many": Exchange(claim=claim(limit=500)),
    "claim several tasks": Exchange(
        claim=Claim(claim_id="several", worker="w", queues=(QueueClaim(QUEUE, BY_SEVERAL_TASKS),), limit=10)
    ),
}


def wrong_plans(stock: Stock) -> list[str]:
    """What the hot path reads that it must not read, with the plans that the server chooses."""
    found = []
    for verb, command in HOT.items():
        with stock.rolled_back():
            scans = stock.plans(command)
        found += [f"{verb}: {scan}" for scan in scans if scan.by == "job_state" or scan == ("SEQSCAN", "job", "")]
        with stock.rolled_back():
            rows = stock.rows_read(command)
        found += [f"{verb}: {count} rows of {name}" for name, count in rows.items() if count > 600]
    return found


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize(
    "queued",
    [
        40_000,  # here a plan with another index once looked cheaper to a server without statistics
        *(pytest.param(queued, marks=pytest.mark.long) for queued in (1_000, 10_000, 25_000, 100_000, 200_000)),
    ],
)
def test_no_plan_of_the_hot_path_depends_on_statistics(
    postgres_server: "PostgresServer", queued: int, statistics: str
) -> None:
    # R2
    jobs = {"finished": 0, "queued": queued, "blocked": 0, "unknown": 100, "waiting": 0, "leased": 100}
    with filled(postgres_server, statistics, **jobs) as stock:
        assert wrong_plans(stock) == []


def blocks_per_job(server: "PostgresServer", calls: int = 3, limit: int = 100, **jobs: int) -> float:
    """Blocks of memory touched per claimed job. Called before it counts: a first call reads catalogues and plans."""
    with filled(server, "fresh", **jobs) as stock:
        for number in range(6):  # by then the server uses plans for any parameters
            assert len(stock.ask(Exchange(claim=claim(number, 10))).leases) == 10
        touched = sum(stock.blocks(Exchange(claim=claim(number, limit))) for number in range(10, 10 + calls))
    return touched / (calls * limit)


def growth(server: "PostgresServer", scale: int) -> float:
    small = blocks_per_job(server, finished=0, queued=1_000)
    large = blocks_per_job(
        server,
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
