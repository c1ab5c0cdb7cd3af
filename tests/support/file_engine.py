"""File stores for tests: short names for what they do over and over."""

from pathlib import Path
from typing import Any

from holdfast.engines import open_engine
from holdfast.engines.file.engine import FileEngine
from holdfast.engines.file.runner import FileRunner
from holdfast.model.job import JobRecord
from holdfast.model.observe import Audit


def file_store(path: Path, **options: Any) -> FileEngine:
    engine = open_engine(f"file://{path}", **options)
    assert isinstance(engine, FileEngine)
    return engine


def runner_of(engine: FileEngine) -> FileRunner:
    assert engine._thread is not None
    assert isinstance(engine._thread.runner, FileRunner)
    return engine._thread.runner


def read_ids(path: Path) -> set[str]:
    """The ids of all jobs, read by an engine that has just loaded the files."""
    engine = file_store(path)
    engine.open_now()
    try:
        assert engine.perform_now(Audit()).problems == ()
        replica = runner_of(engine).replica
        return {record.id for record in replica.snapshot_records() if isinstance(record, JobRecord)}
    finally:
        engine.close_now()
