"""Roots: the prefixes of keys. All keys under one root hold one complete set of queues with everything of theirs.

A script call works on one root. Where the server is one primary, all queues are under one root. In a cluster all keys
of a root have to be in one slot, and the slot follows from the text between the first pair of braces. So there are two
modes: `namespace` has one root with the namespace in braces; `queues` has a root for each queue with the name of the
queue in braces, and one more for what belongs to no queue (workers, the list of queues).

    one primary         holdfast:
    cluster=namespace   {holdfast}:
    cluster=queues      holdfast:{mail}:    holdfast:{.}:

Names are encoded in keys, so that a name cannot end the braces, nor reach the keys of another name. The encoded name of
a queue is never a single dot.
"""

import re

_RESERVED = re.compile(r"[\x00-\x1f\x7f%{}:]")


def encode_name(name: str) -> str:
    """The name as it is in keys: `%`, `{`, `}`, `:` and control characters as `%XX`."""
    return _RESERVED.sub(lambda found: f"%{ord(found[0]):02X}", name)


def root_of_primary(namespace: str) -> str:
    return f"{encode_name(namespace)}:"


def root_in_one_slot(namespace: str) -> str:
    return f"{{{encode_name(namespace)}}}:"


def root_of_queue(namespace: str, queue: str) -> str:
    encoded = "%2E" if queue == "." else encode_name(queue)
    return f"{encode_name(namespace)}:{{{encoded}}}:"


def root_of_no_queue(namespace: str) -> str:
    return f"{encode_name(namespace)}:{{.}}:"
