"""An engine's part in events: the methods that an engine overrides if it can.

The feed carries events to other processes that listen. It may lose messages; nothing depends on it. `report_to` is for
what happens to the store itself, which no caller has asked for.
"""

from collections.abc import Callable, Iterable

from holdfast.telemetry.events import StoreEvent


class EventSupport:
    """A base class of every engine. Without an override there is no feed, and the store reports nothing."""

    def report_to(self, emit: Callable[[StoreEvent], None]) -> None:
        """Call `emit`, on any thread, with what happens to the store. A second call replaces the first."""

    @property
    def feed_kinds(self) -> frozenset[str]:
        """The kinds of messages for which another process is known to listen. Cheap; callable from any thread."""
        return frozenset()

    def publish(self, message: bytes) -> None:
        """Send UTF-8 text of at most 7,000 bytes to all listeners, or lose it. Never waits, never raises."""

    def listen_to_feed(self, kinds: Iterable[str], on_message: Callable[[bytes], None]) -> None:
        """Call `on_message`, on any thread, with messages of other processes.

        A second call replaces the first; without kinds the process stops listening. Other processes see `kinds` in
        their `feed_kinds`; messages of other kinds may come too. `on_message` must neither wait nor raise.
        """
