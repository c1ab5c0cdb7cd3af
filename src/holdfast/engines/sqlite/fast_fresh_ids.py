"""Fast path: an enqueue does not look up an id that its caller has just generated.

No stored job can have such an id, and the unique index `job_id` refuses the insert if one has. Then the transaction is
rolled back, and the command runs again with the look-up, which finds the stored job (`with_look_ups`). Saves one query
per job of an enqueue.
"""

from collections.abc import Callable
from typing import TypeVar

from holdfast.engines.sqlite.state import SqliteState
from holdfast.model.job import JobRecord

T = TypeVar("T")


class FreshIds(SqliteState):
    trusts_fresh_ids = True

    def job_of_fresh_id(self, queue: str, job_id: str) -> JobRecord | None:
        # Another job of the same transaction may have the id, so the cache is read.
        return self._jobs.get((queue, job_id)) if self.trusts_fresh_ids else self.job(queue, job_id)


def with_look_ups(state: SqliteState, run: Callable[[], T]) -> T:
    """Call `run` while the state looks up every id."""
    state.trusts_fresh_ids = False
    try:
        return run()
    finally:
        state.trusts_fresh_ids = True
