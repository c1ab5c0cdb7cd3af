"""A catalogue of work: named behaviours for demos, load tests and simulation.

A kind says how long a run takes, how often it fails before it comes out, how it comes out, and how large its result
is. Everything follows from the kind, a key and the attempt: the same input does the same thing every time, on every
engine and in every process.

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
    """Seconds that a run lasts; the caller waits, in the way that suits it."""
    failures: int = 0
    """How many runs of one job fail before one comes out."""
    one_in: int = 1
    """Only one key in so many fails at all; which ones follows from the key."""
    outcome: str = "succeeds"
    """How it comes out then: `succeeds`, `gives_up` or `cancels`."""
    result_size: int = 0
    """Bytes of result, at least."""


class NotYet(ConnectionError):
    """The failure that a kind plans: it goes away by itself."""


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
"""By name."""


def behave(kind: Kind, key: str, *, attempt: int) -> str:
    """One run: the result, or the error that this kind has for this key and attempt."""
    if attempt <= will_fail(kind, key):
        raise NotYet(f"{kind.name} {key} fails on attempt {attempt} of {kind.failures}")
    if kind.outcome == "gives_up":
        raise GiveUp(f"{kind.name} {key} never comes out")
    if kind.outcome == "cancels":
        raise Cancel(f"{kind.name} {key} is not wanted")
    text = f"{kind.name}:{key}:{_mark(kind, key):016x}"
    return text + "·" * max(0, kind.result_size - len(text))


def will_fail(kind: Kind, key: str) -> int:
    """How many runs of this job will fail, known beforehand."""
    return kind.failures if _mark(kind, key) % kind.one_in == 0 else 0


def _mark(kind: Kind, key: str) -> int:
    return int.from_bytes(blake2b(f"{kind.name}:{key}".encode(), digest_size=8).digest(), "big")
