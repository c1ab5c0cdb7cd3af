"""The text of an id: a moment and eighty random bits, in 26 characters that sort by the moment."""

from functools import lru_cache

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(a + b for a in _CROCKFORD for b in _CROCKFORD)


def ulid(at: int, drawn: bytes) -> str:
    """`at`: milliseconds of wall time, of which 48 bits count; `drawn`: ten random bytes."""
    high, low = int.from_bytes(drawn[:5], "big"), int.from_bytes(drawn[5:], "big")
    pairs = _PAIRS
    return (
        f"{_moment(at & 0xFFFF_FFFF_FFFF)}"
        f"{pairs[high >> 30]}{pairs[high >> 20 & 1023]}{pairs[high >> 10 & 1023]}{pairs[high & 1023]}"
        f"{pairs[low >> 30]}{pairs[low >> 20 & 1023]}{pairs[low >> 10 & 1023]}{pairs[low & 1023]}"
    )


@lru_cache(maxsize=4)
def _moment(at: int) -> str:
    """The same for all ids of a millisecond."""
    return "".join(_PAIRS[at >> shift & 1023] for shift in (40, 30, 20, 10, 0))
