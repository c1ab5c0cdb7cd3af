"""The rules: SQL functions, installed whole into a schema of their own per version.

`rules/` holds the one present text of every function, and `RULES_VERSION` is its number. `migrate` installs the text
into the schema `{namespace}_rules_{number}`, beside that of the release before. Every call names the schema, so two
releases work on one store during a rolling deploy.

A number that is released keeps its text. `rules/versions.txt` has the checksum of each number, and a test compares.
After a change of a rule raise `RULES_VERSION`, if that number is released, and run

    .venv/bin/python tests/support/stamp_rules.py

The text is a template. `{{name}}` stands for a value of the model: a state set, a hold bit, a duration, a limit or a
list of columns. So the model decides, and the rules cannot disagree with it.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import fields

from holdfast.engines.postgres import columns
from holdfast.engines.postgres.messages import listeners_lock, notify_lock
from holdfast.engines.templates import fill
from holdfast.model import history, lifetimes, limits, states
from holdfast.model.instants import FOREVER, MINUTE, SECOND
from holdfast.model.observe import Find, Prune
from holdfast.model.work import Expired, TaskClaim

RULES_VERSION = 1
VERSIONS = "versions.txt"
"""In `rules/`: per line a number and the checksum of its text."""

KEPT_VERSIONS = 2
"""Installed versions that stay: this release's and the one before, for a rolling deploy and the way back."""
LIVE_FOR_INTERVALS = 5
"""Heartbeat intervals. A worker that was seen within them may still call its version: it misses one or two heartbeats
when its host is busy, and it is not waited for like a dead one that prune removes after ten."""
LIVE_AT_LEAST = MINUTE
"""Microseconds, for workers with a very short interval."""
ENDED_AFTER_INTERVALS = 2
"""Heartbeat intervals. A worker that is silent for longer and has no session with the server has ended: a living one
whose connection was cut connects again for its next heartbeat."""

LONGEST_LEAD_US = 5 * SECOND
"""A client may have seen a later time than the server's clock has: after a failover, or a step of the clock. Up to this
lead the answers to this client do not go back. A longer lead was a wrong time, and is dropped."""

# PF1: how long a function waits for one lock of another transaction. Then the call fails, and its error names the
# sessions that may hold the lock.
LOCK_WAIT_S = 2.0
EXCHANGE_LOCK_WAIT_S = 0.5
"""Shorter: one locked job delays all other jobs of an exchange. The exchange is then sent again, and answers `busy`."""
BUSY_AFTER_S = 0.01
"""When it is sent again: each of up to 500 settlements may meet a lock, and the first call has waited already."""

_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)
_ENTRY = re.compile(r"^CREATE FUNCTION (\w+)\((?:(?!^CREATE |\$\$).)*?\{\{entry\}\}", re.MULTILINE | re.DOTALL)


class Rule(NamedTuple):
    """A file of `rules/`."""

    stem: str
    text: str


@cache
def source() -> tuple[Rule, ...]:
    """All files, the types first: the functions name them."""
    found = [
        Rule(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"))
        for file in files(__package__).joinpath("rules").iterdir()
        if file.name.endswith(".sql")
    ]
    return tuple(sorted(found, key=lambda rule: (rule.stem != "types", rule.stem)))


def schema_of(namespace: str, version: int = RULES_VERSION) -> str:
    return f"{namespace}_rules_{version}"


def entry_functions(rules: Iterable[Rule] | None = None) -> list[str]:
    """The functions that a client may call, by name."""
    return sorted(name for rule in (source() if rules is None else rules) for name in _ENTRY.findall(rule.text))


def render(namespace: str, version: int = RULES_VERSION, rules: Iterable[Rule] | None = None) -> str:
    """The text as it is installed. `namespace` has been checked."""
    values = _values(namespace, version)
    return "\n".join(
        f"-- {rule.stem}\n\n{fill(rule.text, values, where=f'rules/{rule.stem}.sql')}"
        for rule in (source() if rules is None else rules)
    )


def checksum(rules: Iterable[Rule] | None = None) -> str:
    """Of the text as it would be installed, whatever the namespace and the number are. Comment lines do not count."""
    return sha256(_COMMENT.sub("", render("namespace", 0, rules)).encode()).hexdigest()


def stamped() -> dict[int, str]:
    """The checksums that `rules/versions.txt` has, by number."""
    lines = files(__package__).joinpath("rules", VERSIONS).read_text(encoding="utf-8").splitlines()
    return {int(number): sum_ for number, sum_ in (line.split() for line in lines if line and not line.startswith("#"))}


# The values of the model


def _values(namespace: str, version: int) -> dict[str, str]:
    schema = schema_of(namespace, version)
    return {
        "namespace": namespace,
        "rules": schema,
        "rules_version": str(version),
        "entry": f"SECURITY DEFINER SET search_path = {schema}, {namespace}, pg_temp"
        f" SET lock_timeout = {LOCK_WAIT_S * 1000:.0f}",
        "listeners_lock": listeners_lock(namespace),
        "notify_lock": notify_lock(namespace),
        **_of_the_model(),
    }


@cache
def _of_the_model() -> dict[str, str]:
    numbers = {
        "forever": FOREVER,
        "result_ttl": lifetimes.RESULT_TTL,
        "retention": lifetimes.RETENTION,
        "failed_retention": lifetimes.FAILED_RETENTION,
        "most_promoted": limits.MOST_PROMOTED,
        "most_expired": limits.MOST_EXPIRED,
        "most_resolved": limits.MOST_RESOLVED,
        "lanes_looked_at": limits.LANES_LOOKED_AT,
        "reaped_by_all_after": limits.REAPED_BY_ALL_AFTER,
        "alive_for_intervals": limits.ALIVE_FOR_INTERVALS,
        "interval_if_unknown": limits.INTERVAL_IF_UNKNOWN,
        "silent_after_intervals": limits.SILENT_AFTER_INTERVALS,
        "silent_at_least": limits.SILENT_AT_LEAST,
        "live_for_intervals": LIVE_FOR_INTERVALS,
        "live_at_least": LIVE_AT_LEAST,
        "ended_after_intervals": ENDED_AFTER_INTERVALS,
        "kept_versions": KEPT_VERSIONS,
        "longest_lead": LONGEST_LEAD_US,
        "exchange_lock_wait_ms": round(EXCHANGE_LOCK_WAIT_S * 1000),
        "busy_after_ms": round(BUSY_AFTER_S * 1000),
        "history.first": history.KEEP_FIRST,
        "history.length": history.KEEP_FIRST + history.KEEP_LAST,
        "task_claim.max_attempts": _default(TaskClaim, "max_attempts"),
        "task_claim.max_losses": _default(TaskClaim, "max_losses"),
        "find.limit": _default(Find, "limit"),
        "find.scan": _default(Find, "scan"),
        "prune.limit": _default(Prune, "limit"),
        "expired.limit": _default(Expired, "limit"),
        **{f"hold.{(hold.name or '').lower()}": hold.value for hold in states.Hold},
    }
    sets = {
        "states": frozenset(states.JobState),
        "waiting": states.WAITING,
        "leased": states.LEASED,
        "live": states.LIVE,
        "terminal": states.TERMINAL,
        "unsuccessful": states.UNSUCCESSFUL,
        "by_due": states.BY_DUE,
        "ends_a_run": states.ENDS_A_RUN,
    }
    return (
        {name: str(number) for name, number in numbers.items()}
        | {name: listed(states.JobState, members) for name, members in sets.items()}
        | columns.lists()
    )


def _default(struct: type[Struct], name: str) -> int:
    (value,) = (field.default for field in fields(struct) if field.name == name)
    assert isinstance(value, int)
    return value


def listed(kind: type[StrEnum], members: frozenset[StrEnum]) -> str:
    """For an IN list, in the order of the enum."""
    return ", ".join(f"'{member.value}'" for member in kind if member in members)
