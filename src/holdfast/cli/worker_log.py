"""The log of a worker that was started from the command line: standard error, each line with its job.

Where the worker's lines are shown as well, what they tell already is left out of the log.
"""

import logging
import sys

from holdfast.cli.escape import safe
from holdfast.config import Config
from holdfast.telemetry.logs import configure

TOLD = frozenset({"news", "reaper"})
"""Modules of the worker that log what also goes out as an event."""


def set_up(config: Config, *, lines: bool) -> logging.Handler:
    handler = configure(config.log_level, config.log_format, sys.stderr)
    if config.log_format == "text":
        handler.setFormatter(_Safe(handler.formatter))
    if lines:
        handler.addFilter(_not_told)
    return handler


def _not_told(record: logging.LogRecord) -> bool:
    if record.name not in ("holdfast.worker", "holdfast.reaper") or record.levelno >= logging.ERROR:
        return True
    return record.levelno >= logging.WARNING and record.module not in TOLD


class _Safe(logging.Formatter):
    """Another formatter's text, with nothing in it that a terminal would obey."""

    def __init__(self, inner: logging.Formatter | None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(safe(line.expandtabs(4)) for line in self._inner.format(record).split("\n"))
