"""Log lines say which job they belong to, from the handler and from whatever it calls."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
from minimal_app import MinimalApp, MinimalTask

from holdfast.telemetry.logs import JobFilter, JsonFormatter, TextFormatter, configure

library = logging.getLogger("some.library")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a handler with the filter and the JSON formatter writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(JobFilter())
    handler.setFormatter(JsonFormatter())
    library.addHandler(handler)
    library.setLevel(logging.INFO)
    yield stream
    library.removeHandler(handler)


def _work(name: str) -> None:
    library.info("working on %s", name)


async def _awork(name: str) -> None:
    library.info("working on %s", name)


@pytest.mark.parametrize("function", [_work, _awork])
async def test_a_line_from_deep_inside_carries_job_task_attempt_and_worker(
    function: object, lines: io.StringIO
) -> None:
    app = MinimalApp(MinimalTask(function, name="resize"))  # type: ignore[arg-type]
    await app.enqueue("resize", "cat", id="a")
    await app.enqueue("resize", "dog", id="b")
    await app.drain(name="ada")
    said = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert sorted((line["message"], line["job_id"]) for line in said) == [
        ("working on cat", "a"),
        ("working on dog", "b"),
    ]
    assert {line["task"] for line in said} == {"resize"}
    assert {line["attempt"] for line in said} == {1}
    assert all(line["worker"].startswith("ada-") for line in said)


def test_a_line_from_outside_of_a_job_carries_nothing(lines: io.StringIO) -> None:
    library.info("just starting")
    assert "job_id" not in json.loads(lines.getvalue())


def _record(**extra: object) -> logging.LogRecord:
    record = logging.LogRecord("shop", logging.WARNING, __file__, 1, "told to %s", ("wait",), None)
    record.__dict__.update(extra)
    return record


def test_text_for_people_ends_with_the_job() -> None:
    line = TextFormatter().format(_record(job_id="01JCQ7M3", task="charge", attempt=2))
    assert line.endswith("WARNING shop: told to wait [charge 01JCQ7M3 attempt 2]")
    assert TextFormatter().format(_record(job_id="")).endswith("WARNING shop: told to wait")


def test_json_for_programs_holds_the_traceback_of_an_error() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        record = _record()
        record.exc_info = (type(error), error, error.__traceback__)
    line = json.loads(JsonFormatter().format(record))
    assert line["level"] == "warning"
    assert (line["error"]["type"], line["error"]["message"]) == ("builtins.ValueError", "no")
    assert "ValueError: no" in line["error"]["traceback"]


def test_configure_logs_what_no_other_handler_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, own = io.StringIO(), logging.getLogger("holdfast")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    monkeypatch.setattr(own, "level", own.level)
    before = logging.getLogger().level
    configure("critical", "json", stream)
    logging.getLogger("of.this.test").warning("hello")
    own.error("not this")
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger("of.this.test").warning("taken by another handler")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["hello"]
    assert logging.getLogger().level == before
    own.manager._clear_cache()  # type: ignore[attr-defined]  # the level is set back without `setLevel`


def test_configure_changes_nothing_if_the_program_has_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    before = logging.lastResort
    assert configure() is None
    assert logging.lastResort is before


def test_a_job_in_the_message_is_not_repeated_after_it() -> None:
    record = logging.LogRecord("shop", logging.WARNING, __file__, 1, "Job 01JCQ7M3 failed", (), None)
    record.__dict__.update(job_id="01JCQ7M3", task="charge", attempt=2)
    assert TextFormatter().format(record).endswith("Job 01JCQ7M3 failed")
