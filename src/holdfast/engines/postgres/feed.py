"""The feed on PostgreSQL: messages by NOTIFY, over the notifier's connection.

A process that listens holds a lock, shared, for as long as its session does. A new process tests the lock: if a session
holds it, a process listens.
"""

from collections.abc import Callable

import asyncpg

from holdfast.engines.feed_channels import REQUEST, FeedChannels
from holdfast.runtime import Runtime

LOCK_SHARED = "SELECT pg_advisory_lock_shared(hashtextextended($1, 0))"
LOCK_IS_FREE = """
SELECT CASE WHEN pg_try_advisory_lock(hashtextextended($1, 0))
    THEN pg_advisory_unlock(hashtextextended($1, 0)) ELSE false END
"""


class NotifyFeed(FeedChannels):
    """The sender of a message is the process of its session."""

    def __init__(self, namespace: str, runtime: Runtime, wake: Callable[[], None]) -> None:
        super().__init__(f"holdfast_{namespace}_feed", f"holdfast_{namespace}_listeners", runtime, wake)
        self._lock = f"{namespace} feed"
        self._holds_lock = False

    @property
    def callbacks(self) -> dict[str, Callable[[int, bytes], None]]:
        """For each channel, the function that takes its notifications."""
        return {self.messages: self.on_message, self.announcements: self.on_announcement}

    async def find_listeners(self, connection: asyncpg.Connection) -> None:
        """On a new connection: wait for the first announcement, if another session holds the lock."""
        if await connection.fetchval(LOCK_IS_FREE, self._lock):
            return
        self._announced.clear()
        await connection.execute("SELECT pg_notify($1, $2)", self.announcements, REQUEST.decode())
        await self.wait_for_announcement()

    async def take_lock(self, connection: asyncpg.Connection) -> None:
        if self._own_kinds and not self._holds_lock:
            await connection.execute(LOCK_SHARED, self._lock)
            self._holds_lock = True

    def forget_lock(self) -> None:
        """The connection has ended, and the lock with it."""
        self._holds_lock = False
