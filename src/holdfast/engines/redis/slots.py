"""Which node of a cluster is the primary of a slot.

A cluster divides all keys into 16,384 slots. The slot of a key follows from the text between its first pair of braces,
so all keys under one root are in one slot (`roots.py`). The map of slots is read with CLUSTER SLOTS from any node. It
is a hint: a node that does not have a slot answers MOVED with the address of the node that has it.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from redis.crc import key_slot


class Node(NamedTuple):
    """The address of one server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class SlotRange(NamedTuple):
    """Consecutive slots with the same primary."""

    first: int
    last: int
    primary: Node


class Redirect(NamedTuple):
    """The text of a MOVED or ASK reply: the slot, and the node to call instead."""

    slot: int
    node: Node


SLOTS = 16_384


def slot_of(key: str | bytes) -> int:
    return key_slot(key if isinstance(key, bytes) else key.encode())


class SlotMap:
    """An unchanging map. `moved` makes another one."""

    def __init__(self, ranges: Iterable[SlotRange] = ()) -> None:
        self._ranges = sorted(ranges)
        self._firsts = [one.first for one in self._ranges]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SlotMap) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(tuple(self._ranges))

    def primary_of(self, slot: int) -> Node | None:
        """None: no node has the slot, as far as this map says."""
        place = bisect_right(self._firsts, slot) - 1
        if place < 0 or slot > self._ranges[place].last:
            return None
        return self._ranges[place].primary

    @property
    def primaries(self) -> tuple[Node, ...]:
        """Every primary once, by the first of its slots."""
        return tuple(dict.fromkeys(one.primary for one in self._ranges))

    def moved(self, slot: int, primary: Node) -> "SlotMap":
        """The same map, but this slot has another primary."""
        ranges = []
        for one in self._ranges:
            if one.first <= slot <= one.last:
                parts = ((one.first, slot - 1), (slot + 1, one.last))
                ranges += [SlotRange(first, last, one.primary) for first, last in parts if first <= last]
            else:
                ranges.append(one)
        return SlotMap([*ranges, SlotRange(slot, slot, primary)])


class Topology:
    """What this process knows of the primaries: shared by all connections of an engine, used from any thread."""

    def __init__(self, seeds: Iterable[Node] = ()) -> None:
        self.seeds = tuple(seeds)
        """Servers that are asked first."""
        self.slots = SlotMap()
        self.on_change: Callable[[], object] | None = None
        """Called, on any thread, when slots have another primary than before."""

    def learn(self, slots: SlotMap) -> None:
        if slots != self.slots:
            self.slots = slots
            if self.on_change is not None:
                self.on_change()


def read_slots(reply: Iterable[Any], sender: Node) -> SlotMap:
    """The map from a reply to CLUSTER SLOTS. A node that does not know its own address leaves it empty."""
    ranges = []
    for first, last, primary, *_ in reply:
        ranges.append(SlotRange(int(first), int(last), _node(primary[0], primary[1], sender)))
    return SlotMap(ranges)


def read_redirect(text: str, sender: Node) -> Redirect:
    """The text after MOVED or ASK: `3999 127.0.0.1:6381`. Without a host the sender's is meant."""
    slot, _, address = text.partition(" ")
    host, _, port = address.partition(" ")[0].rpartition(":")
    return Redirect(int(slot), _node(host, port, sender))


def _node(host: bytes | str | None, port: int | str | bytes, sender: Node) -> Node:
    name = host.decode() if isinstance(host, bytes) else host
    if name in ("", "?", None):
        name = sender.host
    return Node(name.strip("[]"), int(port))
