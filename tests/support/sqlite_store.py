"""A SQLite store for tests of its faults: short names for what they do over and over."""

from pathlib import Path
from typing import Any

from holdfast.engines import open_engine
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.writer import Writer
from holdfast.model.instants import SECOND
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Lease, QueueClaim, Settlement, TaskClaim

QUEUE = "q"


def store(path: Path, **options: Any) -> SqliteEngine:
    engine = open_engine(f"sqlite:///{path}", **options)
    assert isinstance(engine, SqliteEngine)
    return engine


def writer_of(engine: SqliteEngine) -> Writer:
    assert engine._writer is not None
    assert isinstance(engine._writer.runner, Writer)
    return engine._writer.runner


def job(name: str, *, queue: str = QUEUE, **options: Any) -> Group:
    return Group((NewJob(queue=queue, id=name, task="t", **options),))


def a_claim(worker: str, number: int = 0, *, queue: str = QUEUE, limit: int = 10, lease_us: int = 30 * SECOND) -> Claim:
    tasks = (TaskClaim(task="t", lease_len=lease_us),)
    return Claim(claim_id=f"{worker}-{number:030d}", worker=worker, queues=(QueueClaim(queue, tasks),), limit=limit)


def success(lease: Lease) -> Settlement:
    """The settlement of a lease that has succeeded."""
    return Settlement(queue=lease.queue, id=lease.id, token=lease.token, target=JobState.SUCCEEDED)
