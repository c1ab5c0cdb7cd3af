"""The feed on Redis: messages by PUBLISH, over the notifier's connection.

A new process asks the server whether the channel of the messages has a subscriber: then a process listens.

Each message begins with the name of its sender, because a process receives its own messages as well.
"""

from collections.abc import Callable

from holdfast.engines.feed_channels import FeedChannels
from holdfast.runtime import Runtime


class PubSubFeed(FeedChannels):
    """The notifier subscribes to `channels`."""

    def __init__(self, prefix: str, runtime: Runtime, wake: Callable[[], None]) -> None:
        super().__init__(f"{prefix}feed", f"{prefix}listeners", runtime, wake)
        self._name = runtime.new_id().encode()

    @property
    def channels(self) -> dict[str, Callable[[bytes], None]]:
        """The channels to subscribe to, each with the function that takes its payloads."""
        channels = {self.announcements: self._from_others(self.on_announcement)}
        if self._own_kinds:
            channels[self.messages] = self._from_others(self.on_message)
        return channels

    def _send(self, channel: str, payload: bytes, on_sent: Callable[[], object] = lambda: None) -> None:
        super()._send(channel, self._name + b" " + payload, on_sent)

    def _from_others(self, receive: Callable[[bytes, bytes], None]) -> Callable[[bytes], None]:
        def receive_from_others(message: bytes) -> None:
            sender, _, payload = message.partition(b" ")
            if sender != self._name:
                receive(sender, payload)

        return receive_from_others
