"""Signals while a worker command starts and ends. In between the worker handles them (`worker/stop_signals.py`).

Until the worker runs it holds no job, so a signal ends the command at once, with exit code 0. That also holds for
process 1 of a container, which a SIGTERM without a handler would not reach. After the worker has stopped, a signal
changes nothing: the command is about to end.
"""

import signal
from types import TracebackType
from typing import Any, Self

NUMBERS = tuple(
    number for name in ("SIGTERM", "SIGINT", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)


class StoppedBySignal(BaseException):
    """A signal came before the worker ran."""


class StartSignals:
    """A context manager around the whole command. `managed`: the worker has a manager, which handles SIGHUP."""

    def __init__(self, *, managed: bool) -> None:
        self._managed = managed
        self._before: dict[int, Any] = {}
        self._has_stopped = False

    def worker_has_stopped(self) -> None:
        self._has_stopped = True

    def _stop(self, number: int, _: object) -> None:
        if not self._has_stopped and not (self._managed and number == getattr(signal, "SIGHUP", None)):
            raise StoppedBySignal

    def __enter__(self) -> Self:
        for number in NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # such as by `nohup`
                self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
        return isinstance(error, StoppedBySignal)
