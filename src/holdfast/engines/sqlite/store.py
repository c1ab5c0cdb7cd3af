"""What all connections of one engine share: the options of the store."""

import os
from dataclasses import dataclass, field, replace

from holdfast.engines.sqlite.lock_holder import gate_holder_waits, locked_for_too_long
from holdfast.engines.sqlite.store_file import StoreFile
from holdfast.errors import EngineUnavailable
from holdfast.file_locks import Gate, gate_error
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
    real_path: str = field(init=False)
    """The file that `path` leads to. SQLite puts its own files beside it, and so do we."""

    def __post_init__(self) -> None:
        self.file = StoreFile(self.path)
        self.follow_links()

    def follow_links(self) -> None:
        self.real_path = os.path.realpath(self.path)

    @property
    def gate_path(self) -> str:
        """One gate for all links to the file."""
        return self.real_path + "-gate"

    def gate_error(self, reason: str = "") -> EngineUnavailable:
        """The error after a wait for the gate."""
        if gate_holder_waits(self.path, self.gate_path):
            return locked_for_too_long(self.path)
        return gate_error(self.gate_path, self.busy_timeout_s, reason)

    def with_durability(self, durability: str) -> "StoreOptions":
        """The same store, of another class."""
        options = replace(self, durability=durability)
        options.file = self.file
        return options

    def open_gate(self, runtime: Runtime) -> Gate:
        """The gate of all writers of the file, in all processes. Each user of it opens it for itself."""
        try:
            gate = runtime.fs.gate(self.gate_path, self.busy_timeout_s, guarded=self.path)
        except OSError as error:
            raise EngineUnavailable(
                f"{self.path} cannot be opened for writing ({error}). Check that its folder exists and that this "
                "process may write to it."
            ) from error
        gate.make_error = self.gate_error
        return gate
