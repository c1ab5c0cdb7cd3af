"""The file of a SQLite store is replaced under several busy processes, the disk is full again and again."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_store import store

SUPPORT = Path(__file__).parents[1] / "support"
PRODUCERS = 3


def ids_in(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as db:
        return {row[0] for row in db.execute("SELECT id FROM holdfast_job")}


def replace_under_load(folder: Path) -> int:
    """Play it once. Answers the number of acknowledged jobs."""
    path, old = folder / "x.db", folder / "old.db"
    asyncio.run(store(path).migrate())
    producers = [
        subprocess.Popen(
            [sys.executable, SUPPORT / "producer_app.py", path, f"p{number}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PRODUCERS)
    ]
    first_lines = [producer.stdout.readline().strip() for producer in producers if producer.stdout]
    for suffix in ("", "-wal", "-shm"):
        (folder / f"x.db{suffix}").rename(folder / f"old.db{suffix}")
    asyncio.run(store(path).migrate())
    acknowledged = {line for line in first_lines if line}
    for producer in producers:
        out, errors = producer.communicate(timeout=60)
        acknowledged |= set(out.split())
        assert producer.returncode == 0, errors
        assert errors.startswith(("EngineUnavailable", "OutcomeUnknown")), errors
    assert len(first_lines) == PRODUCERS
    missing = acknowledged - ids_in(old)
    assert not missing, f"acknowledged and lost: {sorted(missing)[:5]}"
    assert ids_in(path) == set()
    return len(acknowledged)


def test_no_acknowledged_job_is_lost_when_the_file_is_replaced_under_load(tmp_path: Path) -> None:
    assert replace_under_load(tmp_path) >= PRODUCERS


@pytest.mark.chaos
@pytest.mark.parametrize("number", range(15))
def test_no_acknowledged_job_is_lost_however_often_the_file_is_replaced(tmp_path: Path, number: int) -> None:
    assert replace_under_load(tmp_path) >= PRODUCERS


@pytest.mark.chaos
@pytest.mark.parametrize("number", range(10))
def test_jobs_are_settled_each_time_the_disk_is_full_and_accepted_when_it_is_freed(tmp_path: Path, number: int) -> None:
    path = tmp_path / "x.db"
    for _ in range(3):
        played = subprocess.run(
            [sys.executable, SUPPORT / "full_disk_app.py", path, "settle"],
            capture_output=True,
            timeout=100,
            check=False,
        )
        assert played.returncode == 0, played.stderr.decode()
        path.unlink()
