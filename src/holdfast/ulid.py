"""The text of an id: a moment and eighty random bits, in 26 characters that sort by the moment."""

from functools import lru_cache

RANDOM_BYTES = 16
"""Of which five bits count, each."""
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_CHARACTERS = bytes(ord(_CROCKFORD[byte & 31]) for byte in range(256))
"""The character of each byte."""


def ulid(at: int, drawn: bytes) -> str:
    """`at`: milliseconds of wall time, of which 48 bits count; `drawn`: `RANDOM_BYTES` random bytes."""
    return _moment(at & 0xFFFF_FFFF_FFFF) + drawn.translate(_CHARACTERS).decode("ascii")


@lru_cache(maxsize=4)
def _moment(at: int) -> str:
    """The same for all ids of a millisecond."""
    return "".join(_CROCKFORD[at >> shift & 31] for shift in range(45, -1, -5))
