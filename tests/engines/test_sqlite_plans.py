"""The statements of the SQLite engine use the indexes that their comments name, whatever the tables contain."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.engines.sqlite.statements import load
from holdfast.engines.sqlite.store import EngineClock, StoreOptions
from holdfast.engines.sqlite.writer import Writer
from holdfast.runtime import SystemRuntime

NAMESPACE = "holdfast"
STATEMENTS = load("statements.sql", NAMESPACE)
SERVED = {name: re.findall(r"Index: (\w+)", text) for name, text in STATEMENTS.items()}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "plans.db"
    runtime = SystemRuntime()
    writer = Writer(StoreOptions(str(path), NAMESPACE, "durable", 1.0), runtime, EngineClock(runtime))
    writer.prepare(auto_migrate=True)
    writer.close()
    with closing(sqlite3.connect(path)) as database:
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
        "drop_queue",
    }
    for name, text in STATEMENTS.items():
        if text.lstrip("-").startswith(("BEGIN", "CREATE")) or name in walks:
            continue
        steps = plan(database, name)
        scans = [step for step in steps.splitlines() if step.startswith("SCAN") and "INDEX" not in step]
        assert scans == [], (name, steps)


def test_every_statement_has_a_name_and_is_used() -> None:
    source = Path(__file__).parents[2] / "src" / "holdfast" / "engines" / "sqlite"
    code = "\n".join(path.read_text() for path in source.glob("*.py"))
    assert [name for name in STATEMENTS if f'"{name}"' not in code] == []


def test_a_claim_costs_the_same_however_many_jobs_wait_or_have_ended(tmp_path: Path) -> None:
    """Virtual-machine steps per claimed job, at a thousand jobs and at more than half a million."""
    from sqlite_cost import fill, steps_per_claimed_job

    small = fill(tmp_path / "small.db", queued=1_000, finished=0, blocked=0, unclaimed=0)
    large = fill(tmp_path / "large.db", queued=200_000, finished=200_000, blocked=50_000, unclaimed=100_000)
    ratio = steps_per_claimed_job(large) / steps_per_claimed_job(small)
    assert ratio <= 1.3
