"""The script: all Lua files as one text, which the server knows by its checksum.

The rules, the state and their helpers stand inside one function. A call that a fast path carries out never makes
that function's closures, which would cost about 100 µs of the server for each call.

A call is sent as EVALSHA. A server that does not have the script (a new one, or its cache was flushed) answers
NOSCRIPT and has done nothing; the call is then sent once with the whole text. Two releases have two texts and work
side by side, as long as they store jobs in the same format.
"""

import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha1
from importlib.resources import files

OUTSIDE = ("layout", "history", "fast_path", "fast_settle", "fast_claim")
"""What every call needs. The files form one text in this order: the table of one is visible in those behind it."""
INSIDE = (
    "runtime",
    "records",
    "state_sets",
    "state_writes",
    "state",
    "state_edges",
    "state_lists",
    "state_scopes",
    "state_lanes",
    "step",
    "rules",
    "state_unfinished",
    "state_repair",
    "presence",
    "answers",
)
"""What only the rules need."""
LAST = "main"

_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)


class ServerScript:
    """A text and its checksum, as the server computes it."""

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()


@cache
def whole_script() -> ServerScript:
    """The script of this release."""
    return make_script({})


def make_script(replaced: Mapping[str, str]) -> ServerScript:
    """The script, with other texts for some files: tests plant defects in the rules."""
    texts = {
        file.name.removesuffix(".lua"): file.read_text(encoding="utf-8")
        for file in files(__package__).joinpath("lua").iterdir()
        if file.name.endswith(".lua")
    }
    parts = {name: _COMMENT.sub("", text) for name, text in (texts | dict(replaced)).items()}
    outside = "".join(parts[name] for name in OUTSIDE)
    inside = "".join(parts[name] for name in INSIDE)
    return ServerScript(f"{outside}local function rules()\n{inside}return A\nend\n{parts[LAST]}")
