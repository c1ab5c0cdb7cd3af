"""A user who may do no more than the guide lists. The contract suite runs with these rights, too (`redis-least`)."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
import redis_acl
from every_verb import every_verb
from opened_engine import opened_engine
from redis_server import RedisServer
from redis_stores import Store

import holdfast.engines.redis
from holdfast.engines import open_engine

FORBIDDEN = (("GET", "other"), ("KEYS", "*"), ("FLUSHDB",), ("CONFIG", "SET", "maxmemory", 0), ("ACL", "LIST"))
LUA = Path(holdfast.engines.redis.__file__).parent / "lua"


def test_every_command_of_the_script_is_listed() -> None:
    called = {
        name.lower() for file in LUA.glob("*.lua") for name in re.findall(r'call\(\s*"([A-Z]+)"', file.read_text())
    }
    lines = (*redis_acl.CLIENT, *redis_acl.SCRIPT, *redis_acl.CLUSTER)
    assert called - {name.partition("|")[0] for line in lines for name in line} == set()


async def test_a_limited_user_may_use_every_verb_and_nothing_else(
    redis_server: RedisServer, redis_store: Callable[[], Store]
) -> None:
    store = redis_acl.limited_to(redis_server, redis_store())
    async with opened_engine(open_engine(store.url, namespace=store.namespace, durability="none")) as engine:
        assert engine.capabilities.push  # it may subscribe
        commands: Any = every_verb(engine)
        answer = None
        with suppress(StopIteration):
            while True:
                answer = await engine.perform(commands.send(answer))
    with redis.Redis.from_url(store.url) as client:
        for words in FORBIDDEN:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)  # type: ignore[no-untyped-call]
