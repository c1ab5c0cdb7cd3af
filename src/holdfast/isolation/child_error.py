"""The exception of a handler that ran in another process, as async middleware sees it."""

from holdfast.errors import dotted_name
from holdfast.model.outcome import Outcome
from holdfast.model.text import ErrorInfo


class ChildError(Exception):
    """The handler of a task with `isolate="process"` raised, or its process ended.

    `info` has the type, the message and the traceback, as texts from that process; no exception is rebuilt here.
    `caused_by(ValueError)` is true if the exception was of this class, or of one that is derived from it.
    """

    def __init__(self, info: ErrorInfo, outcome: Outcome, kinds: tuple[str, ...] = ()) -> None:
        self.info = info
        self.outcome = outcome
        """What the attempt ends with, unless middleware decides otherwise."""
        self._kinds = kinds
        super().__init__(f"{info.type}: {info.message}")

    def caused_by(self, kind: type[BaseException]) -> bool:
        """True if the exception was of this class, by its name, or of a class derived from it."""
        return dotted_name(kind) in self._kinds
