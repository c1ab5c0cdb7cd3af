"""Log lines that say which job they belong to.

Add `JobFilter` to a logging handler: then every record that passes it, from any logger, has the attributes `job_id`,
`task`, `queue`, `attempt` and `worker` (empty outside of an attempt). Two formatters show them: one for people, one for
programs. Holdfast's own command line calls `configure`; as a library Holdfast configures no logging.
"""

import json
import logging
from datetime import UTC, datetime
from typing import IO, Any, Literal

from holdfast.model.text import shown
from holdfast.telemetry.current import CURRENT

FIELDS = ("job_id", "task", "queue", "attempt", "worker")


class JobFilter(logging.Filter):
    """Adds the current attempt to each record. Filters nothing out."""

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
    """`12:00:01 WARNING shop.mail: rate limit reached [charge 01JCQ7M3 attempt 2]`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        line = super().formatMessage(record)
        job_id = getattr(record, "job_id", "")
        if not job_id:
            return line
        task, attempt = getattr(record, "task", ""), getattr(record, "attempt", 0)
        return f"{line} [{shown(task)} {shown(job_id)} attempt {attempt}]"


class JsonFormatter(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for field in FIELDS:
            value = getattr(record, field, None)
            if value:
                line[field] = value
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(
    level: str = "info", style: Literal["text", "json"] | str = "text", stream: IO[str] | None = None
) -> logging.Handler:
    """Send all log lines to `stream` (standard error), each with its job. For programs, not for libraries."""
    handler = logging.StreamHandler(stream)
    handler.addFilter(JobFilter())
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler
