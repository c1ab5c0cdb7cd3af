"""The durability class on PostgreSQL: which `synchronous_commit` the engine's connections use.

`durable` keeps the server's setting as long as a commit waits for at least the local disk; a server that also waits
for a standby keeps doing so. If the server, the database or the role has it `off`, the engine turns it on. `fast` turns
it off. The setting belongs to the connection, so the commits of other clients do not change. A proxy that shares
sessions lets a client set nothing for its connection: there the role must have the setting.
"""

import asyncpg

from holdfast.errors import ConfigError

SETTING = "synchronous_commit"
CLASSES = ("durable", "fast")


class Durability:
    """`settings` is sent with every new connection."""

    def __init__(self, durability: str, *, pooled: bool) -> None:
        if durability not in CLASSES:
            raise ConfigError(
                f"`durability` must be one of {', '.join(CLASSES)} on PostgreSQL, not {durability!r}.", key="durability"
            )
        self.name = durability
        self._durable = durability == "durable"
        self._pooled = pooled
        self.settings: dict[str, str] = {} if self._durable or pooled else {SETTING: "off"}

    async def check(self, connection: asyncpg.Connection) -> None:
        """Make sure that a commit of class `durable` waits for the disk. Raises ConfigError if it cannot."""
        if not self._durable or self.settings or await connection.fetchval(f"SHOW {SETTING}") != "off":
            return
        if self._pooled:
            raise ConfigError(
                "For this role the server does not wait for the disk at a commit (synchronous_commit is off), so "
                "nothing would be durable, and behind a proxy Holdfast cannot change that. Set durability = fast, or "
                "run: ALTER ROLE … SET synchronous_commit = on",
                key="durability",
            )
        self.settings = {SETTING: "on"}
