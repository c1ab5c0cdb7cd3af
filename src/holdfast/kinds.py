"""A catalogue of work: named behaviours for demos, load tests and simulation.

A kind says how long a run takes, how often a job fails before its last run, how that ends, and how large the result is.
All of it is computed from the kind, a key and the attempt number: the same input gives the same behaviour every time,
on every engine and in every process.

    >>> behave(KINDS["quick"], "order-7", attempt=1) == behave(KINDS["quick"], "order-7", attempt=9)
    True
"""

from hashlib import blake2b

from msgspec import Struct

from holdfast.errors import Cancel, GiveUp


class Kind(Struct, frozen=True, kw_only=True):
    """One behaviour."""

    name: str
    takes: float = 0.0
    """Seconds that a run lasts. The caller does the waiting (async or blocking)."""
    failures: int = 0
    """How many runs of one job fail before the last one."""
    one_in: int = 1
    """Only one key in `one_in` fails at all; a hash of the key decides which."""
    outcome: str = "succeeds"
    """How the last run ends: `succeeds`, `gives_up` or `cancels`."""
    result_size: int = 0
    """The result has at least this many bytes."""


class NotYet(ConnectionError):
    """The temporary failure of a kind: a later attempt succeeds."""


KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="quick"),
        Kind(name="slow", takes=0.2),
        Kind(name="flaky", failures=1, one_in=20),
        Kind(name="stubborn", failures=3),
        Kind(name="hopeless", outcome="gives_up"),
        Kind(name="unwanted", outcome="cancels"),
        Kind(name="bulky", result_size=100_000),
    )
}
"""The kinds by name."""


def behave(kind: Kind, key: str, *, attempt: int) -> str:
    """One run: return the result, or raise the error, of this kind for this key and attempt."""
    if attempt <= will_fail(kind, key):
        raise NotYet(f"{kind.name} {key} fails on attempt {attempt} of {kind.failures}")
    if kind.outcome == "gives_up":
        raise GiveUp(f"{kind.name} {key} never succeeds")
    if kind.outcome == "cancels":
        raise Cancel(f"{kind.name} {key} is not wanted")
    text = f"{kind.name}:{key}:{_hash(kind, key):016x}"
    return text + "·" * max(0, kind.result_size - len(text))


def will_fail(kind: Kind, key: str) -> int:
    """How many runs of this job will fail."""
    return kind.failures if _hash(kind, key) % kind.one_in == 0 else 0


def _hash(kind: Kind, key: str) -> int:
    return int.from_bytes(blake2b(f"{kind.name}:{key}".encode(), digest_size=8).digest(), "big")
