"""Replicas of a Redis server of a test."""

from redis_server import RedisServer, Settings, new_folder, start_new


def start_replica(primary: RedisServer, settings: Settings | None = None) -> RedisServer:
    """A new server that copies `primary`. The caller closes it."""
    assert primary.binary is not None
    primary.configure(repl_diskless_sync_delay=0)  # else it waits 5 s for more replicas
    own: Settings = {"replicaof": f"127.0.0.1 {primary.port}", "masterauth": primary.password}
    return start_new(primary.binary, new_folder(primary.binary), own | (settings or {}), password=primary.password)


def has_everything(replica: RedisServer, primary: RedisServer) -> bool:
    """True if the replica has all writes that the primary has."""
    copied = replica.client.info("replication")
    written = primary.client.info("replication")["master_repl_offset"]
    return bool(copied["master_link_status"] == "up" and copied["slave_repl_offset"] >= written)


def cut_off(replica: RedisServer) -> None:
    """It gets nothing more from its primary, and stays a replica."""
    replica.execute("REPLICAOF", "127.0.0.1", 1)


def promote(replica: RedisServer) -> None:
    """It becomes a primary of its own."""
    replica.execute("REPLICAOF", "NO", "ONE")
