"""What an acknowledged write survives on this server: its durability class, eviction, replicas.

On Redis the server decides how durable a write is, not the client. So the class is found when the engine opens:

| the server's settings | class |
|---|---|
| `appendonly yes`, `appendfsync always`, `no-appendfsync-on-rewrite no` | durable: synced before the reply |
| `appendonly yes`, other settings | fast: survives the server's process (see below), not a loss of power |
| snapshots (`save`) or nothing, and `replicas` of the engine is 0 | none |
| the same, and each write waits for `replicas` | fast |

With `appendfsync everysec` the server goes on answering while a sync is slow, and writes its file up to two seconds
later. The end of its process alone then loses these seconds. With `no` and `always` it writes before it answers.

`durability=` of the user is what must be in force at least. A stronger class than the server has is refused; `none` is
accepted only if the user asks for it. Where a service forbids CONFIG, INFO says whether the append-only file is on. The
user may state the class there; it is then shown as "stated, not checked".

A server that evicts keys when its memory is full would delete jobs. So `maxmemory-policy` must be `noeviction`, unless
the user allows another one. Both are checked again while the engine runs (`check_again`): a change is logged.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from holdfast.errors import ConfigError, EngineError, OutcomeUnknown
from holdfast.model.instants import SECOND, Instant, Micros, Seconds

CLASSES = ("none", "fast", "durable")  # from the weakest to the strongest
UNKNOWN = "unknown"  # no server has been asked
NO_EVICTION = "noeviction"
CHECK_EVERY_US: Micros = 30 * SECOND
"""Between two checks of a running engine. A changed policy evicts jobs from then on, so an operator must know soon."""
ASKED_SETTINGS = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "save", "maxmemory-policy")

DURABLE_SETTINGS = "`appendonly yes`, `appendfsync always` and `no-appendfsync-on-rewrite no`"

SendCommand = Callable[..., Awaitable[Any]]
"""Sends one command to the server, with its words as arguments, and returns the reply."""

_logger = logging.getLogger("holdfast.redis")


class ServerSettings(NamedTuple):
    """What the server says about itself. None: it does not say."""

    append_only: bool | None = None
    fsync: str | None = None
    synced_in_rewrites: bool = True
    snapshots: bool | None = None
    eviction: str | None = None

    @property
    def durability(self) -> str | None:
        """The class without replicas; None if it cannot be known."""
        if self.append_only is None:
            return None
        if not self.append_only:
            return "none"
        return "durable" if self.fsync == "always" and self.synced_in_rewrites else "fast"

    @property
    def words(self) -> str:
        """How the server keeps its data, for a person."""
        if self.append_only is None:
            return "how it keeps its data cannot be read"
        if self.append_only:
            if not self.synced_in_rewrites:
                return "append-only file, not synced while it is rewritten: no-appendfsync-on-rewrite is yes"
            return {
                "always": "append-only file, synced before every reply",
                "everysec": "append-only file, synced once a second",
                "no": "append-only file, synced when the system does",
            }.get(self.fsync or "", "append-only file; how often it is synced cannot be read")
        if self.snapshots is None:
            return "no append-only file"
        return "snapshots now and then, no append-only file" if self.snapshots else "no persistence"


async def read_settings(send: SendCommand) -> ServerSettings:
    """Ask the server, by CONFIG GET if that is allowed, else by INFO."""
    found: dict[str, str] = {}
    try:
        for name in ASKED_SETTINGS:  # one by one: Redis 6.2 takes a single name
            found |= _pairs(await send("CONFIG", "GET", name))
    except ResponseError:  # the service or the ACL forbids it
        return _from_info(await read_info(send, "persistence"), await read_info(send, "memory"))
    return ServerSettings(
        append_only=found.get("appendonly") == "yes",
        fsync=found.get("appendfsync"),
        synced_in_rewrites=found.get("no-appendfsync-on-rewrite") != "yes",
        snapshots=bool(found.get("save")),
        eviction=found.get("maxmemory-policy"),
    )


async def read_weakest(servers: Iterable[SendCommand]) -> ServerSettings:
    """Ask each primary of a cluster. The weakest class counts for all, and so does a policy that evicts."""
    found = [await read_settings(send) for send in servers]
    weakest = min(found, key=lambda settings: CLASSES.index(settings.durability or CLASSES[0]))
    evicting = [settings.eviction for settings in found if settings.eviction not in (None, NO_EVICTION)]
    return weakest._replace(eviction=evicting[0] if evicting else weakest.eviction)


def _from_info(persistence: dict[str, str], memory: dict[str, str]) -> ServerSettings:
    append_only = persistence.get("aof_enabled")
    return ServerSettings(
        append_only=None if append_only is None else append_only == "1", eviction=memory.get("maxmemory_policy")
    )


async def read_info(send: SendCommand, section: str) -> dict[str, str]:
    """The fields of a section of INFO; none if the server refuses the question."""
    try:
        reply = await send("INFO", section)
    except ResponseError:
        return {}
    return parse_info(reply)


def parse_info(reply: Any) -> dict[str, str]:
    """The fields of a reply to INFO."""
    lines = _text(reply).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _pairs(reply: Any) -> dict[str, str]:
    """A reply to CONFIG GET: a map in RESP3, a list of names and values in RESP2."""
    if isinstance(reply, dict):
        return {_text(name): _text(value) for name, value in reply.items()}
    words = [_text(word) for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class ServerDurability:
    """The class in force on one server. `wanted`: the user's `durability`, None if none was given."""

    def __init__(
        self,
        wanted: str | None,
        place: str,
        *,
        replicas: int = 0,
        replica_timeout_s: Seconds = 1.0,
        allow_eviction: bool = False,
    ) -> None:
        if wanted is not None and wanted not in CLASSES:
            names = ", ".join(reversed(CLASSES))
            raise ConfigError(f"`durability` must be one of {names}, not {wanted!r}.", key="durability")
        self._wanted = wanted
        self._place = place
        self._allow_eviction = allow_eviction
        self._replicas = replicas
        self._replica_timeout_s = replica_timeout_s
        self._settings = ServerSettings()
        self._checked_at: Instant = 0
        self.found = wanted or UNKNOWN
        """The class in force. Before `check` it is what the user has set."""

    # The class

    async def check(self, *servers: SendCommand) -> None:
        """Find the class. Raises ConfigError if a server is weaker than it must be, or evicts keys."""
        self._settings = await read_weakest(servers)
        known = self._class_of(self._settings)
        if (refusal := self._refusal(known)) is not None:
            raise refusal
        self.found = self._in_force(known)
        if (refusal := self._eviction_refusal()) is not None:
            raise refusal

    @property
    def eviction(self) -> str | None:
        """The policy as of the last check. None: the server does not say."""
        return self._settings.eviction

    def _class_of(self, settings: ServerSettings) -> str | None:
        known = settings.durability
        return "fast" if known == "none" and self._replicas else known

    def _in_force(self, known: str | None) -> str:
        if known is None or (self._is_stated and self._wanted is not None):
            return self._wanted or "none"
        return known

    @property
    def _is_stated(self) -> bool:
        """True: the server does not say how often it syncs, and the user has named a class."""
        return self._settings.fsync is None and self._wanted is not None

    @property
    def promise(self) -> str:
        """The class in force and how it is known, for an operator."""
        if self.found == UNKNOWN:
            return "unknown (the store has not been opened)"
        if self._is_stated:
            return f"{self.found} (stated, not checked)"
        words = self._settings.words
        if self._replicas:
            words += f"; every write waits for {self._replicas} replica{'s' if self._replicas > 1 else ''}"
        return f"{self.found} ({words})"

    def _refusal(self, known: str | None) -> ConfigError | None:
        if self._is_stated:
            return None
        server = f"The server at {self._place}"
        if known is None:
            return ConfigError(
                f"{server} does not say how it keeps its data: CONFIG and INFO are forbidden. Set `durability` to what "
                "the service promises: durable, fast, or none.",
                key="durability",
            )
        how = self._settings.words
        if known == "none" and self._wanted is None:
            return ConfigError(
                f"{server} loses acknowledged jobs when it restarts ({how}). Turn on its append-only file: CONFIG SET "
                "appendonly yes, and the same in its configuration file. Then wait until INFO persistence shows "
                "aof_rewrite_in_progress:0 and aof_rewrite_scheduled:0: before that there is no valid file. If losing "
                'jobs is acceptable, set `durability = "none"`.',
                key="durability",
            )
        if self._wanted is not None and CLASSES.index(known) < CLASSES.index(self._wanted):
            needed = DURABLE_SETTINGS if self._wanted == "durable" else "`appendonly yes`"
            return ConfigError(
                f'{server} cannot keep `durability = "{self._wanted}"` ({how}). Set {needed} in its '
                f'configuration, or accept `durability = "{known}"`.',
                key="durability",
            )
        return None

    # Eviction

    def _eviction_refusal(self) -> ConfigError | None:
        policy = self._settings.eviction
        if policy in (None, NO_EVICTION) or self._allow_eviction:
            return None
        return ConfigError(
            f"The server at {self._place} may delete jobs when its memory is full: maxmemory-policy is {policy}. Run "
            f"CONFIG SET maxmemory-policy {NO_EVICTION} and set the same in its configuration file, use a server "
            "without a cache on it, or set `allow_eviction = true` to accept the loss.",
            key="redis.allow_eviction",
        )

    async def check_again(self, servers: Callable[[], Awaitable[Iterable[SendCommand]]], now: Instant) -> None:
        """Log what has changed since the last check. Does nothing if that was less than 30 seconds ago."""
        if now - self._checked_at < CHECK_EVERY_US:
            return
        self._checked_at = now
        try:
            after = await read_weakest(await servers())
        except EngineError:  # the next calls say what is wrong with the server
            return
        before, self._settings = self._settings, after
        if after.eviction != before.eviction and after.eviction is not None and not self._allow_eviction:
            if after.eviction == NO_EVICTION:
                _logger.warning("The server at %s has maxmemory-policy %s again.", self._place, NO_EVICTION)
            else:
                _logger.error(
                    "The server at %s may delete jobs from now on: its maxmemory-policy was changed to %s. Run CONFIG "
                    "SET maxmemory-policy %s.",
                    self._place,
                    after.eviction,
                    NO_EVICTION,
                )
        known = self._class_of(after)
        if known is not None and not self._is_stated and known != self.found:
            weaker = CLASSES.index(known) < CLASSES.index(self.found)
            _logger.log(
                logging.ERROR if weaker else logging.WARNING,
                "The durability of the server at %s has changed from %s to %s: %s.",
                self._place,
                self.found,
                known,
                after.words,
            )
            self.found = known

    # Replicas

    @property
    def wait(self) -> tuple[int, int] | None:
        """The arguments of WAIT after a call that writes: how many replicas, how many milliseconds. None: no WAIT."""
        return (self._replicas, max(1, round(self._replica_timeout_s * 1000))) if self._replicas else None

    def check_replicas(self, confirmed: int, verb: str, job_ids: Iterable[str] = ()) -> None:
        """Raise `ReplicasLate` if fewer replicas have confirmed the write than the user requires."""
        if confirmed < self._replicas:
            raise ReplicasLate(
                f"{verb} was carried out by the server at {self._place}, but {confirmed} of {self._replicas} replicas "
                f"confirmed it within {self._replica_timeout_s:g} s. It is lost if the server fails before they do. To "
                "make sure, repeat the call with the same ids: that is safe.",
                verb=verb,
                job_ids=job_ids,
                engine="redis",
            )


class ReplicasLate(OutcomeUnknown):
    """The primary has the write. Whether it survives a failover is not known: reading it there proves nothing."""

    found_by_reading = False
