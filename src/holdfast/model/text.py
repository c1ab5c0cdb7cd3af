"""Text that every engine can store: names are checked, free text is changed to fit.

A name (queue, id, key, lane, task) is data that the caller chose, so a bad one is refused and never changed. Free text
(an error, a reason) comes when something has already failed, so it is never refused: what cannot be stored is replaced,
and what is too long is cut. Neither may contain NUL, which PostgreSQL cannot store, nor a lone surrogate, which UTF-8
cannot encode.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain
from traceback import TracebackException, format_tb
from types import TracebackType

from msgspec import Struct

from holdfast.errors import InvalidOption, dotted_name

NAME_CHARACTERS = 200  # TX1
NAME_BYTES = 800  # TX1: of UTF-8
METADATA_BYTES = 4 * 1024  # TX2: keys and values
ERROR_BYTES = 16 * 1024  # TX3
"""The limit for all three parts of an `ErrorInfo` together."""

_TYPE_BYTES = 512
_MESSAGE_BYTES = 4 * 1024
_MAX_GROUP_MEMBERS = 500
_MAX_GROUP_DEPTH = 20
_MAX_CHAIN = 100
"""Causes of one exception that are shown in full; the standard library takes seconds for 20,000."""
_CALLERS_OF_HANDLERS = ("holdfast.worker.", "holdfast.isolation.", "holdfast.django.")
"""The packages that call handlers. Their frames say nothing about the error of a handler."""
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class ErrorInfo(Struct, frozen=True, gc=False):
    """An exception as text: `module.QualName`, message, traceback. Never turned back into an exception."""

    type: str
    message: str
    traceback: str


def check_name(value: object, what: str) -> str:
    """Return the name if every engine can store it; else raise `InvalidOption` for option `what`.

    >>> check_name("emails", "queue")
    'emails'
    """
    if not isinstance(value, str):
        raise InvalidOption(f"`{what}` must be text, not {type(value).__name__}.", option=what)
    text = str.__str__(value)
    if not 0 < len(text) <= NAME_CHARACTERS:
        raise InvalidOption(f"`{what}` must have 1 to {NAME_CHARACTERS} characters, not {len(text)}.", option=what)
    if _bytes_of(text, what) > NAME_BYTES:
        raise InvalidOption(f"`{what}` must have at most {NAME_BYTES} bytes in UTF-8.", option=what)
    return text


def check_metadata(metadata: object) -> dict[str, str]:
    """Return a copy of the metadata if it maps text to text and is small; else raise `InvalidOption`."""
    if not isinstance(metadata, Mapping):
        raise InvalidOption(f"`metadata` must be a mapping, not {type(metadata).__name__}.", option="metadata")
    copy: dict[str, str] = {}
    size = 0
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidOption("`metadata` must map text to text.", option="metadata")
        if not key:
            raise InvalidOption("`metadata` has an empty key.", option="metadata")
        size += _bytes_of(key, "metadata") + _bytes_of(value, "metadata")
        copy[str.__str__(key)] = str.__str__(value)
    if size > METADATA_BYTES:
        raise InvalidOption(f"`metadata` has {size} bytes; the limit is {METADATA_BYTES}.", option="metadata")
    return copy


def _bytes_of(text: str, what: str) -> int:
    """Its length in UTF-8; refuses text that cannot be stored."""
    if text.isascii() and "\0" not in text:
        return len(text)
    if _UNSTORABLE.search(text):
        raise InvalidOption(f"`{what}` must not hold NUL or a lone surrogate.", option=what)
    return len(text.encode())


def shown(name: str) -> str:
    """A name that a user chose, as logs, errors and terminals show it: control characters cannot forge a line.

    >>> shown("a\\nb")
    'a\\\\nb'
    """
    if name.isprintable():
        return name
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in name)


def clean(text: str, limit_bytes: int) -> str:
    """The text as it can be stored: unstorable characters replaced, at most `limit_bytes`, no character cut in two.

    >>> clean("a\\0b", 100), clean("äöü", 4)
    ('a\N{REPLACEMENT CHARACTER}b', 'äö')
    """
    short = str.__str__(text)[
        : max(limit_bytes, 0)
    ]  # a character has at least one byte, so nothing is lost that would be kept
    if short.isascii() and "\0" not in short:
        return short
    data = _UNSTORABLE.sub(_REPLACEMENT, short).encode()
    return data[: max(limit_bytes, 0)].decode(errors="ignore")


def describe(error: BaseException) -> ErrorInfo:
    """The exception as storable text of limited size. Never raises, whatever the exception's methods do.

    The traceback contains no local variables, because they may hold secrets.
    """
    kind = describe_type(error)
    message = clean(_message_of(error), _MESSAGE_BYTES)
    max_bytes = ERROR_BYTES - len(kind.encode()) - len(message.encode())
    return ErrorInfo(kind, message, _traceback_of(error, max_bytes))


def describe_type(error: BaseException) -> str:
    """The type of the exception, as in its `ErrorInfo`."""
    return clean(_type_of(error), _TYPE_BYTES)


def _type_of(error: BaseException) -> str:
    try:
        return dotted_name(type(error))
    except BaseException:
        return "unknown"


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as failure:  # also KeyboardInterrupt: it comes from `__str__`
        return f"<its message cannot be shown: str() raised {type(failure).__name__}>"


def _traceback_of(error: BaseException, max_bytes: int) -> str:
    try:
        if _is_too_large(error):
            summary = f"{_type_of(error)}: {_message_of(error)} (too many members to show)\n"
            return _ends_of(chain(format_tb(_frames_of(error)), (summary,)), max_bytes)
        if len(links := _chain_of(error)) > _MAX_CHAIN:
            half = _MAX_CHAIN // 2
            shown = chain(reversed(links[-half:]), (None,), reversed(links[:half]))
            return _ends_of(chain.from_iterable(map(_link_lines, shown)), max_bytes)
        report = TracebackException(type(error), error, _frames_of(error), capture_locals=False, compact=True)
        return _ends_of(report.format(), max_bytes)
    except BaseException as failure:
        return f"<its traceback cannot be shown: {type(failure).__name__}>"


def _frames_of(error: BaseException) -> TracebackType | None:
    """Its traceback without the frames of the worker that called the handler; the whole if there are no others."""
    frames = error.__traceback__
    while frames is not None and str(frames.tb_frame.f_globals.get("__name__")).startswith(_CALLERS_OF_HANDLERS):
        frames = frames.tb_next
    return frames or error.__traceback__


def _chain_of(error: BaseException) -> list[BaseException]:
    """The exception, its cause, the cause of that, and so on."""
    links: list[BaseException] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        links.append(current)
        seen.add(id(current))
        hidden = current.__suppress_context__
        current = current.__cause__ if current.__cause__ is not None or hidden else current.__context__
    return links


def _link_lines(error: BaseException | None) -> Iterable[str]:
    """One exception of a long chain, as lines. None: a place where causes are left out."""
    if error is None:
        return ("\n  ... left out ...\n\n",)
    kind = _type_of(error).removeprefix("builtins.")
    return (*format_tb(_frames_of(error)), f"{kind}: {_message_of(error)}\n\n")


def _is_too_large(error: BaseException) -> bool:
    """True if it contains exception groups so large or deep that the standard library would take too long."""
    stack = [(error, 0)]
    seen = {id(error)}
    members = 0
    while stack:
        current, depth = stack.pop()
        if isinstance(current, BaseExceptionGroup):
            members += len(current.exceptions)
            if members > _MAX_GROUP_MEMBERS or depth >= _MAX_GROUP_DEPTH:
                return True
            stack.extend((member, depth + 1) for member in current.exceptions)
        for linked in (current.__cause__, current.__context__):
            if linked is not None and id(linked) not in seen:
                seen.add(id(linked))
                stack.append((linked, depth))
    return False


def _ends_of(pieces: Iterable[str], max_bytes: int) -> str:
    """The start and the end of a long text. The end gets more space, because the cause is there.

    It reads piece by piece, so a chain of a hundred thousand causes is never in memory as one text.
    """
    mark = "\n  ... left out ...\n"
    max_head_bytes = max_bytes // 4
    max_tail_bytes = max_bytes - max_head_bytes - len(mark)
    head: list[str] = []
    tail: deque[str] = deque()
    head_size = tail_size = 0
    complete = True
    for piece in (clean(piece, max_bytes) for piece in pieces):
        size = len(piece.encode())
        if not tail and head_size + size <= max_head_bytes:
            head.append(piece)
            head_size += size
            continue
        tail.append(piece)
        tail_size += size
        while tail_size > max_tail_bytes and len(tail) > 1:
            tail_size -= len(tail.popleft().encode())
            complete = False
    if tail_size > max_tail_bytes:
        return "".join(head) + mark + clean("".join(tail), max_tail_bytes)
    return "".join(chain(head, () if complete else (mark,), tail))
