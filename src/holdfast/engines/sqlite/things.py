"""Pools, workers and schedules: few, small, read by name, and written at once."""

from collections.abc import Callable
from typing import TypeVar

from holdfast.engines.ledger.state import Record, State
from holdfast.engines.sqlite.database import Database
from holdfast.engines.sqlite.rows import pack, unpack_pool, unpack_schedule, unpack_worker
from holdfast.model.records import PoolRecord, ScheduleRecord, WorkerRecord

R = TypeVar("R")


class Things(State):
    """The part of the state that they are."""

    db: Database

    def _swap_thing(self, kind: str, name: str, record: Record, *, there: bool) -> None:
        if there:
            self.db.write("put_thing", kind, name, pack(record))
        else:
            self.db.write("drop_thing", kind, name)

    def _thing(self, kind: str, name: str, unpack: Callable[[bytes], R]) -> R | None:
        row = self.db.one("thing", kind, name)
        return None if row is None else unpack(row[0])

    def _things(self, kind: str, unpack: Callable[[bytes], R]) -> list[R]:
        return [unpack(row[0]) for row in self.db.rows("things", kind)]

    def pool(self, name: str) -> PoolRecord | None:
        return self._thing("pool", name, unpack_pool)

    def pools(self) -> list[PoolRecord]:
        return self._things("pool", unpack_pool)

    def worker(self, name: str) -> WorkerRecord | None:
        return self._thing("worker", name, unpack_worker)

    def workers(self) -> list[WorkerRecord]:
        return self._things("worker", unpack_worker)

    def schedule(self, name: str) -> ScheduleRecord | None:
        return self._thing("schedule", name, unpack_schedule)

    def schedules(self) -> list[ScheduleRecord]:
        return self._things("schedule", unpack_schedule)
