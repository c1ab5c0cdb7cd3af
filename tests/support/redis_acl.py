"""The rights that Holdfast needs on a Redis server, as the guide "Redis and Valkey in production" lists them."""

import secrets
from functools import cache

from redis_server import RedisServer
from redis_stores import Store

CLIENT = (
    ("eval", "evalsha"),
    ("select", "ping", "wait"),
    ("info", "config|get", "client|setname"),
    ("hscan",),
    ("subscribe", "unsubscribe", "publish", "pubsub|numsub"),
)
"""What the client sends."""
SCRIPT = (
    ("time", "exists", "get", "set", "del"),
    ("hexists", "hget", "hgetall", "hincrby", "hmget", "hset", "hdel"),
    ("sadd", "smembers", "srem"),
    ("zadd", "zcount", "zmscore", "zrange", "zrangebyscore", "zrem", "zremrangebyrank"),
    ("zrevrangebylex", "zrevrangebyscore"),
)
"""What the script calls. The server checks the rights of the user there, too."""
CLUSTER = (
    ("asking", "cluster|slots", "cluster|countkeysinslot"),
    ("ssubscribe", "sunsubscribe", "spublish", "pubsub|shardnumsub"),
)
"""What a cluster needs besides. Redis 6.2 does not know the second line."""


def rules(namespace: str) -> list[str]:
    """The rules of ACL SETUSER for one namespace, without a password."""
    commands = [f"+{command}" for line in (*CLIENT, *SCRIPT) for command in line]
    return ["on", "resetkeys", f"~{namespace}:*", "resetchannels", f"&{namespace}:*", "-@all", *commands]


def limited_to(server: RedisServer, store: Store) -> Store:
    """The same store with the login of a new user, who has these rights and no others."""
    user, password = f"user-of-{store.namespace}", _password(server)
    server.execute("ACL", "SETUSER", user, *rules(store.namespace), f">{password}")
    return store._replace(url=server.url(user=user, password=password))


@cache
def _password(server: RedisServer) -> str:
    return secrets.token_hex(16)
