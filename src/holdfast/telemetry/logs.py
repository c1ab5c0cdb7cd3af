"""Log lines that say which job they belong to.

Add `JobFilter` to a logging handler: then every record that passes it, from any logger, has the attributes `job_id`,
`task`, `queue`, `attempt` and `worker` (empty outside of an attempt). Two formatters show them: one for people, one for
programs. Holdfast's own command line calls `configure`; as a library Holdfast configures no logging.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from holdfast.model.text import ErrorInfo, describe, shown
from holdfast.telemetry.current import CURRENT

LogFormat = Literal["text", "json"]

OWN_LOGGER = "holdfast"
"""The parent of all loggers of Holdfast."""
FIELDS = ("job_id", "task", "queue", "attempt", "worker")


class LogTarget(Protocol):
    """A text stream, as far as a log needs it."""

    def write(self, text: str, /) -> object: ...


class JobFilter(logging.Filter):
    """Adds `job_id`, `task`, `queue`, `attempt` and `worker` of the current attempt to each record. Drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "job_id"):
            attempt = CURRENT.get(None)
            if attempt is None:
                record.job_id = record.task = record.queue = record.worker = ""
                record.attempt = 0
            else:
                lease = attempt.lease
                record.job_id, record.task, record.queue = lease.id, lease.task, lease.queue
                record.attempt, record.worker = lease.attempt, attempt.worker
        return True


class TextFormatter(logging.Formatter):
    """Lines for people: `12:00:01 WARNING shop.mail: rate limit reached [charge 01JCQ7M3 attempt 2]`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        line = super().formatMessage(record)
        job_id = getattr(record, "job_id", "")
        if not job_id or job_id in line:
            return line
        task, attempt = getattr(record, "task", ""), getattr(record, "attempt", 0)
        return f"{line} [{shown(task)} {shown(job_id)} attempt {attempt}]"


def iso_text(at: datetime) -> str:
    """An instant as JSON has it."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


class JsonFormatter(logging.Formatter):
    """One JSON object per line. Times and errors are written as in the output of `--json`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": iso_text(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for field in FIELDS:
            value = getattr(record, field, None)
            if value:
                line[field] = value
        error = getattr(record, "error", None)
        if isinstance(error, ErrorInfo):
            line["error"] = {"type": error.type, "message": error.message, "traceback": error.traceback}
        elif record.exc_info and record.exc_info[1] is not None:
            info = describe(record.exc_info[1])
            line["error"] = {"type": info.type, "message": info.message, "traceback": info.traceback}
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(
    level: str = "info", style: LogFormat = "text", stream: LogTarget | None = None
) -> logging.Handler | None:
    """Log to `stream` (standard error) what no other handler takes. For programs, not for libraries.

    The handler is logging's handler of last resort. So it is used as long as the application has no handlers of its
    own, and no line is written twice. `level` is that of Holdfast's loggers; the root's level stays as it is. None: the
    application has handlers for Holdfast's lines already, and nothing was changed.
    """
    own = logging.getLogger(OWN_LOGGER)
    if own.hasHandlers():
        return None
    handler = logging.StreamHandler(stream)
    handler.addFilter(JobFilter())
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.lastResort = handler
    if own.level == logging.NOTSET:
        own.setLevel(level.upper())
    return handler


def enable_own_loggers() -> None:
    """Enable Holdfast's loggers: `dictConfig` disables all loggers that exist and that it does not name.

    To silence one of them, set its level.
    """
    for name in tuple(logging.root.manager.loggerDict):
        if name == OWN_LOGGER or name.startswith(f"{OWN_LOGGER}."):
            logging.getLogger(name).disabled = False
