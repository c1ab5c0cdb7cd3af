"""The queue between a process and its feed: it never grows without end."""

import threading

import pytest

from holdfast import events
from holdfast.runtime import SystemRuntime
from holdfast.telemetry.bus import Bus
from holdfast.telemetry.feed import BackgroundQueue


def test_of_too_many_waiting_events_the_oldest_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.telemetry.feed.MAX_WAITING", 5)
    began, go_on = threading.Event(), threading.Event()
    handled: list[list[int]] = []

    def handle(items: list[int]) -> None:
        handled.append(items)
        began.set()
        assert go_on.wait(30)

    queue = BackgroundQueue(SystemRuntime(), handle, "test feed")
    queue.put(0)
    assert began.wait(30)
    for number in range(1, 21):
        queue.put(number)
    go_on.set()
    queue.close(30)
    assert handled[1] == [16, 17, 18, 19, 20]


class EndThread(BaseException):
    """Neither an error nor a cancellation."""


def test_a_listener_that_would_end_the_feed_s_thread_keeps_no_event_from_the_others() -> None:
    def ends(event: events.Event) -> None:
        raise EndThread

    bus, seen = Bus(SystemRuntime()), list[events.Event]()
    for listener in (ends, seen.append):
        bus.on(events.Event, listener, everywhere=True)
    event = events.WorkerStopped(at=1, worker="w", released=0)
    bus.deliver_remote(event)
    assert seen == [event]
