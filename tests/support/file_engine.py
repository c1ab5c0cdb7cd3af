"""File stores for tests: short names for what they do over and over."""

import subprocess
import sys
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


READ_IDS = """
import asyncio, sys
from holdfast.engines import open_engine
from holdfast.model.observe import Find
from holdfast.model.states import JobState

async def main():
    engine = open_engine(sys.argv[1])
    await engine.open()
    for stats in (await engine.stats()).queues:
        for state in JobState:
            cursor, more = None, True
            while more:
                page = await engine.find(Find(queue=stats.queue, state=state, limit=1000, cursor=cursor))
                print(*(job.id for job in page.jobs))
                cursor, more = page.cursor, page.cursor is not None
    print(*(await engine.audit()), file=sys.stderr)
    await engine.close()

asyncio.run(main())
"""


def read_ids(path: Path) -> set[str]:
    """Read by another process: what is in the files, not what an engine of ours believes."""
    answer = subprocess.run(
        [sys.executable, "-c", READ_IDS, f"file://{path}"], capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stderr.strip()) == (0, "")
    return set(answer.stdout.split())
