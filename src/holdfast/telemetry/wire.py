"""Events as messages between processes: one line of JSON each, several to a message.

A message has at most 7,000 bytes, which is what PostgreSQL carries. An event that does not fit loses its longest texts,
not itself. A line that cannot be read is skipped: it is of another version of Holdfast, or damaged.
"""

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.model.text import ErrorInfo, clean
from holdfast.telemetry import events
from holdfast.telemetry.events import Event

LARGEST = 7_000

KINDS: dict[type[Event], frozenset[str]] = {
    kind: frozenset(base.__name__ for base in kind.__mro__ if issubclass(base, Event))
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, Event) and not kind.__subclasses__()
}
"""Every kind that is told, and the names it goes by: its own and those of its bases."""

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder[Event](reduce(or_, KINDS))


def pack(told: Iterable[Event]) -> Iterator[bytes]:
    """As few messages as they fit in, in their order."""
    lines: list[bytes] = []
    size = 0
    for event in told:
        line = line_of(event)
        if line is None:
            continue
        if lines and size + len(line) > LARGEST:
            yield b"\n".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield b"\n".join(lines)


def unpack(message: bytes) -> tuple[list[Event], int]:
    """The events of a message, and how many lines of it could not be read."""
    told: list[Event] = []
    lines = message.split(b"\n")
    for line in lines:
        try:
            told.append(_decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return told, len(lines) - len(told)


def line_of(event: Event) -> bytes | None:
    """The event in at most so many bytes. None: it cannot be told."""
    try:
        line = _encode(event)
        for room in (3_000, 500, 50):
            if len(line) <= LARGEST:
                break
            line = _encode(_cut(event, room))
    except (msgspec.MsgspecError, UnicodeEncodeError):  # a lone surrogate in a text that nobody stores
        return None
    return line if len(line) <= LARGEST else None


def _cut(event: Event, room: int) -> Event:
    """The same event with short texts. Of a traceback and a stack the end stays, where the cause is."""
    short: dict[str, Any] = {}
    for name in event.__struct_fields__:
        match name, getattr(event, name):
            case "error", ErrorInfo(type, message, traceback):
                short[name] = ErrorInfo(type, clean(message, room), _end(traceback, room))
            case "stack", str(text):
                short[name] = _end(text, room)
            case "note", str(text):
                short[name] = clean(text, room)
            case _, tuple(many):
                short[name] = many[: room // 50]
            case _:
                pass
    return replace(event, **short)


def _end(text: str, room: int) -> str:
    return text if len(text) <= room else f"... left out ...\n{text[-room:]}"
