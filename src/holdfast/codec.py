"""Payloads and results as bytes, and back. Never the envelope around them: engines read that without a codec.

Stored bytes are not trusted. Before a parser sees them, their size and nesting are checked with loops that do not
recurse; no codec here can be made to build an object of a class that the data names. What was encoded can be decoded:
a value that would come back as something else (NaN, which JSON lacks) or not at all (nested too deep) is refused when
it goes in, so that the caller that sends it gets the error.

Three answers to bad input: `PayloadTooLarge`; `InvalidArguments` for a value that cannot be encoded, or for sound data
that does not fit the asked type; `CorruptRecord` for bytes that are not sound.
"""

import dataclasses
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

import msgspec

from holdfast.errors import CorruptRecord, InvalidArguments, InvalidOption, PayloadTooLarge

MEBIBYTE = 1024 * 1024
DEPTH = 64
CALL_DEPTH = 2
"""Of a call whose arguments are neither lists nor mappings."""
SIMPLE_BYTES = 4_000
"""The longest result of `encode_simple`. A longer one may contain a number with more digits than a parser takes."""

_PLACE = re.compile(r"at `\$\.?([^`]*)`")
"""Where msgspec found the first thing that does not fit, at the end of its message."""
_QUOTED = re.compile(r"""value (?:'.*'|".*"|-?\d+)""", re.DOTALL)
"""Where it quotes what it found, which may be a secret."""


@runtime_checkable
class Codec(Protocol):
    """Payloads and results to bytes and back. JSON is the default; msgpack is built in, too.

    If it has an attribute `for_results`, that codec writes and reads the results.
    """

    @property
    def name(self) -> str:
        """Stored beside the bytes, so that a reader knows which codec to use."""

    def encode(self, value: object) -> bytes:
        """The bytes of a value. Raise `InvalidArguments` for a value that cannot be encoded."""

    def decode(self, data: bytes, type: Any = Any) -> Any:
        """The value as this type. Raise `InvalidArguments` if it does not fit, `CorruptRecord` for damaged bytes."""


class Limits(msgspec.Struct, frozen=True):
    """How large and how deep a payload may be."""

    size: int = MEBIBYTE
    depth: int = DEPTH


def codec_for(name: str, custom: Iterable[Codec] = ()) -> Codec:
    """The codec of that name: one of the caller's own, or one of ours.

    >>> codec_for("json").encode({"a": [1, 2]})
    b'{"a":[1,2]}'
    """
    for codec in custom:
        if codec.name == name:
            return codec
    match name:
        case "json":
            return JsonCodec()
        case "msgpack":
            return MsgpackCodec()
        case _:
            raise InvalidOption(f"`codec` {name!r} is not known here. Give the App that codec.", option="codec")


class _Msgspec(ABC):
    """What both formats share. A codec keeps one decoder per type; it may be shared between threads."""

    name: str
    _format: Any

    def __init__(self, limits: Limits = Limits()) -> None:  # noqa: B008 - frozen
        self.limits = limits
        self._encode = self._format.Encoder(enc_hook=_plain).encode
        self._decode_any = self._format.Decoder().decode
        self._decoders: dict[Any, Any] = {}

    def encode(self, value: object) -> bytes:
        try:
            data: bytes = self._encode(value)
        except Exception as error:
            raise self._cannot_encode(value, error) from error
        if len(data) > self.limits.size:
            raise PayloadTooLarge(size=len(data), limit=self.limits.size)
        return self._checked(value, data)

    def encode_simple(self, call: object) -> bytes | None:
        """Encode a call whose arguments are text, whole numbers and truth values. None: use `encode`, which checks.

        They come back as they went in, so nothing else is checked.
        """
        limits = self.limits
        try:
            data: bytes = self._encode(call)
        except Exception:
            return None
        return data if len(data) <= min(limits.size, SIMPLE_BYTES) and limits.depth >= CALL_DEPTH else None

    def decode(self, data: bytes, type: Any = Any) -> Any:
        if len(data) > self.limits.size:
            raise PayloadTooLarge(size=len(data), limit=self.limits.size)
        if problem := self._unsound(data):
            raise self._corrupt(problem)
        return self.reread(data, type)

    def reread(self, data: bytes, type: Any = Any) -> Any:
        """Decode what this codec has just encoded, and so has looked at already."""
        try:
            return self._decode_any(data) if type is Any else self._decoder(type)(data)
        except msgspec.ValidationError as error:
            if type is Any:  # a number that no parser takes
                raise self._corrupt(str(error)) from error
            self.reread(data)  # damaged bytes may stop fitting before their damage is met: then this raises
            problem = _QUOTED.sub("value", str(error))
            place = _PLACE.search(problem)
            field = place[1] if place else ""
            raise InvalidArguments(f"The data does not fit the declared type: {problem}.", field=field) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._corrupt(str(error)) from error

    def _decoder(self, type: Any) -> Any:
        try:
            found = self._decoders.get(type)
        except TypeError:  # a type that cannot be a key, such as Annotated with a list
            return self._format.Decoder(type).decode
        if found is None:
            found = self._decoders[type] = self._format.Decoder(type).decode
        return found

    @abstractmethod
    def _checked(self, value: object, data: bytes) -> bytes:
        """The encoded value, if it will come back as it went in."""

    @abstractmethod
    def _unsound(self, data: bytes) -> str:
        """What is wrong with these bytes, or nothing."""

    def _corrupt(self, problem: str) -> CorruptRecord:
        message = f"Stored bytes cannot be read as {self.name}: {problem}. Enqueue the job again from its source."
        return CorruptRecord(message, where=self.name)

    def _cannot_encode(self, value: object, error: Exception) -> InvalidArguments:
        if isinstance(error, RecursionError):
            return InvalidArguments("The value contains itself, or is nested too deep. Pass a flatter one.")
        path, culprit, reason = _culprit(value, self._encode) or ("", value, error)
        what = f"A value of type {type(culprit).__qualname__} at {path or 'the top'}"
        hint = " Pass plain data, such as a primary key." if isinstance(reason, TypeError) else ""
        return InvalidArguments(f"{what} cannot be encoded as {self.name}: {reason}.{hint}", field=path)


class JsonCodec(_Msgspec):
    """JSON, the default: readable in the store, and by every other language. Keys of mappings become text."""

    name = "json"
    _format = msgspec.json

    def encode(self, value: object) -> bytes:
        return b"null" if value is None else super().encode(value)  # most handlers return nothing

    def _checked(self, value: object, data: bytes) -> bytes:
        limit = self.limits.depth
        # The first check of `_json_depth_over`, without a call.
        if data.count(b"[") + data.count(b"{") > limit and _json_depth_over(data, limit):
            raise InvalidArguments(f"The value is nested deeper than {limit}. Pass a flatter one.")
        # msgspec writes NaN as null. Only where one of these stands can the value have held one.
        if b"null" in data or b'nan"' in data or b'inf"' in data:
            path = _find_nan(value)
            if path is not None:
                raise InvalidArguments(f"JSON has no NaN or infinity, as stands at {path or 'the top'}.", field=path)
        return data

    def _unsound(self, data: bytes) -> str:
        if not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError as error:
                return f"not UTF-8 ({error.reason} at byte {error.start})"
        limit = self.limits.depth
        if data.count(b"[") + data.count(b"{") <= limit:  # the same check as below, without a call
            return ""
        return f"nested deeper than {limit}" if _json_depth_over(data, limit) else ""


_STRINGS = re.compile(rb'"(?>[^"\\]+|\\.)*+"?', re.DOTALL)
"""A string, or what is left of the data where it does not end: so a hostile text is read once, not once per quote."""

_STEPS = bytes(1 if c in b"[{" else 255 for c in range(256))
_NO_BRACKETS = bytes(c for c in range(256) if c not in b"[]{}")


def _json_depth_over(data: bytes, limit: int) -> bool:
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    brackets = _STRINGS.sub(b"", data).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(brackets).cast("b")), default=0) > limit


class MsgpackCodec(_Msgspec):
    """MessagePack: smaller, and bytes stay bytes. Extension types are not used and not accepted."""

    name = "msgpack"
    _format = msgspec.msgpack

    def _checked(self, value: object, data: bytes) -> bytes:
        problem = self._unsound(data)
        if problem == _EXTENSION:  # a date with a time zone; written as text instead, as in JSON
            try:
                value = msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview), enc_hook=_plain)
                data = self._encode(value)
            except Exception as error:
                raise self._cannot_encode(value, error) from error
            if len(data) > self.limits.size:
                raise PayloadTooLarge(size=len(data), limit=self.limits.size)
            problem = self._unsound(data)
        if problem:
            raise InvalidArguments(f"The value cannot be stored as msgpack: {problem}.")
        return data

    def _unsound(self, data: bytes) -> str:
        # Only heads of short arrays and maps, and fewer than may be nested: then the parser may have it as it is.
        # A byte inside a string that looks like a head can only send us the long way.
        heads = data.translate(None, _HARMLESS)
        if len(heads) <= self.limits.depth and not heads.translate(None, _SHORT_CONTAINERS) and not _may_hold_nan(data):
            return ""
        return _msgpack_problem(data, self.limits.depth)


_EXTENSION = "extension types are not accepted"
_TRUNCATED = "it ends too early"
_SHORT_CONTAINERS = bytes(range(0x80, 0xA0))
_HARMLESS = bytes(
    {*range(0x80), *range(0xA0, 0xC1), *range(0xC2, 0xC7), *range(0xCA, 0xD4), *range(0xD9, 0xDC), *range(0xE0, 0x100)}
)
"""Heads of what neither nests, nor claims room in advance, nor is an extension."""

_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
_FLOATS = {0xCA: (4, 0x7F80_0000), 0xCB: (8, 0x7FF0_0000_0000_0000)}


def _msgpack_problem(data: bytes, limit: int) -> str:
    """Walk the data once, without recursion: what is wrong with it, or nothing."""
    at, end = 0, len(data)
    left = 1  # items still to come in the innermost container
    outer: list[int] = []
    while True:
        while not left:
            if not outer:
                return "" if at == end else "something follows its end"
            left = outer.pop()
        left -= 1
        if at >= end:
            return _TRUNCATED
        head = data[at]
        at += 1
        if head < 0x80 or head >= 0xE0:
            continue
        if head < 0xA0 or head in _COUNTED:
            if head < 0xA0:
                items = (head & 0x0F) * (2 if head < 0x90 else 1)
            else:
                width, factor = _COUNTED[head]
                items = int.from_bytes(data[at : at + width], "big") * factor
                at += width
            if items > end - at:
                return _TRUNCATED
            outer.append(left)
            left = items
            if len(outer) > limit:
                return f"nested deeper than {limit}"
        elif head < 0xC0:
            at += head & 0x1F
        elif head in _FIXED:
            at += _FIXED[head]
        elif head in _SIZED:
            width = _SIZED[head]
            at += width + int.from_bytes(data[at : at + width], "big")
        elif head in _FLOATS:
            width, infinite = _FLOATS[head]
            if int.from_bytes(data[at : at + width], "big") & infinite == infinite:
                return "NaN and infinity are not accepted"
            at += width
        else:
            return _EXTENSION if head != 0xC1 else "an undefined head"
        if at > end:
            return _TRUNCATED


# --- What goes in ----------------------------------------------------------------------------------------------------


def _plain(value: object) -> object:
    """Subclasses of text and numbers (a template's safe string, numpy's float) go in as what they are underneath."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"{type(value).__qualname__} is not plain data")


def _find_nan(value: object) -> str | None:
    """Where NaN or an infinity stands in a value, keys included."""
    try:  # the quick ways to see that there is none; it takes msgspec less time to write the value than us to walk it
        packed = msgspec.msgpack.encode(value, enc_hook=_plain)
        if not _may_hold_nan(packed) or not _msgpack_problem(packed, DEPTH):
            return None
    except OverflowError:  # a large integer, which JSON can hold
        pass
    leaves = _leaves(msgspec.to_builtins(value, enc_hook=_plain))
    return next((path for path, leaf in leaves if isinstance(leaf, float) and not math.isfinite(leaf)), None)


def _may_hold_nan(data: bytes) -> bool:
    """No, or perhaps: an exponent of ones follows the head of each NaN and infinity in MessagePack."""
    if 0xCB in data and (b"\xcb\x7f" in data or b"\xcb\xff" in data):
        return True
    return 0xCA in data and (b"\xca\x7f" in data or b"\xca\xff" in data)


def _has_parts(value: object) -> bool:
    if isinstance(value, dict | list | tuple | set | frozenset | msgspec.Struct):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _parts(path: str, value: Any) -> Iterator[tuple[str, object]]:
    """What a container holds, each part with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield _join(path, "(key)"), key
            yield _join(path, key if isinstance(key, str) else repr(key)), item
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    else:
        fields = value.__struct_fields__ if isinstance(value, msgspec.Struct) else value.__dataclass_fields__
        for name in fields:
            yield _join(path, name), getattr(value, name, None)


def _join(path: str, name: str) -> str:
    """`path.name`, of a length and in characters that a message can hold whatever the caller's keys are."""
    shown = name if len(name) <= 60 else f"{name[:60]}..."
    return f"{path}.{shown.encode(errors='backslashreplace').decode()}".lstrip(".")


def _leaves(value: object, budget: int = 1_000_000) -> Iterator[tuple[str, object]]:
    """Everything inside that has no parts, without recursion."""
    stack = [iter([("", value)])]
    while stack and budget:
        for path, item in stack[-1]:
            budget -= 1
            if _has_parts(item):
                stack.append(_parts(path, item))
                break
            yield path, item
        else:
            stack.pop()


def _culprit(value: object, encode: Any) -> tuple[str, object, Exception] | None:
    """The first part that cannot be encoded, for the message. A value that contains itself never gets here."""
    for path, leaf in _leaves(value):
        try:
            encode(leaf)
        except Exception as error:
            return path, leaf, error
    return None
