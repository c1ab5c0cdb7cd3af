"""Which processes of this host have ended, for an engine whose stores are servers.

Each process holds a file lock until it ends, however it ends; every other process of the host can test it
(`engines/host.py`). A check takes no call to the server while no process ends.
"""

import logging

from holdfast.engines.host import ProcessRecords
from holdfast.errors import EngineUnavailable
from holdfast.model.records import WorkerRecord
from holdfast.runtime import Runtime

_logger = logging.getLogger("holdfast")


class EndedProcesses:
    """The record of this process is made when its name is first needed.

    `identity`: one folder of records for all stores of an engine. One server has many addresses, and the name of a
    process is unique.
    """

    def __init__(self, identity: str, runtime: Runtime) -> None:
        self._identity = identity
        self._runtime = runtime
        self._lock = runtime.lock()
        self._records: ProcessRecords | None = None
        self._failed = False
        self._removed_old = False
        self._without_worker: frozenset[str] = frozenset()
        """Processes that have ended and that no worker record names any more."""
        self._once_without_worker: frozenset[str] = frozenset()
        """The same, as the last check saw it: a process that is just making its record looks ended for a moment."""

    @property
    def process_name(self) -> str:
        """Empty: this system has no records."""
        with self._lock:
            if self._records is None and not self._failed:
                self._records = self._made()
            return "" if self._records is None else self._records.name

    def _made(self) -> ProcessRecords | None:
        try:
            records = ProcessRecords(self._identity, self._runtime)
        except (OSError, EngineUnavailable) as error:
            self._failed = True
            _logger.warning(
                "Other processes of this host cannot see when this one ends: %s. Set XDG_RUNTIME_DIR to a folder that "
                "can be written.",
                error,
            )
            return None
        return records

    def keep_record(self) -> None:
        """The record of this process outlives `close`."""
        with self._lock:
            if self._records is not None:
                self._records.outlives_close = True

    def all_names(self) -> frozenset[str] | None:
        """Every process of this host that has a record, this one included. None: this system has no records."""
        if not self.process_name or (records := self._records) is None:
            return None
        return frozenset(records.names())

    def names(self) -> frozenset[str]:
        """Processes that have certainly ended, except those that `workers_of` found without a worker.

        Opens a file per process, so it runs in a thread: a host on which many processes were killed has many records.
        The first call removes the old ones.
        """
        records = self._records
        if records is None:
            return frozenset()
        if not self._removed_old:
            self._removed_old = True
            records.remove_old_records()
        names = frozenset(records.names()) - {records.name}
        self._without_worker = without_worker = self._without_worker & names
        return frozenset(name for name in names - without_worker if records.has_ended(name))

    def workers_of(self, ended: frozenset[str], workers: tuple[WorkerRecord, ...]) -> tuple[str, ...]:
        """The workers of these processes. A process without one, twice, is not tested again."""
        without_worker = ended - {record.process for record in workers}
        self._without_worker |= without_worker & self._once_without_worker
        self._once_without_worker = without_worker
        return tuple(record.worker for record in workers if record.process in ended)

    def close(self) -> None:
        with self._lock:
            records, self._records = self._records, None
        if records is not None:
            records.close()
