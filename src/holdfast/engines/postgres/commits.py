"""The durability class on PostgreSQL: what `synchronous_commit` has to be on the engine's connections.

`durable` leaves the server's choice alone as long as a commit waits for at least the local disk; whoever has chosen to
wait for a standby too keeps that. Only where the server, the database or the role says `off` it is switched on. `fast`
switches it off. It is a setting of the connection, so nobody else's commits are touched. Behind a proxy that shares
sessions nothing can be set for a connection: there the role has to say it.
"""

import asyncpg

from holdfast.errors import ConfigError

SETTING = "synchronous_commit"
CLASSES = ("durable", "fast")


class Commits:
    """`settings` goes with every connection that is made."""

    def __init__(self, durability: str, *, pooled: bool) -> None:
        if durability not in CLASSES:
            raise ConfigError(
                f"`durability` must be one of {', '.join(CLASSES)} on PostgreSQL, not {durability!r}.", key="durability"
            )
        self._durable = durability == "durable"
        self._pooled = pooled
        self.settings: dict[str, str] = {} if self._durable or pooled else {SETTING: "off"}

    async def check(self, connection: asyncpg.Connection) -> None:
        """See to it that `durable` is true, before anything is promised."""
        if not self._durable or self.settings or await connection.fetchval(f"SHOW {SETTING}") != "off":
            return
        if self._pooled:
            raise ConfigError(
                "For this role the server does not wait for the disk at a commit (synchronous_commit is off), so "
                "nothing would be durable, and behind a proxy Holdfast cannot change that. Say durability = fast, or: "
                "ALTER ROLE … SET synchronous_commit = on",
                key="durability",
            )
        self.settings = {SETTING: "on"}
