"""Which workers have died: a worker of another host by its session with the server, one of this host by its record.

Session: the keeper of a worker sends heartbeats over a connection of its own, and each heartbeat takes a lock for the
session of that connection (`heartbeat` in `rules/leases.sql`). When a process ends, however it ends, its kernel closes
its connections, the server ends the session, and the lock is free. A living worker loses its session too when its
connection is cut, but connects again for its next heartbeat. So a worker has ended if the lock is free and two
heartbeats are missing.

Record: a file lock that the process holds, which every other process of the host can test (`engines/host.py`). This is
faster, about a second, and needs no statement while no process ends.

Neither applies to a worker behind a proxy that shares sessions, seen from another host, nor to a host that loses its
power or its network: the server does not notice that. Then the leases have to expire.
"""

import logging

from holdfast.engines.host import ProcessRecords
from holdfast.errors import EngineUnavailable
from holdfast.model.command import Answer, Command
from holdfast.model.instants import Micros
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Heartbeat
from holdfast.runtime import Runtime

IDENTITY = "postgresql"
"""One folder of records for all stores: one server has many addresses, and the name of a process is unique."""

_logger = logging.getLogger("holdfast")


class SessionHeartbeat(Heartbeat, frozen=True, gc=False, kw_only=True):
    """A heartbeat over a connection that only this worker uses."""

    session_pid: int
    """The process of the session, as the server named it when the connection was made."""


class DisownSilentAnswer(Answer, frozen=True, gc=False, kw_only=True):
    leases: dict[str, int]
    """The workers that have ended, and how many leases of each expire now."""


class DisownSilent(Command[DisownSilentAnswer], frozen=True, gc=False, kw_only=True):
    """Disown the workers that have been silent for two heartbeats and whose session has ended."""

    watched_us: Micros


class EndedProcesses:
    """Which processes of this host have ended. The record of this process is made when its name is first needed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self._records: ProcessRecords | None = None
        self._failed = False
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
            records = ProcessRecords(IDENTITY, self._runtime)
            records.remove_old_records()
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

    def names(self) -> frozenset[str]:
        """Processes that have certainly ended, except those that `workers_of` found without a worker.

        Opens a file per process, so it runs in a thread: a host on which many processes were killed has many records.
        """
        records = self._records
        if records is None:
            return frozenset()
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
