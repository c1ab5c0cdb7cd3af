"""What engines whose stores are servers have in common: notifications, the feed, and the processes that have ended.

Such an engine belongs to the process that opened it. In a forked child it is not open. The child does not touch what it
inherited, because its parent uses the same sockets.
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from holdfast.engine import Engine, Subscription
from holdfast.engines.ended_processes import EndedProcesses
from holdfast.engines.notifier_thread import NotifierThread
from holdfast.engines.topics import Topics
from holdfast.runtime import Runtime

N = TypeVar("N", bound=NotifierThread)


class ServerEngine(Engine, Generic[N]):
    """`_pid` is the process in which it is open; 0: in none."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._pid = 0
        self._topics = Topics()
        self._notifier: N | None = None
        """None: it is not open, or notifications are off."""
        self._ended_processes = EndedProcesses(self.scheme, runtime)
        self._inherited: list[object] = []

    def _leave_to_parent(self) -> None:
        """This is a forked child. Keep what belongs to the parent, so that the collector does not close its sockets."""
        self._inherited += [self._notifier, self._topics, self._ended_processes]
        self._pid = 0
        self._notifier = None
        self._topics = Topics()
        self._ended_processes = EndedProcesses(self.scheme, self._runtime)

    # Workers that have ended

    @property
    def process_name(self) -> str:
        return self._ended_processes.process_name

    def keep_process_record(self) -> None:
        self._ended_processes.keep_record()

    async def known_processes(self) -> frozenset[str] | None:
        return await self._runtime.run_blocking(self._ended_processes.all_names)

    async def ended_workers(self) -> tuple[str, ...]:
        ended = await self._runtime.run_blocking(self._ended_processes.names)
        if not ended:
            return ()
        return self._ended_processes.workers_of(ended, (await self.workers()).workers)

    # Notifications and the feed

    def subscribe(self, *topics: str) -> Subscription:
        subscription = self._topics.subscribe(*topics)
        if self._notifier is not None:
            self._notifier.subscribe(topics)
        return subscription

    @property
    def feed_kinds(self) -> frozenset[str]:
        return frozenset() if self._notifier is None else self._notifier.feed.kinds

    def publish(self, message: bytes) -> None:
        if self._notifier is not None:
            self._notifier.feed.publish(message)

    def listen_to_feed(self, kinds: Iterable[str], on_message: Callable[[bytes], None]) -> None:
        if self._notifier is not None:
            self._notifier.listen_to_feed(kinds, on_message)
