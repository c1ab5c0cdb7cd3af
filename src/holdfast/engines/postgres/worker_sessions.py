"""Which workers have died: a worker of another host by its session with the server, one of this host by its record.

Session: the keeper of a worker sends heartbeats over a connection of its own, and each heartbeat takes a lock for the
session of that connection (`heartbeat` in `rules/leases.sql`). When a process ends, however it ends, its kernel closes
its connections, the server ends the session, and the lock is free. A living worker loses its session too when its
connection is cut, but connects again for its next heartbeat. So a worker has ended if the lock is free and two
heartbeats are missing.

Record: a file lock that the process holds, which every other process of the host can test
(`engines/ended_processes.py`). This is faster, about a second, and needs no statement while no process ends.

Neither applies to a worker behind a proxy that shares sessions, seen from another host, nor to a host that loses its
power or its network: the server does not notice that. Then the leases have to expire.
"""

from holdfast.model.command import Answer, Command
from holdfast.model.instants import Micros
from holdfast.model.work import Heartbeat


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
