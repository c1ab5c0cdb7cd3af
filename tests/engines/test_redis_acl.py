"""A user who may do no more than the guide lists. The contract suite runs with these rights, too (`redis-least`)."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
import redis_acl
from every_verb import every_verb
from opened_engine import opened_engine
from redis_server import RedisServer
from redis_stores import Store

import holdfast.engines.redis
from holdfast.engines import open_engine

LUA = Path(holdfast.engines.redis.__file__).parent / "lua"


def test_every_command_of_the_script_is_listed() -> None:
    called = {
        name.lower() for file in LUA.glob("*.lua") for name in re.findall(r'call\(\s*"([A-Z]+)"', file.read_text())
    }
    listed = {
        name.partition("|")[0] for line in (*redis_acl.CLIENT, *redis_acl.SCRIPT, *redis_acl.CLUSTER) for name in line
    }
    assert called - listed == set()


async def test_a_limited_user_uses_every_verb_and_needs_every_right(
    redis_server: RedisServer, redis_store: Callable[[], Store]
) -> None:
    store = redis_acl.limited_to(redis_server, redis_store())
    async with opened_engine(open_engine(store.url, namespace=store.namespace, durability="none")) as engine:
        commands = every_verb(engine)
        command = next(commands)
        try:
            while True:
                command = commands.send(await engine.perform(command))
        except StopIteration:
            pass
    with redis.Redis.from_url(store.url) as client:
        for refused in (
            ("GET", "other"),
            ("KEYS", "*"),
            ("FLUSHDB",),
            ("CONFIG", "SET", "maxmemory", 0),
            ("ACL", "LIST"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*refused)  # type: ignore[no-untyped-call]
