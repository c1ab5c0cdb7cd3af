"""The limit of a stop, inside one process. What it does to a process is tested with real ones."""

import threading
from collections.abc import Callable

import pytest

from holdfast.runtime import SystemRuntime
from holdfast.worker import forced_exit
from holdfast.worker.forced_exit import ForcedExit


class OneThread(SystemRuntime):
    """Keeps the thread that was started last."""

    last: threading.Thread

    def thread(self, target: Callable[[], object], *, name: str, daemon: bool = True) -> threading.Thread:
        self.last = super().thread(target, name=name, daemon=daemon)
        return self.last


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the process would end."""
    event = threading.Event()
    monkeypatch.setattr(forced_exit, "end_process", lambda code: event.set())
    return event


def test_a_stop_in_time_leaves_no_thread(ended: threading.Event) -> None:
    runtime = OneThread()
    limit = ForcedExit(runtime)
    limit.start()
    for grace_s in (3600, 30, 1e12, 0):
        limit.after(grace_s)
    limit.stop()
    runtime.last.join(30)
    assert not runtime.last.is_alive()
    assert not ended.is_set()


def test_a_later_call_can_only_shorten_the_time(ended: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced_exit, "MARGIN_S", 0.05)
    runtime = OneThread()
    limit = ForcedExit(runtime)
    limit.start()
    for grace_s in (3600, 0, 3600):
        limit.after(grace_s)
    assert ended.wait(30)
    runtime.last.join(30)
