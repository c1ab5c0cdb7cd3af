"""A primary with replicas and three Sentinels for tests: when the primary is gone, they make a replica the primary.

It is ready after about three seconds: Sentinels tell each other of themselves every two seconds.
"""

import secrets
from types import TracebackType
from typing import Self

import redis
from eventually import eventually_now
from redis_binaries import find
from redis_server import START_LIMIT_S, WITHOUT_PERSISTENCE, RedisServer, Settings, new_folder, start_new

SERVICE = "holdfast-tests"
"""The name by which clients ask for the primary."""
SENTINELS = 3
DOWN_AFTER_MS = 1_000
"""After that long without an answer, a Sentinel takes the primary for gone. A busy machine must not be that late."""
REPLICA: Settings = {"repl-diskless-sync-delay": 0}


class SentinelGroup:
    """The servers (the first primary comes first) and their Sentinels."""

    def __init__(self, servers: tuple[RedisServer, ...], sentinels: tuple[RedisServer, ...]) -> None:
        self.servers = servers
        self.sentinels = sentinels

    @property
    def password(self) -> str:
        """Of the servers."""
        return self.servers[0].password

    @property
    def places(self) -> str:
        """The Sentinels, as in an address: host:port,host:port."""
        return ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)

    @property
    def primary(self) -> RedisServer:
        """The primary of which most Sentinels know."""
        ports = [self._primary_port(sentinel) for sentinel in self.sentinels if sentinel.pid is not None]
        port = max(ports, key=ports.count)
        return next(server for server in self.servers if server.port == port)

    @property
    def replicas(self) -> tuple[RedisServer, ...]:
        return tuple(server for server in self.servers if server is not self.primary)

    def _primary_port(self, sentinel: RedisServer) -> int:
        return int(sentinel.execute("SENTINEL", "get-master-addr-by-name", SERVICE)[1])

    def fail_over(self) -> None:
        """Let the Sentinels make a replica the primary while the old primary runs on. Wait until it is one."""
        old = self.primary
        self.sentinels[0].execute("SENTINEL", "FAILOVER", SERVICE)
        self.wait_for_other_primary(old)

    def wait_for_other_primary(self, old: RedisServer) -> RedisServer:
        """Wait until another server than this is the primary, and answer it."""
        eventually_now(lambda: self._is_other_primary(old), "a failover", START_LIMIT_S)
        return self.primary

    def _is_other_primary(self, old: RedisServer) -> bool:
        new = self.primary
        try:
            return new is not old and new.execute("ROLE")[0] == b"master"
        except redis.ConnectionError:
            return False  # Sentinel ends the connections of a server whose role it changes

    def wait_until_ready(self) -> None:
        """Wait until every replica is in step, and each Sentinel knows all the others and every replica."""
        eventually_now(self._is_ready, "the Sentinels", START_LIMIT_S)

    def _is_ready(self) -> bool:
        wanted = len(self.servers) - 1
        try:
            connected = [
                server.execute("INFO", "replication").get("master_link_status") == "up" for server in self.replicas
            ]
            # Answers an error until a majority can be reached.
            known = [
                sentinel.execute("SENTINEL", "CKQUORUM", SERVICE)
                and len(sentinel.execute("SENTINEL", "SENTINELS", SERVICE)) == SENTINELS - 1
                and len(sentinel.execute("SENTINEL", "REPLICAS", SERVICE)) == wanted
                for sentinel in self.sentinels
            ]
        except (redis.ResponseError, redis.ConnectionError):
            # Sentinel ends the connections of a server whose role it changes.
            return False
        return all(connected) and all(known)

    def close(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def private_sentinels(
    name: str | None = None, *, replicas: int = 1, settings: Settings | None = None, sentinel_password: str = ""
) -> SentinelGroup:
    """Start a primary with its replicas and Sentinels. The caller closes the group."""
    binary, password = find(name), secrets.token_hex(16)
    started: list[RedisServer] = []
    try:
        own = WITHOUT_PERSISTENCE | REPLICA | (settings or {})
        for number in range(1 + replicas):
            of_primary: Settings = {"replicaof": f"127.0.0.1 {started[0].port}"} if number else {}
            started.append(start_new(binary, new_folder(binary), own | of_primary, password=password))
        for _ in range(SENTINELS):
            lines = [
                f"monitor {SERVICE} 127.0.0.1 {started[0].port} 2",
                f"auth-pass {SERVICE} {password}",
                f"down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
                f"failover-timeout {SERVICE} 3000",
                *([f"sentinel-pass {sentinel_password}"] if sentinel_password else []),
            ]
            folder, arguments = new_folder(binary), ("--sentinel",)
            watch: Settings = {"sentinel": lines}
            started.append(start_new(binary, folder, watch, password=sentinel_password, arguments=arguments))
        made = SentinelGroup(tuple(started[: 1 + replicas]), tuple(started[1 + replicas :]))
        made.wait_until_ready()
    except BaseException:
        for server in started:
            server.close()
        raise
    return made
