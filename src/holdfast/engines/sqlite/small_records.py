"""Pools and workers: few small records, read by name and written at once."""

from collections.abc import Callable
from typing import TypeVar

from holdfast.engines.ledger.state import Record, State
from holdfast.engines.sqlite.database import Database
from holdfast.engines.sqlite.rows import pack, unpack_pool, unpack_worker
from holdfast.model.records import PoolRecord, WorkerRecord

R = TypeVar("R")


class SmallRecords(State):
    """The part of the state that stores them."""

    db: Database

    def _swap_small(self, kind: str, name: str, record: Record, *, there: bool) -> None:
        if there:
            self.db.write("put_small_record", kind, name, pack(record))
        else:
            self.db.write("drop_small_record", kind, name)

    def _small_record(self, kind: str, name: str, unpack: Callable[[bytes], R]) -> R | None:
        row = self.db.one("small_record", kind, name)
        return None if row is None else unpack(row[0])

    def _small_records(self, kind: str, unpack: Callable[[bytes], R]) -> list[R]:
        return [unpack(row[0]) for row in self.db.rows("small_records", kind)]

    def pool(self, name: str) -> PoolRecord | None:
        return self._small_record("pool", name, unpack_pool)

    def pools(self) -> list[PoolRecord]:
        return self._small_records("pool", unpack_pool)

    def worker(self, name: str) -> WorkerRecord | None:
        return self._small_record("worker", name, unpack_worker)

    def workers(self) -> list[WorkerRecord]:
        return self._small_records("worker", unpack_worker)
