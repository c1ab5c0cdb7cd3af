"""What `holdfast doctor` checks on Redis and Valkey: commands that only read, on each primary."""

from collections.abc import Iterator, Mapping

from holdfast.engines.redis.durability import DURABLE_SETTINGS, NO_EVICTION, SendCommand, ServerDurability, read_info
from holdfast.engines.redis.failures import FORMAT
from holdfast.engines.redis.settings import RedisSettings
from holdfast.errors import ConfigError
from holdfast.model.findings import (
    CONNECTIONS,
    DURABILITY,
    EVICTION,
    MEMORY,
    REPLICAS,
    SCHEMA,
    VERSION,
    Finding,
    Report,
)

SECTIONS = ("memory", "replication", "persistence", "clients")
FULL = 0.8
"""The share of the memory or the connections in use from which on there is a warning."""
ADVICE = {
    "durable": "",
    "fast": f"Set {DURABLE_SETTINGS} on the server if no acknowledged job may be lost.",
    "none": "Turn on the append-only file (appendonly yes) and wait for its first rewrite, unless jobs may be lost.",
}


def check_server_version(server: Mapping[str, str], oldest: tuple[int, ...]) -> Finding:
    version = server.get("valkey_version") or server.get("redis_version", "")
    name = "Valkey" if server.get("valkey_version") else "Redis"
    wanted = ".".join(map(str, oldest))
    if not version:
        return VERSION.note(
            "The server does not say its version.", f"Holdfast needs Redis {wanted} or newer, or Valkey."
        )
    numbers = tuple(int(part) for part in server.get("redis_version", version).split(".")[:2] if part.isdigit())
    if numbers < oldest:
        return VERSION.problem(f"{name} {version} is too old.", f"Use Redis {wanted} or newer, or Valkey.")
    return VERSION.ok(f"{name} {version}.")


async def examine_servers(
    servers: list[SendCommand], durability: ServerDurability, settings: RedisSettings, report: Report
) -> None:
    """`servers`: every one that holds jobs."""
    report(await _durability(servers, durability))
    report(_eviction(durability.eviction, allowed=settings.allow_eviction))
    for number, send in enumerate(servers, 1):
        info = {name: value for section in SECTIONS for name, value in (await read_info(send, section)).items()}
        place = f"Server {number} of {len(servers)}: " if len(servers) > 1 else ""
        for finding in _of_info(info, settings.replicas, place):
            report(finding)


def check_format(stored: bytes | None) -> Finding:
    """`stored` is the number of the format in the store."""
    if stored is None:
        return SCHEMA.note(
            "Nothing is stored in this namespace yet. The first call makes the store.",
            "If jobs should be there, check the address, its database number and the namespace.",
        )
    found = stored.decode(errors="replace")
    if found != str(FORMAT):
        return SCHEMA.problem(
            f"The jobs are stored in format {found}, this release has format {FORMAT}.",
            "Use the release that stored them, or a later one.",
        )
    return SCHEMA.ok(f"The jobs are stored in format {found}.")


async def _durability(servers: list[SendCommand], durability: ServerDurability) -> Finding:
    try:
        await durability.check(*servers)
    except ConfigError as error:
        if error.key == "durability":
            return DURABILITY.problem(str(error), "A worker refuses such a server.")
    text = f"{durability.promise}."
    match durability.found:
        case "durable":
            return DURABILITY.ok(text)
        case "fast":
            return DURABILITY.note(f"{text} A loss of power may take back what was acknowledged last.", ADVICE["fast"])
        case _:
            return DURABILITY.warning(f"{text} A restart of the server loses acknowledged jobs.", ADVICE["none"])


def _eviction(policy: str | None, *, allowed: bool) -> Finding:
    if policy is None:
        return EVICTION.note(
            "The server does not say what it does when its memory is full.",
            f"Make sure that its maxmemory-policy is {NO_EVICTION}: any other one deletes jobs.",
        )
    if policy == NO_EVICTION:
        return EVICTION.ok(f"The server deletes nothing when its memory is full ({NO_EVICTION}).")
    text = f"The server deletes keys when its memory is full, and so jobs: maxmemory-policy is {policy}."
    advice = f"Run CONFIG SET maxmemory-policy {NO_EVICTION}, and set the same in its configuration file."
    return EVICTION.warning(f"{text} The settings allow it.", advice) if allowed else EVICTION.problem(text, advice)


def _of_info(info: Mapping[str, str], replicas: int, place: str) -> Iterator[Finding]:
    """From the sections of INFO. A field that the server does not show is not checked."""
    if info.get("role") == "slave":
        yield DURABILITY.problem(
            f"{place}It is a replica: it accepts no writes.", "Use the address of the primary, or of the Sentinels."
        )
    if info.get("aof_last_write_status", "ok") != "ok":
        yield DURABILITY.problem(
            f"{place}It cannot write its append-only file, and refuses all writes.",
            "Look into its log. Most often its disk is full.",
        )
    connected = int(info.get("connected_slaves", 0))
    if replicas and connected < replicas:
        yield REPLICAS.problem(
            f"{place}{connected} of the {replicas} replicas are connected that each write waits for. Every write "
            "raises OutcomeUnknown.",
            "Start the replicas, or lower `[redis] replicas`.",
        )
    elif "connected_slaves" in info:
        yield REPLICAS.ok(f"{place}{connected} connected; a write waits for {replicas}.")
    most_bytes, used_bytes = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    used = f"{place}{used_bytes / 2**20:,.0f} MiB are in use"
    if most_bytes and used_bytes >= FULL * most_bytes:
        yield MEMORY.warning(
            f"{used}, and maxmemory is {most_bytes / 2**20:,.0f} MiB. When it is full, no job is accepted.",
            "Raise maxmemory, or shorten the retention of ended jobs.",
        )
    elif used_bytes:
        yield MEMORY.ok(f"{used}; {f'maxmemory is {most_bytes / 2**20:,.0f} MiB' if most_bytes else 'no maxmemory'}.")
    clients, most = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    if most and clients >= FULL * most:
        yield CONNECTIONS.warning(
            f"{place}{clients} of {most} connections are in use. When all are, processes cannot connect.",
            "Raise maxclients, or run fewer processes.",
        )
    elif most:
        yield CONNECTIONS.ok(f"{place}{clients} of {most} connections are in use.")
