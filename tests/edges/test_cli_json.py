"""One JSON dialect: what `--json` prints, events, and the log write times, durations and errors the same way."""

import json
import logging
from datetime import datetime, timedelta

from msgspec.structs import fields

from holdfast import ErrorInfo, events
from holdfast.cli.json_output import EVENT_DURATIONS, event_data, to_data
from holdfast.model.instants import SECOND
from holdfast.telemetry.logs import JsonFormatter
from holdfast.telemetry.wire import KINDS
from holdfast.views import moment

NOON_S = 1_800_000_000
NOON = "2027-01-15T08:00:00.000000+00:00"
COUNTS = {"attempt", "losses", "slots", "running", "released", "count", "depth", "limit", "max_attempts"}
"""Whole numbers in events that are no times."""


def test_an_instant_is_iso_text_in_utc_with_microseconds() -> None:
    event = events.QueueEmpty(at=NOON_S * SECOND, queue="default")
    record = logging.LogRecord("shop", logging.INFO, __file__, 1, "hello", (), None)
    record.created = NOON_S
    assert event_data(event)["at"] == NOON
    assert to_data(moment(NOON_S * SECOND)) == NOON
    assert to_data(datetime.fromisoformat("2027-01-15T09:00:00+01:00")) == NOON
    assert json.loads(JsonFormatter().format(record))["at"] == NOON


def test_a_duration_is_seconds() -> None:
    event = events.Retrying(
        at=NOON_S * SECOND, queue="default", job_id="a", task="t", delay=1_500_000, ran=250_000, max_attempts=3
    )
    data = event_data(event)
    assert (data["delay"], data["ran"], data["max_attempts"]) == (1.5, 0.25, 3)
    assert to_data(timedelta(milliseconds=1500)) == 1.5


def test_every_number_of_an_event_is_known_as_a_count_or_a_duration() -> None:
    numbers = {field.name for kind in KINDS for field in fields(kind) if field.type is int}
    assert numbers == {"at", *EVENT_DURATIONS, *COUNTS}


def test_an_error_is_an_object() -> None:
    info = ErrorInfo("builtins.ValueError", "no", "Traceback …")
    event = events.Failed(at=NOON_S * SECOND, queue="default", job_id="a", task="t", error=info)
    record = logging.LogRecord("holdfast.worker", logging.ERROR, __file__, 1, "failed", (), None)
    record.error = info
    logged = json.loads(JsonFormatter().format(record))
    assert event_data(event)["error"] == logged["error"] == to_data(info)
    assert set(logged["error"]) == {"type", "message", "traceback"}
