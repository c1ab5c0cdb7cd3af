"""A user with the published rights can do everything that Holdfast does, and nothing else; namespaces are apart."""

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from opened_engine import opened_engine
from redis_server import RedisServer, names
from redis_server import server as shared_server

import holdfast.engines.redis
from holdfast.cli.exits import USAGE, code_of
from holdfast.engines import open_engine
from holdfast.engines.redis.acl import WRITES, acl_rules
from holdfast.errors import ConfigError
from holdfast.model.job import JobKey
from holdfast.model.produce import Group
from holdfast.model.records import WorkerRecord
from holdfast.testing.contract.builders import QUEUE, claim, new_job, succeed

PACKAGE = Path(holdfast.engines.redis.__file__).parent
OTHER_WORDS = "COUNT FORMAT HISTORY HOLDFAST LIMIT MASTER SENTINEL WITHSCORES"  # options, our words, Sentinels
ERROR_CODES = (
    "ASK BUSY CLUSTERDOWN CROSSSLOT ERR LOADING MASTERDOWN MISCONF MOVED NOAUTH NOPERM NOREPLICAS NOSCRIPT OOM "
    "READONLY TRYAGAIN WRONGPASS"
)
NO_COMMANDS = frozenset(f"{OTHER_WORDS} {ERROR_CODES}".split())
"""Words in capital letters that are no command on a server with jobs."""


def test_the_rights_cover_every_command_in_the_source() -> None:
    files = [*PACKAGE.glob("*.py"), *PACKAGE.glob("lua/*.lua")]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    used = set(re.findall(r'"([A-Z]{3,})"', text)) - NO_COMMANDS
    rules = acl_rules("n", cluster=True, sharded=True)
    granted = {word for rule in rules if rule[0] == "+" for word in rule[1:].upper().split("|")}
    assert used <= granted


@pytest.fixture(params=names())
def server(request: pytest.FixtureRequest) -> RedisServer:
    return shared_server(request.param)


@pytest.fixture
def user_name() -> str:
    """Of one test: tests that run at the same time share the server."""
    return f"shop_{uuid4().hex[:8]}"


@pytest.fixture
def user(server: RedisServer, user_name: str) -> Iterator[str]:
    """The address of a user that has the rights for the namespace `shop_rights`."""
    server.execute("ACL", "SETUSER", user_name, "reset", "on", ">secret", *acl_rules("shop_rights"))
    yield server.url(user=user_name, password="secret")
    server.execute("ACL", "DELUSER", user_name)


async def test_a_user_with_the_published_rights_works_in_its_namespace(user: str) -> None:
    async with opened_engine(open_engine(user, namespace="shop_rights", durability="none")) as engine:
        with engine.subscribe(f"queue:{QUEUE}") as subscription:
            await engine.enqueue(Group((new_job("a"), new_job("b", lane="l"), new_job("c", payload=b"x" * 20_000))))
            assert await subscription.wait(30)
        leases = (await engine.claim(claim("c", limit=3))).leases
        await engine.settle(*map(succeed, leases))
        await engine.heartbeat(WorkerRecord(worker="w"))
        await engine.clear(QUEUE)
        await engine.put_pool("p", 3)
        await engine.resize("p", 5)
        await engine.prune()
        assert await engine.audit() == ()


async def test_a_user_with_the_published_rights_can_do_nothing_else(user: str) -> None:
    with redis.Redis.from_url(user) as other:
        for command in (
            ("GET", "elsewhere:key"),
            ("HGETALL", "shop_rights_too:meta"),
            ("FLUSHALL",),
            ("KEYS", "*"),
            ("CONFIG", "SET", "maxmemory", "1"),
            ("PUBLISH", "elsewhere:0:x", ""),
            ("EVAL", "return redis.call('GET', 'elsewhere:key')", 0),
            ("SHUTDOWN",),
        ):
            with pytest.raises(redis.ResponseError, match=r"permission|can't access"):
                other.execute_command(*command)


async def test_a_user_without_one_of_the_rights_to_write_is_refused_at_open(
    server: RedisServer, user: str, user_name: str
) -> None:
    """Else its first script would stop in the middle."""
    url, names = user, [*WRITES, "publish"]
    for missing in names:
        server.execute("ACL", "SETUSER", user_name, f"-{missing}")
        with pytest.raises(ConfigError, match=rf"(?i)\b{missing}\b.*lists the rights that it needs"):
            await open_engine(url, namespace="shop_rights", durability="none").open()
        server.execute("ACL", "SETUSER", user_name, f"+{missing}")
    async with opened_engine(open_engine(url, namespace="shop_rights", durability="none")):
        assert server.client.keys("shop_rights:rights") == []


@pytest.mark.parametrize("missing", ["evalsha", "hset"])
async def test_a_missing_right_ends_a_command_as_a_wrong_password_does(
    server: RedisServer, user: str, user_name: str, missing: str
) -> None:
    server.execute("ACL", "SETUSER", user_name, f"-{missing}")
    with pytest.raises(ConfigError, match=f"(?i){missing}") as refused:
        await open_engine(user, namespace="shop_rights", durability="none").open()
    assert code_of(refused.value) == USAGE


async def test_another_namespace_than_that_of_the_rights_is_a_wrong_setting(user: str) -> None:
    engine = open_engine(user, namespace="shop_other", durability="none")
    for call in (engine.open, engine.migrate):
        with pytest.raises(ConfigError, match="lists the rights that it needs"):
            await call()


@pytest.mark.usefixtures("confirmed_subscriptions")
async def test_namespaces_and_databases_are_apart(server: RedisServer) -> None:
    """Jobs, claims and notifications of one reach no other."""
    database = server.database
    places = [(database, "apart_one"), (database, "apart_two"), (database + 30, "apart_one")]
    engines = [open_engine(server.url(number), namespace=name, durability="none") for number, name in places]
    async with opened_engine(engines[0]), opened_engine(engines[1]), opened_engine(engines[2]):
        subscriptions = [engine.subscribe(f"queue:{QUEUE}") for engine in engines]
        await engines[0].enqueue(Group((new_job("a"),)))
        assert await subscriptions[0].wait(30) == {f"queue:{QUEUE}"}
        for other, subscription in zip(engines[1:], subscriptions[1:], strict=True):
            assert (await other.get(JobKey(QUEUE, "a"))).jobs == (None,)
            assert (await other.claim(claim("c"))).leases == ()
            assert (await other.stats()).queues == ()
            # Its own notification is the first that comes.
            await other.enqueue(Group((new_job("b", queue="other"),)))
            assert await subscription.wait(0.05) == frozenset()
            assert await other.audit() == ()
        server.execute("SELECT", database + 30)
        server.execute("FLUSHDB")
        server.execute("SELECT", database)
        for name in ("apart_one", "apart_two"):
            server.execute("UNLINK", *server.client.keys(f"{name}:*"))
