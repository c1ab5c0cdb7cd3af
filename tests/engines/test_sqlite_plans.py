"""The statements of the SQLite engine use the indexes that their comments name, whatever the tables contain.

SQLite has statistics only if an operator ran ANALYZE, and keeps them until the next one. So the plans are made without
any, and with those of an empty store, of a full one, and of a full one that has been drained since.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlite_cost import fill, steps_per_claimed_job
from sqlite_store import a_claim, job, store

from holdfast.engines.sqlite import state
from holdfast.engines.sqlite.reader import Reader
from holdfast.engines.sqlite.rows import STATE_NUMBERS
from holdfast.engines.sqlite.statements import load
from holdfast.model.observe import Find
from holdfast.model.produce import Enqueue
from holdfast.model.states import JobState
from holdfast.model.work import Exchange

NAMESPACE = "holdfast"
STATEMENTS = load("statements.sql", NAMESPACE)
ENDED = STATE_NUMBERS[JobState.SUCCEEDED]
SERVED = {name: re.findall(r"Index: (\w+)", text) for name, text in STATEMENTS.items()}


@pytest.fixture(scope="module", params=["none", "empty", "drained", "fresh"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("plans") / "plans.db"
    fill(path, queued=0, finished=0, blocked=0, unclaimed=0).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        if request.param == "empty":
            database.execute("ANALYZE")
        fill(path, queued=2_000, finished=2_000, blocked=500, unclaimed=500).close()
        if request.param in ("drained", "fresh"):
            database.execute("ANALYZE")
            assert database.execute("SELECT count(*) FROM sqlite_stat1 WHERE stat >= '4000'").fetchone() != (0,)
        if request.param == "drained":
            database.execute(f"UPDATE {NAMESPACE}_job SET state = ? WHERE arrival % 100 > 1", (ENDED,))
    with closing(sqlite3.connect(path)) as database:  # statistics are read when a connection is opened
        yield database


def plan(database: sqlite3.Connection, name: str) -> str:
    text = STATEMENTS[name]
    parameters = [0] * text.count("?")
    return "\n".join(row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {text}", parameters))


@pytest.mark.parametrize("name", [name for name, indexes in SERVED.items() if indexes])
def test_a_statement_is_served_by_the_index_it_names(database: sqlite3.Connection, name: str) -> None:
    steps = plan(database, name)
    for index in SERVED[name]:
        assert f"{NAMESPACE}_{index}" in steps, steps


@pytest.mark.parametrize(
    "name", ["ready", "next_ready_task", "due", "next_due", "next_in_lane", "key_taker", "newest_dead"]
)
def test_an_ordered_answer_comes_out_of_its_index_without_sorting(database: sqlite3.Connection, name: str) -> None:
    steps = plan(database, name)
    assert "TEMP B-TREE" not in steps, steps
    assert "SCAN" not in steps, steps


def test_no_hot_statement_reads_a_whole_table(database: sqlite3.Connection) -> None:
    walks = {
        "newest",
        "newest_queued",
        "live_jobs",
        "blocked_jobs",
        "count_states",
        "all_jobs",
        "all_edges",
        "queues",
        "drop_queue",
        "any_edge",
        "ended_parent",
    }
    for name, text in STATEMENTS.items():
        if text.lstrip("-").startswith(("BEGIN", "CREATE")) or name in walks:
            continue
        steps = plan(database, name)
        scans = [
            step
            for step in steps.splitlines()
            if step.startswith("SCAN") and "INDEX" not in step and "CONSTANT ROW" not in step
        ]
        assert scans == [], (name, steps)


def test_every_statement_has_a_name_and_is_used() -> None:
    source = Path(__file__).parents[2] / "src" / "holdfast" / "engines" / "sqlite"
    code = "\n".join(path.read_text() for path in source.glob("*.py"))
    assert [name for name in STATEMENTS if f'"{name}"' not in code] == []


def test_a_claim_costs_the_same_however_many_jobs_wait_or_have_ended(tmp_path: Path) -> None:
    """Virtual-machine steps per claimed job, at a thousand jobs and at more than half a million."""
    small = fill(tmp_path / "small.db", queued=1_000, finished=0, blocked=0, unclaimed=0)
    large = fill(tmp_path / "large.db", queued=200_000, finished=200_000, blocked=50_000, unclaimed=100_000)
    ratio = steps_per_claimed_job(large) / steps_per_claimed_job(small)
    assert ratio <= 1.3


def test_pages_of_a_large_backlog_are_read_from_the_table_and_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each page would sort all queued jobs: 200,000 of them took 52 seconds, and now take 3."""
    engine = store(tmp_path / "jobs.db")
    engine.open_now()
    try:
        for queue in ("q", "other"):
            groups = tuple(job(f"job-{number}", queue=queue) for number in range(100))
            engine.perform_now(Enqueue(groups=groups))
        engine.perform_now(Exchange(claim=a_claim("w", limit=30)))
        assert engine._reader is not None
        reader = engine._reader.runner
        assert isinstance(reader, Reader)
        used: list[str] = []
        rows = reader._state.db.rows

        def noting(name: str, *values: object) -> Any:
            used.append(name)
            return rows(name, *values)

        monkeypatch.setattr(reader._state.db, "rows", noting)

        def pages(dense_from: int) -> list[list[str]]:
            monkeypatch.setattr(state, "DENSE_FROM", dense_from)
            used.clear()
            found, cursor = [], None
            while True:
                find = Find(queue="q", state=JobState.QUEUED, limit=7, cursor=cursor)
                answer = engine.perform_now(find)
                found.append([one.id for one in answer.jobs])
                cursor = answer.cursor
                if cursor is None:
                    return found

        monkeypatch.setattr(state, "ROW_COST", 1)
        sorted_pages, by_index = pages(1_000), set(used)
        assert pages(1) == sorted_pages
        assert [len(page) for page in sorted_pages] == [7] * 10
        assert ("newest_queued" in by_index, "newest_queued" in used, "newest" in used) == (True, False, True)
        monkeypatch.setattr(state, "ROW_COST", 1_000)
        assert pages(1) == sorted_pages
        assert "newest" not in used, "too few of the rows are queued jobs of this queue"
    finally:
        engine.close_now()
