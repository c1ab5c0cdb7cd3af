"""The names of keys: a root, and what `lua/state_sets.lua` lists under it."""

import re

_SPECIAL = re.compile("[\0-\x1f\x7f%{}:]")


def encode_name(name: str) -> str:
    """A queue, task, lane or id as part of a key: characters with a meaning in keys become %XX."""
    return _SPECIAL.sub(lambda match: f"%{ord(match.group()):02X}", name)


def full_name(queue: str, name: str) -> bytes:
    """A job or lane in a set of the whole root."""
    return f"{queue}\0{name}".encode()


def split_full_name(name: bytes) -> tuple[str, str]:
    queue, _, rest = name.decode().partition("\0")
    return queue, rest
