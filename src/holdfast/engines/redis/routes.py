"""Which channels there are, and which server each belongs to.

The name of a channel is a prefix and a topic. The script publishes all topics of a call under the prefix that the
client gave it, which follows from the root of the call (`roots.py`): so in a cluster a channel is in the slot of the
root, and at its node.

    one primary         holdfast:0:queue:mail
    cluster=namespace   {holdfast}:0:queue:mail
    cluster=queues      holdfast:{mail}:0:queue:mail    holdfast:{.}:0:worker:w1

The number is that of the database: channels belong to the server, not to a database of it.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from holdfast.engines.redis.connect import RedisConnector
from holdfast.engines.redis.failures import SCHEME
from holdfast.engines.redis.slots import Node, Topology, slot_of
from holdfast.errors import EngineUnavailable

_OF_A_QUEUE = ("queue", "room")
"""Topics that name a queue."""


def channel_prefix(root: str, database: int) -> str:
    """The first part of the names of the channels in which calls on a root publish."""
    return f"{root}{database}:"


class Routes(Protocol):
    @property
    def home(self) -> str:
        """The prefix of the channels that belong to no queue: those of the feed and of workers."""

    @property
    def sharded(self) -> bool:
        """True: a cluster that keeps a channel at the node of its slot."""

    def prefixes(self, topic: str) -> Iterable[str]:
        """The prefixes under which a topic is published."""

    def connector_of(self, channel: str) -> RedisConnector:
        """Connects to the server of a channel. Two with the same `place` mean the same server."""


class OnePrimary:
    """All channels have one prefix, and one server."""

    sharded = False

    def __init__(self, connector: RedisConnector, prefix: str) -> None:
        self._connector = connector
        self.home = prefix

    def prefixes(self, topic: str) -> Iterable[str]:
        return (self.home,)

    def connector_of(self, channel: str) -> RedisConnector:
        return self._connector


class ManyPrimaries:
    """The primaries of a cluster, or the one that Sentinels name.

    `prefix_of(queue)`: None if all queues have the prefix `home`. `connector` has the login for every server.
    """

    def __init__(
        self,
        topology: Topology,
        connector: RedisConnector,
        home: str,
        *,
        prefix_of: Callable[[str], str] | None = None,
        sharded: bool = False,
    ) -> None:
        self._topology = topology
        self._connector = connector
        self._prefix_of = prefix_of
        self._connectors: dict[Node, RedisConnector] = {}
        self._queues: dict[str, None] = {}
        self.home = home
        self.sharded = sharded

    def add_queue(self, queue: str) -> bool:
        """This process uses a queue: replies, and messages to its workers, may be published there. True: it is new."""
        if self._prefix_of is None or queue in self._queues:
            return False
        self._queues[queue] = None
        return True

    def prefixes(self, topic: str) -> Iterable[str]:
        if self._prefix_of is None:
            return (self.home,)
        kind, _, name = topic.partition(":")
        if kind in _OF_A_QUEUE:
            return (self._prefix_of(name),)
        return (self.home, *map(self._prefix_of, tuple(self._queues)))

    def connector_of(self, channel: str) -> RedisConnector:
        slot = slot_of(channel)
        node = self._topology.slots.primary_of(slot)
        if node is None:
            raise EngineUnavailable(f"No node of the cluster is known for slot {slot}.", engine=SCHEME)
        found = self._connectors.get(node)
        return self._connectors.setdefault(node, self._connector.at(*node)) if found is None else found
