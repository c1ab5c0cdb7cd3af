"""A time limit for a piece of a test, in the main thread, also where it blocks."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest


@contextmanager
def time_limit(what: str, limit_s: float) -> Iterator[None]:
    """Interrupt the block once it has taken `limit_s` seconds. The failure names `what` and shows where it stood."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"{what} took longer than its time limit of {limit_s:g} s.")

    outer_handler = signal.signal(signal.SIGALRM, interrupt)
    outer_left_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer_handler)
        signal.setitimer(signal.ITIMER_REAL, outer_left_s)
