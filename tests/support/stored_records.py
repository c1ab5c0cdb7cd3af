"""The stored records of many jobs."""

from holdfast.engine import Engine
from holdfast.model.job import JobKey, JobRecord

PAGE_SIZE = 500


async def records_of(engine: Engine, queue: str, ids: list[str]) -> list[JobRecord]:
    """All of them; fails if one is missing."""
    found: list[JobRecord | None] = []
    for start in range(0, len(ids), PAGE_SIZE):
        found += (await engine.get(*(JobKey(queue, name) for name in ids[start : start + PAGE_SIZE]))).jobs
    assert None not in found, "a job is lost"
    return [record for record in found if record is not None]
