"""The thread that prints the worker's lines, and its log beside them."""

import io
import logging
import threading

import pytest

from holdfast import events
from holdfast.cli.worker import set_up_log
from holdfast.cli.worker_lines import JsonLines, Printer
from holdfast.runtime import SystemRuntime


def test_a_reader_that_goes_away_ends_the_printer_quietly() -> None:
    """An error that leaves a thread is a warning, and a warning fails the test."""
    tried = threading.Event()

    def write(text: str) -> None:
        tried.set()
        raise BrokenPipeError("the reader has gone")

    lines = JsonLines()
    lines.add(events.Started(at=1, queue="q", job_id="a", task="t", attempt=1))
    printer = Printer(SystemRuntime(), lines, write)
    assert tried.wait(30)
    printer.close()
    assert not printer._thread.is_alive()


def test_a_log_line_of_the_worker_has_no_control_character(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    monkeypatch.setattr("holdfast.cli.worker.configure", lambda *given: handler)
    set_up_log("info", "text", with_lines=False)
    handler.emit(logging.LogRecord("holdfast", logging.ERROR, "", 0, "red \x1b[31m\nsecond line", None, None))
    assert written.getvalue() == "red \\x1b[31m\nsecond line\n"
