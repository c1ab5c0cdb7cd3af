"""The primaries of a cluster as if they were one: each call goes to the node that has the slot of its root.

A node that cannot carry out a call says so before the script runs, so the call can be sent again:

| reply | meaning | then |
|---|---|---|
| MOVED | the slot is at another node | call that node, and read the map of slots again |
| ASK | the slot moves to another node, and the key is not here | see below |
| TRYAGAIN | the slot moves, and some of the keys are not here | wait |
| CLUSTERDOWN | no node has the slot, or too few nodes are left | wait, read the map again |
| READONLY, MASTERDOWN, LOADING | the node has become a replica, or has just started | wait, read the map again |

A node that cannot be reached is handled like CLUSTERDOWN: a replica may take its place. All waits together are
limited.

**A slot that moves.** Keys move one by one (MIGRATE), and a script needs all keys of its root in one place. The root
itself is the only key that a call declares, and no such key exists. So from the beginning of a migration the old node
answers ASK to every call, and no script runs there any more. The new node would run it at once, with those keys that
have arrived. So ASK is followed only if the old node has no key of the slot any more; until then the call waits. A
queue stands still while its slot moves, and no call ever sees a half of its keys. Servers that move a slot in one
step (Valkey 9) answer MOVED at its end.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from holdfast.engines.redis.failures import SCHEME, ReplyError, of_reply, reply_of
from holdfast.engines.redis.primary import Primary, ScriptReply
from holdfast.engines.redis.slots import Node, SlotMap, Topology, read_redirect, read_slots, slot_of
from holdfast.engines.redis.slow_calls import watched
from holdfast.errors import EngineUnavailable, HoldfastError
from holdfast.model.instants import SECOND, Seconds
from holdfast.runtime import Runtime

LONGEST_WAIT_S: Seconds = 10.0  # of one call: longer than a failover takes with a node timeout of 5 s
FIRST_PAUSE_S: Seconds = 0.01  # doubled after each try
LONGEST_PAUSE_S: Seconds = 0.25
MAP_TIMEOUT_S: Seconds = 1.0  # for one node to say where the slots are; then the next one is asked
MOVES_WITHOUT_PAUSE = 3  # one is usual; more than that means that two nodes disagree

_MAP_IS_OLD = frozenset({"CLUSTERDOWN", "READONLY", "MASTERDOWN", "LOADING"})
_PASSES = _MAP_IS_OLD | {"MOVED", "ASK", "TRYAGAIN"}

T = TypeVar("T")

_logger = logging.getLogger("holdfast.redis")


class ClusterPrimaries:
    """Used from any thread and event loop, like `Primary`.

    `primary_at` makes the object that calls one node. `wait_s`: the longest wait of a call, in seconds.
    """

    what = "cluster"
    map_source = "node"  # what is asked which primaries there are

    def __init__(
        self,
        topology: Topology,
        primary_at: Callable[[Node], Primary],
        runtime: Runtime,
        place: str,
        wait_s: Seconds = LONGEST_WAIT_S,
    ) -> None:
        self.topology = topology
        self._primary_at = primary_at
        self._runtime = runtime
        self.place = place
        self._wait_s = wait_s
        self._primaries: dict[Node, Primary] = {}
        self._is_reading = False
        self._closed = False

    async def call(
        self, root: str, argv: Sequence[bytes], wait: tuple[int, int] | None = None, first_rank: int = 0
    ) -> ScriptReply:
        """See `Primary.call`."""
        return await self._route(
            slot_of(root),
            argv[0].decode(),
            lambda primary, asking: primary.call(root, argv, wait, first_rank, asking=asking),
        )

    async def command(self, *args: bytes | str | float) -> Any:
        """Send a command about one key, its second word. It may be sent twice: use it for what has the same effect."""
        return await self._route(
            slot_of(str(args[1])), str(args[0]), lambda primary, asking: primary.command(*args, asking=asking)
        )

    async def server(self) -> dict[str, str]:
        """What one of the nodes says about itself (INFO server)."""
        nodes = await self.nodes()
        if not nodes:
            raise EngineUnavailable(
                f"The {self.what} at {self.place}: no {self.map_source} answers. Nothing was written. Try again later.",
                engine=SCHEME,
            )
        return await self._primary(nodes[0]).server()

    async def nodes(self) -> tuple[Node, ...]:
        """All primaries."""
        if not self.topology.slots.primaries:
            await self.read_map()
        return self.topology.slots.primaries

    async def commands(self) -> list[Callable[..., Awaitable[Any]]]:
        """`command` of every primary."""
        return [self._primary(node).command for node in await self.nodes()]

    async def close(self) -> None:
        self._closed = True
        for primary in tuple(self._primaries.values()):
            await primary.close()

    def close_now(self) -> None:
        """From any thread, without an event loop."""
        self._closed = True
        for primary in tuple(self._primaries.values()):
            primary.close_now()

    def _primary(self, node: Node) -> Primary:
        found = self._primaries.get(node)
        if found is None:
            found = self._primaries.setdefault(node, self._primary_at(node))
            if self._closed:
                found.close_now()
        return found

    # One call

    async def _route(self, slot: int, verb: str, send: Callable[[Primary, bool], Awaitable[T]]) -> T:
        """`send(primary, asking)` makes the call. It is made again while certainly nothing was carried out."""
        pauses = _Pauses(self._runtime, self._wait_s)
        moves = 0
        while True:
            node = self.topology.slots.primary_of(slot)
            if node is None:
                await self.read_map()
                node = self.topology.slots.primary_of(slot)
            if node is None:
                error = self._unavailable(f"no node has slot {slot}. Look at CLUSTER INFO.")
            else:
                try:
                    return await self._send(node, send)
                except (HoldfastError, ReplyError) as failure:
                    reply = reply_of(failure)
                    if not self._passes(failure, reply):
                        raise _translated(failure, self.place, verb) from reply
                    error = _translated(failure, self.place, verb)
                if reply is None or reply.code in _MAP_IS_OLD:
                    await self.read_map(but=node)
                elif reply.code == "MOVED":
                    redirect = read_redirect(reply.text, node)
                    error = self._unavailable(f"{node} says that slot {slot} is at {redirect.node}, which has it not.")
                    self.topology.learn(self.topology.slots.moved(slot, redirect.node))
                    moves += 1
                    if moves == 1:
                        await self.read_map(first=redirect.node)
                    if moves <= MOVES_WITHOUT_PAUSE:
                        continue
                elif reply.code == "ASK":
                    target = read_redirect(reply.text, node).node
                    error = self._unavailable(f"slot {slot} moves from {node} to {target}.")
                    if await self._has_no_keys(node, slot):
                        try:
                            return await send(self._primary(target), True)
                        except (HoldfastError, ReplyError) as failure:
                            if not self._passes(failure, reply_of(failure)):
                                raise _translated(failure, self.place, verb) from failure
            if not await pauses.pause():
                raise error

    async def _send(self, node: Node, send: Callable[[Primary, bool], Awaitable[T]]) -> T:
        return await watched(send(self._primary(node), False), partial(self._look_for_successor, node), self._runtime)

    async def _look_for_successor(self, node: Node) -> None:
        """The node does not answer. If others say that it is no primary any more, close the connections to it."""
        await self.read_map(but=node)
        now = self.topology.slots.primaries
        if now and node not in now:
            primary = self._primaries.pop(node, None)
            if primary is not None:
                primary.close_now()

    def _passes(self, error: HoldfastError | ReplyError, reply: ReplyError | None) -> bool:
        """True: nothing was carried out, and a later try may succeed."""
        if reply is not None:
            return reply.code in _PASSES
        return isinstance(error, EngineUnavailable) and not self._closed

    def _unavailable(self, why: str) -> HoldfastError:
        return EngineUnavailable(
            f"The {self.what} at {self.place}: {why} Waited {self._wait_s:g} s. Nothing was written. Try again later.",
            engine=SCHEME,
        )

    async def _has_no_keys(self, node: Node, slot: int) -> bool:
        try:
            return bool(await self._primary(node).command("CLUSTER", "COUNTKEYSINSLOT", slot) == 0)
        except (HoldfastError, ReplyError):  # it is down, or the user must not ask
            return False

    # The map

    async def read_map(self, *, first: Node | None = None, but: Node | None = None) -> None:
        """Learn which node has which slot. If no node answers, everything stays as it is."""
        if self._is_reading:
            return
        self._is_reading = True
        try:
            slots = await self._ask_for_map(first, but)
        finally:
            self._is_reading = False
        if slots is not None:
            self.topology.learn(slots)
            self._drop_others(slots)

    def _drop_others(self, slots: SlotMap) -> None:
        """Forget nodes that are no primaries any more, once their connections have ended."""
        kept = {*slots.primaries, *self.topology.seeds}
        for node, primary in tuple(self._primaries.items()):
            if node not in kept and not primary.is_connected:
                self._primaries.pop(node, None)
                primary.close_now()

    async def _ask_for_map(self, first: Node | None, but: Node | None) -> SlotMap | None:
        """Ask one node after the other, `first` that one, `but` never that one, for as long as a call may wait."""
        nodes = () if first is None else (first,)
        ends_at = self._runtime.monotonic() + round(self._wait_s * SECOND)
        for node in dict.fromkeys((*nodes, *self.topology.slots.primaries, *self.topology.seeds)):
            if node == but:
                continue
            try:
                async with asyncio.timeout(MAP_TIMEOUT_S):
                    return read_slots(await self._primary(node).command("CLUSTER", "SLOTS"), node)
            except (HoldfastError, ReplyError, TimeoutError) as error:
                _logger.debug("The node %s did not say where the slots are: %s", node, error)
            if self._runtime.monotonic() > ends_at:
                break
        return None


class _Pauses:
    """The pauses of one call: each is twice as long as the last one, and all together are limited."""

    def __init__(self, runtime: Runtime, limit_s: Seconds) -> None:
        self._runtime = runtime
        self._ends_at = runtime.monotonic() + round(limit_s * SECOND)
        self._next_s = FIRST_PAUSE_S

    async def pause(self) -> bool:
        """False: the time is over."""
        left_s = (self._ends_at - self._runtime.monotonic()) / SECOND
        if left_s <= 0:
            return False
        await self._runtime.sleep(min(left_s, self._next_s * (0.5 + self._runtime.random())))
        self._next_s = min(2 * self._next_s, LONGEST_PAUSE_S)
        return True


def _translated(error: HoldfastError | ReplyError, place: str, verb: str) -> HoldfastError:
    return of_reply(error, place, verb) if isinstance(error, ReplyError) else error
