"""What `holdfast doctor` finds: one finding per check, and the table of all checks.

A check asks one question about an App or its store. A finding is its answer: a level, what was found, what to do.
Checks that need no engine are in `holdfast.doctor`; an engine reports its own through `Engine.examine`.
"""

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

START_WORKER = "holdfast worker MODULE"
"""In texts of advice. The command line puts in the App that is in use."""


class Level(StrEnum):
    """How serious a finding is. Only a problem makes `holdfast doctor` fail; with `--strict` a warning does, too."""

    OK = "ok"
    NOTE = "note"
    """Nothing is wrong, but an operator should know it."""
    WARNING = "warning"
    """It works now. Under some condition, which the text names, jobs are lost, late or run twice."""
    PROBLEM = "problem"
    """Something does not work now, or acknowledged jobs can be lost without notice."""


class Finding(Struct, frozen=True):
    """The answer to one check."""

    check: str
    level: Level
    found: str
    advice: str = ""
    """What to do; empty if nothing has to be done."""


Report = Callable[[Finding], None]
"""Takes findings, from any thread."""


class DoctorSupport:
    """An engine's part in `holdfast doctor`."""

    async def examine(self, report: Report) -> None:
        """Report what is right and wrong with the store. Writes nothing, and works before `open`.

        Raises an error of the package if the store cannot be read further; what was reported before still counts.
        """

    async def known_processes(self) -> frozenset[str] | None:
        """The processes of this host that this one can see, by their records. None: it has no access to records."""
        return None


class Check(Struct, frozen=True):
    """One question. Its methods make the finding that answers it."""

    name: str
    question: str

    def ok(self, found: str) -> Finding:
        return Finding(self.name, Level.OK, found)

    def note(self, found: str, advice: str = "") -> Finding:
        return Finding(self.name, Level.NOTE, found, advice)

    def warning(self, found: str, advice: str) -> Finding:
        return Finding(self.name, Level.WARNING, found, advice)

    def problem(self, found: str, advice: str) -> Finding:
        return Finding(self.name, Level.PROBLEM, found, advice)


# The configuration and the tasks of the App

ADDRESS = Check("address", "Do all processes use the same store?")
ENVIRONMENT = Check("environment", "Are switches for debugging on?")
TIMEOUT = Check("timeout", "Can every timeout stop its handler?")
GRACE = Check("grace", "Does a stopping worker wait as long as its handlers may run?")
LEASE = Check("lease", "Does each lease fit the store's answer time, and how soon a lost host must be noticed?")
INTERVALS = Check("intervals", "Do workers look often enough for jobs and for expired leases?")

# The store, before it is opened

CONNECTION = Check("connection", "Does the store answer?")
OPENING = Check("opening", "Would a worker accept the store?")
VERSION = Check("version", "Is the server, or the SQLite library, new enough and without known faults?")
SCHEMA = Check("schema", "Do the stored tables, rules or formats fit this release?")
DURABILITY = Check("durability", "What does an acknowledged job survive?")
FILE_SYSTEM = Check("file_system", "Do locks and syncs hold on the file system of the store?")
PERMISSIONS = Check("permissions", "Can this process write the store's files, and can other users read or change them?")
DISK_SPACE = Check("disk_space", "Is there space left on the disk of the store?")
LOG_SIZE = Check("log_size", "Is SQLite's write-ahead log short?")
DAMAGE = Check("damage", "Has a sync failed, or were damaged files set aside?")
PROXY = Check("proxy", "Is a proxy that shares sessions between client and server, and do the settings say so?")
CONNECTIONS = Check("connections", "Does the server accept many more connections?")
TRANSACTIONS = Check("transactions", "Does an old transaction keep the server from removing dead rows?")
EVICTION = Check("eviction", "May the server delete jobs when its memory is full?")
MEMORY = Check("memory", "Has the server memory left?")
REPLICAS = Check("replicas", "Are as many replicas connected as each write waits for?")

# The open store

NOTIFICATIONS = Check("notifications", "Are workers notified of new jobs, or do they poll?")
CLOCK = Check("clock", "Do the clocks of this host, of the store and of the workers' hosts agree?")
WRITES = Check("writes", "Can processes write?")
WORKERS = Check("workers", "Are workers alive, and was none lost or stopped?")
PROCESS_RECORDS = Check("process_records", "Do the processes of this host see each other?")
QUEUES = Check("queues", "Does a live worker take from every queue that has jobs?")
TASKS = Check("tasks", "Does a live worker know the task of every queued job?")
LANES = Check("lanes", "Do jobs in lanes wait for the retry of the job that comes first?")
PAUSED = Check("paused", "Which queues are paused, and do jobs wait there?")
CLEARING = Check("clearing", "Is a clear of a queue unfinished?")
WAITING = Check("waiting", "How long have due jobs waited?")
DEPTH = Check("depth", "Is a queue near its limit?")
DEAD_LETTERS = Check("dead_letters", "How many jobs have failed for good?")
