"""Servers that Sentinels watch: the Sentinels say which one is the primary, and make a replica the primary if it fails.

An address is `redis+sentinel://user:password@host:26379,host:26379/service/0`: the Sentinels, the name under which they
watch the servers, and the database. User and password are those of the servers; the Sentinels' own are the options
`sentinel_username` and `sentinel_password`. `rediss+sentinel://` uses TLS for both.

All Sentinels are asked at the same time, and the answer with the highest epoch counts: one that is cut off from the
others may not know of the last failover. They are asked before each connection, and whenever the primary cannot be
reached, refuses a write, or does not answer (`slow_calls.py`). Calls are then made again as in a cluster
(`cluster.py`). An old primary that comes back accepts writes until the Sentinels have made it a replica, and these
writes are lost: so no connection is made to a server only because it was the primary before.

A failover may lose the last writes, because replicas are behind. The engine notices that (`history.py`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlunsplit

from holdfast.engines.redis.cluster import LONGEST_WAIT_S, ClusterPrimaries
from holdfast.engines.redis.connect import Address, RedisConnector, parse, split
from holdfast.engines.redis.connections import Connection
from holdfast.engines.redis.failures import SCHEME, ConnectionLost, ReplyError
from holdfast.engines.redis.primary import Connect, Primary
from holdfast.engines.redis.slots import SLOTS, Node, SlotMap, SlotRange, Topology
from holdfast.errors import ConfigError, EngineUnavailable, HoldfastError
from holdfast.model.address import without_login
from holdfast.model.instants import Seconds
from holdfast.runtime import Runtime

SUFFIX = "+sentinel"
DEFAULT_PORT = 26_379
REPLY_TIMEOUT_S: Seconds = 1.0  # of a Sentinel, to connect and to answer; the others are asked at the same time
REFUSALS = ("unknown command", "no permissions", "Authentication required")
"""In replies of a server that is no Sentinel, and of a Sentinel that refuses the user."""

_logger = logging.getLogger("holdfast.redis")


class SentinelAddress:
    """The Sentinels, and the name of the servers that they watch."""

    def __init__(self, sentinels: Sequence[Address], service: str) -> None:
        self.service = service
        self.place = f"{','.join(f'{one.host}:{one.port}' for one in sentinels)}/{service}"
        self._connectors = [
            RedisConnector(address, timeout_s=REPLY_TIMEOUT_S, connect_timeout_s=REPLY_TIMEOUT_S)
            for address in sentinels
        ]

    async def find_primary(self) -> Node | None:
        """The primary, as the Sentinel of the highest epoch says. None: no Sentinel answers.

        Raises ConfigError if Sentinels answer, but none knows the name, or if all refuse the login.
        """
        found = await asyncio.gather(*(self._ask(one) for one in self._connectors), return_exceptions=True)
        for error in found:
            if isinstance(error, BaseException) and not isinstance(error, (HoldfastError, ReplyError, ConnectionLost)):
                raise error
        known = [answer for answer in found if isinstance(answer, tuple)]
        if known:
            return max(known, key=lambda answer: answer[0])[1]
        for error in found:
            _logger.debug("A Sentinel did not say which server is the primary: %s", error)
            if isinstance(error, ConfigError):
                raise error
            if isinstance(error, ReplyError) and "No such master" in str(error):
                raise ConfigError(f"The Sentinels at {self.place} watch no service of that name.", key="url")
        refusals = [str(error) for error in found if any(words in str(error) for words in REFUSALS)]
        if len(refusals) == len(found):
            raise ConfigError(
                f"No Sentinel at {self.place} answers SENTINEL MASTER: {refusals[0].rstrip('.')}. Write the ports of "
                "the Sentinels into the address, not those of the servers, and sentinel_username and "
                "sentinel_password if the Sentinels ask for a login.",
                key="url",
            )
        return None

    async def connect(self, node: Node, connect: Connect) -> Connection:
        """A connection to this server, if no Sentinel of a higher epoch names another one."""
        primary = await self.find_primary()
        if primary not in (None, node):
            raise EngineUnavailable(
                f"{node} was the primary of {self.place}, and {primary} is now. Nothing was written.", engine=SCHEME
            )
        return await connect()

    async def _ask(self, connector: RedisConnector) -> tuple[int, Node]:
        """The epoch of what this Sentinel knows, and the primary."""
        driver = await connector.open_driver()
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                await driver.send_command("SENTINEL", "MASTER", self.service)
                reply = await driver.read_response()
        except Exception as error:
            raise ReplyError(str(error)) from error
        finally:
            await driver.disconnect(nowait=True)
        fields = {_text(name): _text(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}
        return int(fields["config-epoch"]), Node(fields["ip"], int(fields["port"]))


class SentinelPrimaries(ClusterPrimaries):
    """One primary, which has all slots, and which the Sentinels name."""

    what = "service"
    map_source = "Sentinel"

    def __init__(
        self,
        sentinels: SentinelAddress,
        topology: Topology,
        primary_at: Callable[[Node], Primary],
        runtime: Runtime,
        wait_s: Seconds = LONGEST_WAIT_S,
    ) -> None:
        super().__init__(topology, primary_at, runtime, sentinels.place, wait_s)
        self._sentinels = sentinels

    async def _ask_for_map(self, first: Node | None, but: Node | None) -> SlotMap | None:
        node = await self._sentinels.find_primary()
        return None if node is None else SlotMap([SlotRange(0, SLOTS - 1, node)])


def parse_sentinels(url: str) -> tuple[SentinelAddress, Address, dict[str, str]]:
    """The Sentinels, how to log in at a server that they name, and the options that are settings of the engine."""
    shown = without_login(url)
    scheme = url.partition("://")[0]
    parts = split(url)
    login, _, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service or not hosts:
        raise ConfigError(
            f"The address {shown} must name Sentinels and a service: redis+sentinel://host:26379,host:26379/service.",
            key="url",
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    username, password = options.pop("sentinel_username", None), options.pop("sentinel_password", None)
    plain_scheme = scheme.lower().removesuffix(SUFFIX)
    addresses = []
    for host in hosts.split(","):
        netloc = f"{login}@{host}" if login else host
        one = urlunsplit((plain_scheme, netloc, f"/{database}", urlencode(options), ""))
        address, settings = parse(one)
        if not host.rpartition("]")[2].rpartition(":")[1]:
            address = replace(address, port=DEFAULT_PORT)
        addresses.append(address)
    sentinels = [replace(one, database=0, username=username, password=password) for one in addresses]
    return SentinelAddress(sentinels, service), addresses[0], settings


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
