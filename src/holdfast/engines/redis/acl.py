"""The rights that the engine needs on a server, as rules of an ACL. The guide on Redis shows them to operators.

A script runs with the rights of the user that calls it, so the commands inside the scripts are listed, too. A user with
these rights can neither use a key outside the namespace nor change the server's settings nor list its keys.
"""

CONNECT = ("hello", "select", "ping", "client|setname", "info", "config|get", "wait")
"""`info` and `config|get`: which server answers, and how durable it is. Where they are missing, state `durability`."""
SCRIPTS = ("eval", "evalsha")
READS = (
    "exists",
    "get",
    "hexists",
    "hget",
    "hgetall",
    "hlen",
    "hmget",
    "hscan",
    "scard",
    "smembers",
    "time",
    "zcard",
    "zcount",
    "zmscore",
    "zrange",
    "zrangebyscore",
    "zrevrangebylex",
    "zrevrangebyscore",
)
WRITES = ("del", "hdel", "hincrby", "hset", "sadd", "set", "srem", "zadd", "zrem", "zremrangebyrank")
CHANNELS = ("publish", "subscribe", "unsubscribe", "pubsub|numsub")
CLUSTER = ("cluster|slots", "cluster|countkeysinslot", "asking")
"""On a cluster, in addition."""
SHARDED_CHANNELS = ("spublish", "ssubscribe", "sunsubscribe", "pubsub|shardnumsub")
"""On a cluster of Redis 7.0 or later or of Valkey. Redis 6.2 refuses a rule with a command that it does not know."""


def acl_rules(namespace: str, *, cluster: bool = False, sharded: bool = False) -> list[str]:
    """The rules of a user that works with one namespace. Log-in and password are not among them."""
    commands = [*CONNECT, *SCRIPTS, *READS, *WRITES, *CHANNELS]
    names = [f"{namespace}:*", f"{{{namespace}}}:*"]  # the second: `cluster=namespace`, looked for in every mode
    if cluster:
        commands += CLUSTER
    if sharded:
        commands += SHARDED_CHANNELS
    keys, channels = [f"~{name}" for name in names], [f"&{name}" for name in names]
    return ["resetkeys", *keys, "resetchannels", *channels, "nocommands", *(f"+{command}" for command in commands)]
