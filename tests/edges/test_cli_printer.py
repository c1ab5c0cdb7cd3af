"""The thread that prints the worker's lines."""

import threading

from holdfast import events
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
