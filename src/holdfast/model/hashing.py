"""The hash that spreads keys over the lanes of a pool. Engines store it or take it again: it never changes."""

from hashlib import blake2b


def key_hash(key: str) -> int:
    """64 bits without a sign."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
