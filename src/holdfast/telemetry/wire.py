"""Events as messages between processes: one line of JSON each, several to a message.

A message has at most 7,000 bytes, because PostgreSQL limits a notification to 8,000. The long texts of an event that
does not fit are cut. A line that cannot be decoded is skipped: another version of Holdfast wrote it, or it is damaged.
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

MAX_MESSAGE_BYTES = 7_000
"""PostgreSQL limits the payload of a notification to 8,000 bytes."""

KINDS: dict[type[Event], frozenset[str]] = {
    kind: frozenset(base.__name__ for base in kind.__mro__ if issubclass(base, Event))
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, Event) and not kind.__subclasses__()
}
"""Every kind of event that is sent, with the names that a listener may ask for: its own and its base classes'."""

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder[Event](reduce(or_, KINDS))


def pack(emitted: Iterable[Event]) -> Iterator[bytes]:
    """The events as messages, as few as possible, in their order."""
    lines: list[bytes] = []
    size = 0
    for event in emitted:
        line = line_of(event)
        if line is None:
            continue
        if lines and size + len(line) > MAX_MESSAGE_BYTES:
            yield b"\n".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield b"\n".join(lines)


def unpack(message: bytes) -> tuple[list[Event], int]:
    """The events of a message, and the number of lines that could not be decoded."""
    decoded: list[Event] = []
    lines = message.split(b"\n")
    for line in lines:
        try:
            decoded.append(_decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return decoded, len(lines) - len(decoded)


def line_of(event: Event) -> bytes | None:
    """The event in at most `MAX_MESSAGE_BYTES`. None: it cannot be encoded."""
    try:
        line = _encode(event)
        for max_chars in (3_000, 500, 50):
            if len(line) <= MAX_MESSAGE_BYTES:
                break
            line = _encode(_cut(event, max_chars))
    except (msgspec.MsgspecError, UnicodeEncodeError):  # a lone surrogate in a text that is not stored
        return None
    return line if len(line) <= MAX_MESSAGE_BYTES else None


def _cut(event: Event, max_chars: int) -> Event:
    """The same event with short texts. Of a traceback or a stack the end is kept, where the cause is."""
    short: dict[str, Any] = {}
    for name in event.__struct_fields__:
        match name, getattr(event, name):
            case "error", ErrorInfo(type, message, traceback):
                short[name] = ErrorInfo(type, clean(message, max_chars), _end(traceback, max_chars))
            case "stack", str(text):
                short[name] = _end(text, max_chars)
            case "note", str(text):
                short[name] = clean(text, max_chars)
            case _, tuple(many):
                short[name] = many[: max_chars // 50]
            case _:
                pass
    return replace(event, **short)


def _end(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"... left out ...\n{text[-max_chars:]}"
