"""The servers of a store: one primary, the primaries of a cluster, or the one that Sentinels name.

Whether the server of an address belongs to a cluster is asked when the engine opens; it is never guessed. The mode
`cluster` says where jobs are stored (`roots.py`): `queues` (a root for each queue) or `namespace` (one root in one
slot). A cluster has the mode `queues` unless another one is set. A single server has no mode, unless one is set: then
it stores jobs as a cluster would, and can be replaced by one.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from holdfast.engines.redis import roots
from holdfast.engines.redis.cluster import LONGEST_WAIT_S, ClusterPrimaries
from holdfast.engines.redis.connect import Address, RedisConnector, parse
from holdfast.engines.redis.durability import parse_info
from holdfast.engines.redis.failures import ReplyError
from holdfast.engines.redis.primary import Connect, Primary
from holdfast.engines.redis.routes import ManyPrimaries, OnePrimary, channel_prefix
from holdfast.engines.redis.sentinel import SUFFIX, SentinelAddress, SentinelPrimaries, parse_sentinels
from holdfast.engines.redis.settings import RedisSettings, read_options
from holdfast.engines.redis.slots import Node, Topology
from holdfast.errors import ConfigError
from holdfast.model.instants import Seconds
from holdfast.runtime import Runtime

QUEUES, NAMESPACE = "queues", "namespace"
SHARDED_CHANNELS_SINCE = (7, 0)

MakePrimary = Callable[[Callable[[], Awaitable[Any]], str], Primary]
"""Makes the object that calls one server, from a function that connects and the name of the server."""


def _parse(url: str) -> tuple[SentinelAddress | None, Address, Mapping[str, str]]:
    """The Sentinels if the address names some, the address of the server, and the options in it."""
    if url.partition("://")[0].lower().endswith(SUFFIX):
        return parse_sentinels(url)
    return None, *parse(url)


def options_in_address(url: str) -> dict[str, Any]:
    """The settings that stand in an address."""
    sentinels, address, options = _parse(url)
    return read_options(options, address.place if sentinels is None else sentinels.place)


class Servers:
    """`options` are settings of the engine; those in the address win."""

    def __init__(self, url: str, namespace: str, runtime: Runtime, options: dict[str, Any]) -> None:
        self._sentinels, address, in_address = _parse(url)
        self.place = address.place if self._sentinels is None else self._sentinels.place
        self.settings = RedisSettings(**{**options, **read_options(in_address, self.place)})
        if self.settings.cluster not in (None, QUEUES, NAMESPACE):
            raise ConfigError(
                f"`cluster` must be {QUEUES} or {NAMESPACE}, not {self.settings.cluster!r}.", key="redis.cluster"
            )
        self._namespace = namespace
        self._runtime = runtime
        self._address = address
        self.connector = RedisConnector(
            address, timeout_s=self.settings.timeout, connect_timeout_s=self.settings.connect_timeout
        )
        seeds = () if address.path or self._sentinels is not None else (Node(address.host, address.port),)
        self.topology = Topology(seeds)
        self.is_cluster = False
        self.sharded = False
        """True: a message goes to the node of its channel alone."""

    @property
    def mode(self) -> str | None:
        """Where jobs are stored. None: under one root, as on a single server."""
        return self.settings.cluster or (QUEUES if self.is_cluster else None)

    @property
    def root(self) -> str:
        """The root of what belongs to no queue. Without the mode `queues` it is the root of everything."""
        return self._root_in(self.mode)

    def _root_in(self, mode: str | None) -> str:
        match mode:
            case "queues":
                return roots.root_of_no_queue(self._namespace)
            case "namespace":
                return roots.root_in_one_slot(self._namespace)
            case _:
                return roots.root_of_primary(self._namespace)

    # Calls

    def primary(
        self,
        make: MakePrimary,
        timeout_s: Seconds | None = None,
        connect_timeout_s: Seconds | None = None,
        wait_s: Seconds = LONGEST_WAIT_S,
    ) -> Primary | ClusterPrimaries:
        """Calls the primary of each root. The limits are in seconds: for a reply, for a connection, for a failover."""

        def connects(connector: RedisConnector) -> Connect:
            limit_s = connector.timeout_s if timeout_s is None else timeout_s
            return partial(connector.connect, limit_s, connect_timeout_s)

        def primary_at(node: Node) -> Primary:
            connector = self.connector.at(*node)
            connect = connects(connector)
            if self._sentinels is not None:
                connect = partial(self._sentinels.connect, node, connect)
            return make(connect, connector.place)

        if self._sentinels is not None:
            return SentinelPrimaries(self._sentinels, self.topology, primary_at, self._runtime, wait_s)
        if self.is_cluster:
            return ClusterPrimaries(self.topology, primary_at, self._runtime, self.place, wait_s)
        return make(connects(self.connector), self.connector.place)

    async def look_for_cluster(self, primary: Primary | ClusterPrimaries) -> bool:
        """Ask the server whether it belongs to a cluster. True: it does, and `primary` must be made anew."""
        if self.is_cluster or self._sentinels is not None or isinstance(primary, ClusterPrimaries):
            return False
        try:
            info = parse_info(await primary.command("INFO", "cluster"))
        except ReplyError:  # the user must not ask
            return False
        self.is_cluster = info.get("cluster_enabled") == "1"
        if self.is_cluster and self._address.database:
            raise ConfigError(
                f"The server at {self.place} belongs to a cluster, which has the database 0 alone. Write no other one "
                "into the address; `namespace` keeps stores apart.",
                key="url",
            )
        return self.is_cluster

    async def check_mode(self, primary: Primary | ClusterPrimaries) -> None:
        """Refuse a namespace whose jobs are stored in another mode: they would not be found."""
        for other in (None, NAMESPACE, QUEUES):
            if other == self.mode:
                continue
            if await primary.command("EXISTS", f"{self._root_in(other)}meta"):
                advice = "Remove `cluster` from the settings" if other is None else f'Set `cluster = "{other}"`'
                raise ConfigError(
                    f"The namespace {self._namespace!r} at {self.place} has jobs that were stored in another way than "
                    f"with `cluster = {self.mode or 'not set'}`. {advice}, or use another namespace.",
                    key="redis.cluster",
                )

    # Channels

    def note_version(self, version: tuple[int, ...]) -> None:
        self.sharded = self.is_cluster and version >= SHARDED_CHANNELS_SINCE

    def channel_prefix(self, root: str) -> str:
        """The first part of the names of the channels in which calls on a root publish."""
        return channel_prefix(root if self._has_channels_of_queues else self.root, self._address.database)

    @property
    def _has_channels_of_queues(self) -> bool:
        return self.is_cluster and self.mode == QUEUES

    def routes(self) -> OnePrimary | ManyPrimaries:
        """Which channels there are, and where."""
        home = self.channel_prefix(self.root)
        if self._sentinels is None and not self.is_cluster:
            return OnePrimary(self.connector, home)
        prefix_of = self._prefix_of_queue if self._has_channels_of_queues else None
        return ManyPrimaries(self.topology, self.connector, home, prefix_of=prefix_of, sharded=self.sharded)

    def _prefix_of_queue(self, queue: str) -> str:
        return self.channel_prefix(roots.root_of_queue(self._namespace, queue))
