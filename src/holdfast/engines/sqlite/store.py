"""What all connections of one engine share: the options of the store, its clock, and the form of a result."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.engines.sqlite.store_file import StoreFile
from holdfast.errors import EngineUnavailable
from holdfast.file_locks import Gate
from holdfast.model.instants import At
from holdfast.runtime import Runtime


@dataclass(slots=True)
class StoreOptions:
    """Which database file, and how it is opened."""

    path: str
    namespace: str
    durability: str
    busy_timeout_s: float
    """How long a writer waits at the gate, and a statement for a program that locked the file without passing it."""

    fast_paths: bool = True
    """False turns off `fast_state.py`, for tests."""
    file: StoreFile = field(init=False)

    def __post_init__(self) -> None:
        self.file = StoreFile(self.path)

    def open_gate(self, runtime: Runtime) -> Gate:
        """The gate of all writers of the file, in all processes. Each user of it opens it for itself."""
        try:
            return runtime.fs.gate(self.path + "-gate", self.busy_timeout_s, guarded=self.path)
        except OSError as error:
            raise EngineUnavailable(
                f"{self.path} cannot be opened for writing ({error}). Check that its folder exists and that this "
                "process may write to it."
            ) from error


class EngineClock:
    """The clock of one engine. Engine time never goes back, so the latest answered time is kept."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.last = At(0, 0)
        """The latest time in an answer of any connection of this process."""

    def now(self) -> At:
        return At(self._runtime.wall(), self._runtime.boot())


class CommandResult(NamedTuple):
    """The result of one command: an answer or an error, and the topics to notify."""

    answer: Any
    error: BaseException | None
    topics: frozenset[str]
