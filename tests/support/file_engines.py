"""A file store for tests of its faults: short names for what they do over and over. `sqlite_store` has the jobs."""

from pathlib import Path
from typing import Any

from holdfast.engines import open_engine
from holdfast.engines.file.engine import FileEngine
from holdfast.engines.file.runner import FileRunner


def file_store(path: Path, **options: Any) -> FileEngine:
    engine = open_engine(f"file://{path}", **options)
    assert isinstance(engine, FileEngine)
    return engine


def runner_of(engine: FileEngine) -> FileRunner:
    assert engine._thread is not None
    assert isinstance(engine._thread.runner, FileRunner)
    return engine._thread.runner
