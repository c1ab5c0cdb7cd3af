"""A peer: the SQLite storage of Huey, set to durable commits."""

from pathlib import Path

from benchmarks.apps import PAYLOAD
from benchmarks.measure import per_second_and_cpu_us


def singles_and_cpu_us(path: Path, calls: int = 300) -> tuple[float, float]:
    """Enqueues per second, one after the other, and microseconds of CPU for each."""
    # Imported here: `benchmarks.compare` also runs in checkouts whose environment has no Huey.
    from huey import SqliteHuey  # type: ignore[import-untyped]

    huey = SqliteHuey(filename=str(path), fsync=True)
    enqueue = huey.task()(_nothing)
    try:
        return per_second_and_cpu_us(calls, lambda: enqueue(PAYLOAD))
    finally:
        huey.storage.close()


def _nothing(text: str) -> None: ...
