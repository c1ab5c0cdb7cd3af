"""The rights that the engine needs on a server, as rules of an ACL. The guide on Redis shows them to operators.

A script runs with the rights of the user that calls it, so the commands inside the scripts are listed, too. A user with
these rights can neither use a key outside the namespace nor change the server's settings nor list its keys.

A script that fails for want of a right stops there, and what it has written before stays. So the commands that write
are tried at open.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.engines.redis.failures import ReplyError

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


_TRY_WRITES = """
local key, channel = KEYS[1], ARGV[1]
local tries = {
  { "ZREM", key, "" }, -- first: after a write that frees memory the server refuses none for want of it
  { "ZADD", key, "0", "x" }, { "ZREM", key, "x" }, { "ZREMRANGEBYRANK", key, "0", "0" },
  { "HSET", key, "x", "1" }, { "HINCRBY", key, "x", "1" }, { "HDEL", key, "x" },
  { "SADD", key, "x" }, { "SREM", key, "x" },
  { "SET", key, "" }, { "DEL", key },
  { ARGV[2], channel, "" },
}
for _, command in ipairs(tries) do
  local reply = redis.pcall(unpack(command))
  if type(reply) == "table" and reply.err then
    for _, words in ipairs({ "NOPERM", "permission", "The user executing the script can't" }) do
      if string.find(reply.err, words, 1, true) then
        return command[1]
      end
    end
  end
end
return false
"""


async def check_rights(send: Callable[..., Awaitable[Any]], root: str, channel: str, *, sharded: bool) -> None:
    """Try every command that writes, on a key of its own. Raises `ReplyError` if the user may not send one of them."""
    publish = "SPUBLISH" if sharded else "PUBLISH"
    refused = await send("EVAL", _TRY_WRITES, 1, f"{root}rights", f"{channel}rights", publish)
    if refused is not None:
        raise ReplyError(f"NOPERM the user has no permissions to run {refused.decode()} on {root}* and {channel}*")
