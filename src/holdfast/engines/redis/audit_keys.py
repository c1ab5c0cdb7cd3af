"""How an audit reads the keys of a root: a small store in one step of the server, a large one in pages.

Which keys exist follows from what is in them: queues have lanes, parents have edges. So `AtOnce` reads the keys that it
knows in one script, notes the keys that the audit asks for besides, and reads all of them again, until none is missing.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

Run = Callable[..., Awaitable[Any]]
"""Sends one command to the server."""
PAGE = 1_000
MAX_AT_ONCE = 20_000
"""Entries of all keys together that one script reads: some 50 ms, for which the server answers nobody else."""

_READ_ALL = """
local SIZES = { h = "HLEN", z = "ZCARD", s = "SCARD", e = "EXISTS" }
local total, found = 0, {}
for place = 2, #ARGV do
  local kind, name = string.sub(ARGV[place], 1, 1), KEYS[1] .. string.sub(ARGV[place], 2)
  total = total + redis.call(SIZES[kind], name)
  if total > tonumber(ARGV[1]) then
    return false
  elseif kind == "h" then
    found[#found + 1] = redis.call("HGETALL", name)
  elseif kind == "z" then
    found[#found + 1] = redis.call("ZRANGE", name, 0, -1, "WITHSCORES")
  elseif kind == "s" then
    found[#found + 1] = redis.call("SMEMBERS", name)
  else
    found[#found + 1] = redis.call("EXISTS", name)
  end
end
return found
"""

Scores = dict[bytes, float]
"""A sorted set: member → score."""


class Keys(ABC):
    """Reads whole keys of a root."""

    @abstractmethod
    async def hash(self, key: str) -> dict[bytes, bytes]: ...

    @abstractmethod
    async def zset(self, key: str) -> Scores: ...

    @abstractmethod
    async def members(self, key: str) -> list[bytes]: ...

    @abstractmethod
    async def exists(self, key: str) -> bool: ...


class InPages(Keys):
    """Other clients may write between two pages."""

    def __init__(self, run: Run, root: str) -> None:
        self._run, self._root = run, root

    async def hash(self, key: str) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        cursor: Any = 0
        while True:
            cursor, page = await self._run("HSCAN", self._root + key, cursor, "COUNT", PAGE)
            found.update(_pairs(page))
            if int(cursor) == 0:
                return found

    async def zset(self, key: str) -> Scores:
        found: Scores = {}
        first = 0
        while True:
            page = await self._run("ZRANGE", self._root + key, first, first + PAGE - 1, "WITHSCORES")
            found.update((member, float(score)) for member, score in _pairs(page))
            first += PAGE
            if len(page) < 2 * PAGE:
                return found

    async def members(self, key: str) -> list[bytes]:
        return list(await self._run("SMEMBERS", self._root + key))

    async def exists(self, key: str) -> bool:
        return bool(await self._run("EXISTS", self._root + key))


class AtOnce(Keys):
    """The keys of one moment. `missing`: keys that were asked for and have not been read."""

    def __init__(self, run: Run, root: str) -> None:
        self._run, self._root = run, root
        self._values: dict[str, Any] = {}
        self.missing: set[str] = set()

    async def read(self) -> bool:
        """Read all known and missing keys. False: they are too large for one step."""
        keys = [*self._values, *sorted(self.missing)]
        self.missing = set()
        values: Sequence[Any] | None = await self._run("EVAL", _READ_ALL, 1, self._root, MAX_AT_ONCE, *keys)
        if values is not None:
            self._values = dict(zip(keys, values, strict=True))
        return values is not None

    def _value(self, key: str) -> Any:
        if key not in self._values:
            self.missing.add(key)
            return ()
        return self._values[key]

    async def hash(self, key: str) -> dict[bytes, bytes]:
        return dict(_pairs(self._value("h" + key)))

    async def zset(self, key: str) -> Scores:
        return {member: float(score) for member, score in _pairs(self._value("z" + key))}

    async def members(self, key: str) -> list[bytes]:
        return list(self._value("s" + key))

    async def exists(self, key: str) -> bool:
        return bool(self._value("e" + key))


def _pairs(values: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(values[::2], values[1::2], strict=True)
