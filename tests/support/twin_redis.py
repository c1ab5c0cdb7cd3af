"""Two namespaces on one Redis server, one with and one without the fast path, which get the same calls.

Each call goes to both with the same time. Ids and claim ids are in the commands. So both must give the same answer,
store the same bytes under the same names, and notify the same topics. All of it is compared after each call.
"""

from collections import Counter
from typing import Any

import msgspec
from redis_server import RedisServer
from redis_stores import fresh_namespace

from holdfast.engines.redis import calls
from holdfast.engines.redis.engine import RedisEngine
from holdfast.engines.redis.script_caller import ScriptCaller
from holdfast.engines.redis.scripts import ServerScript, whole_script
from holdfast.model.command import A, Command
from holdfast.runtime import SystemRuntime

BEGIN_US = 1_700_000_000_000_000
TAKEN = "twins:taken"
"""A hash: which verbs the fast path has carried out, and how often."""
TAKEN_HERE = b"  if done then\n"
"""The line of main.lua that follows a call of the fast path."""


def counting_script() -> ServerScript:
    """The script with a counter behind the fast path."""
    text = whole_script().text
    assert text.count(TAKEN_HERE) == 1, "main.lua has changed: count the calls of the fast path at another place"
    counted = TAKEN_HERE + f'    redis.call("HINCRBY", "{TAKEN}:" .. root, verb, 1)\n'.encode()
    return ServerScript(text.replace(TAKEN_HERE, counted).decode())


class CallerAt(ScriptCaller):
    at_us = BEGIN_US
    finishes_work = True

    def options(self, root: str, run: str, first_rank: int, replicated: bool) -> bytes:
        options = msgspec.msgpack.decode(super().options(root, run, first_rank, replicated))
        return calls.encode_map({**options, "at": self.at_us + self.offset_us})

    async def _finish(self, primary: Any, root: str, begun: tuple[str, ...], answer: A) -> A:
        return await super()._finish(primary, root, begun, answer) if self.finishes_work else answer


class EngineAt(RedisEngine):
    """Its time is what `at_us` says. If it does not finish work, a large clear is left after its first piece."""

    caller_type = CallerAt
    _caller: CallerAt

    @property
    def at_us(self) -> int:
        return self._caller.at_us

    @at_us.setter
    def at_us(self, value: int) -> None:
        self._caller.at_us = value

    @property
    def finishes_work(self) -> bool:
        return self._caller.finishes_work

    @finishes_work.setter
    def finishes_work(self, value: bool) -> None:
        self._caller.finishes_work = value


class Twins(EngineAt):
    """The one with the fast path. `other` is the one without it."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._namespaces: list[str] = []
        super().__init__(*self._store(), script=counting_script(), **self._options_of_store())
        self.other = EngineAt(*self._store(), fast_paths=False, **self._options_of_store())
        self.topics: set[str] = set()
        """Notified by the last command."""
        self._messages = server.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]

    def _store(self) -> tuple[str, SystemRuntime]:
        store = fresh_namespace(self._server)
        self._namespaces.append(store.namespace)
        return store.url, SystemRuntime()

    def _options_of_store(self) -> dict[str, Any]:
        return {"namespace": self._namespaces[-1], "durability": "none", "notify": False}

    async def open(self) -> None:
        await super().open()
        await self.other.open()
        self._messages.psubscribe(*(f"{namespace}:*" for namespace in self._namespaces))

    async def close(self) -> None:
        await super().close()
        await self.other.close()
        self._messages.close()

    async def perform(self, command: Command[A]) -> A:
        """Send a command to both and compare answers and keys."""
        self.at_us += 7
        self.other.at_us, self.other.clock_offset = self.at_us, self.clock_offset
        answer, expected = await super().perform(command), await self.other.perform(command)
        assert answer == expected, f"the fast path answers {answer}\nthe rules answer {expected}"
        self.compare_keys(command)
        self.compare_topics(command)
        return answer

    def compare_keys(self, command: Command[Any]) -> None:
        fast, general = (self.keys(namespace) for namespace in self._namespaces)
        for name in sorted(fast.keys() | general.keys()):
            assert fast.get(name) == general.get(name), (
                f"after {command} the key {name!r} is {fast.get(name)}\nwithout the fast path {general.get(name)}"
            )

    def compare_topics(self, command: Command[Any]) -> None:
        """The server sends messages before it answers the call that has sent them."""
        topics: dict[str, list[str]] = {namespace: [] for namespace in self._namespaces}
        while (message := self._messages.get_message(timeout=0)) is not None:
            namespace, _, topic = message["channel"].decode().split(":", 2)
            topics[namespace].append(topic)
        fast, general = (sorted(topics[namespace]) for namespace in self._namespaces)
        assert fast == general, f"after {command} the topics are {fast}, without the fast path {general}"
        self.topics = set(fast)

    def keys(self, namespace: str) -> dict[bytes, Any]:
        """Every key of a namespace with its value."""
        client, prefix = self._server.client, f"{namespace}:".encode()
        names = sorted(client.scan_iter(match=prefix + b"*", count=100_000))
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.type(name)
        kinds = pipeline.execute()
        for name, kind in zip(names, kinds, strict=True):
            READERS[kind](pipeline, name)
        return {name.removeprefix(prefix): value for name, value in zip(names, pipeline.execute(), strict=True)}

    def forget_taken(self) -> None:
        """Count from 0."""
        self._server.client.delete(f"{TAKEN}:{self._namespaces[0]}:")

    def taken(self) -> Counter[str]:
        """How often the fast path has carried out each verb."""
        stored: Any = self._server.client.hgetall(f"{TAKEN}:{self._namespaces[0]}:")
        return Counter({verb.decode(): int(count) for verb, count in stored.items()})


READERS: dict[bytes, Any] = {
    b"hash": lambda pipeline, name: pipeline.hgetall(name),
    b"zset": lambda pipeline, name: pipeline.zrange(name, 0, -1, withscores=True),
    b"set": lambda pipeline, name: pipeline.smembers(name),
    b"string": lambda pipeline, name: pipeline.get(name),
}
