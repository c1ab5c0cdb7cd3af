"""A call as bytes: `[args, kwargs]`, positional and keyword arguments as the caller passed them.

Besides the codec, two things depend on how values become bytes, and both are here: the type of a call, by which a codec
decodes and checks it in one step; and the canonical form of a value, which is the same for equal values.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from hashlib import blake2b
from importlib import import_module
from inspect import signature
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from holdfast.codec import MEBIBYTE, JsonCodec, Limits
from holdfast.declare.masked_secrets import refuse_masked_secret
from holdfast.errors import InvalidArguments

ABSENT = msgspec.UNSET
"""The value of a parameter that the call did not pass."""

_QUOTED = re.compile(r"""value (?:'.*'|".*"|-?\d+)""", re.DOTALL)
"""The part of an error message that quotes the value, which may be a secret."""

_deterministic = msgspec.json.Encoder(order="deterministic")
_checker = JsonCodec(Limits(size=16 * MEBIBYTE))


def shape(name: str, positional: Mapping[str, Any], keyword: Mapping[str, Any]) -> type:
    """The type of a call: `.args` and `.kwargs` have an attribute per parameter, `ABSENT` if it was not passed."""
    args = msgspec.defstruct(
        f"{name} args",
        [(parameter, kind, ABSENT) for parameter, kind in positional.items()],
        array_like=True,
        forbid_unknown_fields=True,
    )
    kwargs = msgspec.defstruct(
        f"{name} kwargs",
        [(parameter, kind, ABSENT) for parameter, kind in keyword.items()],
        forbid_unknown_fields=True,
    )
    return msgspec.defstruct(f"{name} call", [("args", args), ("kwargs", kwargs)], array_like=True)


def problem_with(kind: Any) -> str:
    """Why values cannot be decoded as this type (such as a union of two dataclasses). Empty: they can."""
    try:
        msgspec.json.Decoder(kind)
    except TypeError as error:
        return str(error)
    return ""


def with_model_unions(kind: Any) -> Any:
    """The type, with each discriminated union of pydantic models in it as one type that `fitted` can convert.

    msgspec takes one class of this kind in a union. Without a discriminator a union stays as it is, and is refused:
    the data of one model could be read as another.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        if _has_discriminator(parts[1:]):
            return _model_union(kind)
        inner = with_model_unions(parts[0])
        return kind if inner is parts[0] else Annotated[(inner, *parts[1:])]
    if not parts or origin is Literal:
        return kind
    new = tuple(with_model_unions(part) if part is not ... else part for part in parts)
    if all(ours is theirs for ours, theirs in zip(new, parts, strict=True)):
        return kind
    return reduce(or_, new) if origin in (Union, UnionType) else origin[new]


def _has_discriminator(marks: Sequence[object]) -> bool:
    """True for `Field(discriminator=...)` and `Discriminator(...)` of pydantic."""
    return any(
        type(mark).__module__.startswith("pydantic.") and getattr(mark, "discriminator", None) is not None
        for mark in marks
    )


class _ModelUnion(type):
    """The class of such types. An object is an instance if it is one of the models: msgspec asks that."""

    models: tuple[type, ...]

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.models)


def _model_union(kind: Any) -> type:
    """A class that `is_model` takes for a model. Its validation answers one of the models of the union."""
    adapter = import_module("pydantic").TypeAdapter(kind)
    members = {
        "models": tuple(part for part in get_args(get_args(kind)[0]) if isinstance(part, type)),
        "model_validate": staticmethod(adapter.validate_python),
        "model_dump": staticmethod(adapter.dump_python),
    }
    return _ModelUnion("one of several models", (), members)


def given_in_order(values: msgspec.Struct) -> list[Any]:
    """The positional arguments of a decoded call."""
    return [value for value in msgspec.structs.astuple(values) if value is not ABSENT]


def given_by_name(values: msgspec.Struct) -> dict[str, Any]:
    """The keyword arguments of a decoded call."""
    passed = msgspec.structs.astuple(values)
    for value in passed:
        if value is not ABSENT:
            names = values.__struct_fields__
            return {name: value for name, value in zip(names, passed, strict=True) if value is not ABSENT}
    return {}  # most calls have none


def fitted(value: object, kind: Any) -> Any:
    """Convert the plain value to `kind`. Raises InvalidArguments with the place inside the value that does not fit."""
    try:
        return msgspec.convert(value, kind, str_keys=True, dec_hook=_convert_model)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        raise InvalidArguments(_QUOTED.sub("value", problem), field=place.rstrip("`")) from None


def plain(value: object) -> object:
    """The value with its models (classes with `model_dump`, such as pydantic's) converted to plain data."""
    try:
        return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_dump_model)
    except InvalidArguments:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(f"{error}. Pass plain data, such as a primary key.") from error


def is_model(kind: object) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def holds_model(kind: Any) -> bool:
    """True if values of this type may contain models, also in fields of dataclasses, structs and typed dicts."""
    waiting, seen = [kind], dict[int, Any]()
    while waiting:
        one = waiting.pop()
        if is_model(one):
            return True
        if id(one) not in seen:
            seen[id(one)] = one
            waiting += get_args(one)
            if isinstance(one, type) and getattr(one, "__annotations__", None):
                waiting += _field_types(one)
    return False


def _field_types(kind: type) -> list[Any]:
    try:
        return list(get_type_hints(kind, include_extras=True).values())
    except Exception:  # a hint names something that is not defined: decoding says so
        return []


def _convert_model(kind: type, value: object) -> object:
    if isinstance(value, kind):
        return value
    if not is_model(kind):
        raise TypeError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")
    model: Any = kind
    try:
        return model.model_validate(value, **_accepted(model, "model_validate", _BY_NAME))
    except ValueError as error:
        if not hasattr(error, "errors"):
            raise
        # The text of pydantic's error quotes the value, which may be a secret.
        problems = error.errors(include_input=False, include_url=False)
        texts = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ") for one in problems]
        raise ValueError(", ".join(texts)) from None


def _dump_model(value: object) -> object:
    model: Any = value
    kind: Any = type(value)
    if not is_model(kind):
        raise TypeError(f"{kind.__qualname__} is not plain data")
    data = model.model_dump(mode="json", **_accepted(kind, "model_dump", _ROUND_TRIP))
    refuse_masked_secret(value, data)
    return data


_ROUND_TRIP = (("by_alias", False), ("round_trip", True))
"""A model is stored by the names of its fields, without computed ones, whatever its aliases are."""
_BY_NAME = (("by_alias", True), ("by_name", True))


@lru_cache(maxsize=1_000)
def _accepted(kind: type, method: str, options: tuple[tuple[str, bool], ...]) -> dict[str, bool]:
    """Those of the options that the method takes. Classes of other libraries, and older pydantic, have fewer."""
    parameters = signature(getattr(kind, method)).parameters
    return {name: value for name, value in options if name in parameters}


with_fields = replace
"""The job with these fields replaced: `with_fields(job, reply="p")`."""


def canonical(value: object) -> bytes | None:
    """The same bytes for equal values, whatever the order of their keys. None: the value is not plain data."""
    try:
        return _deterministic.encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return None


def call_hash(task: str, args: Sequence[object], kwargs: Mapping[str, object], payload: bytes) -> bytes:
    """The hash by which two calls with one id are compared: of task and arguments, before any encryption."""
    digest = blake2b(task.encode(), digest_size=16)
    digest.update(b"\0")
    digest.update(canonical([args, kwargs]) or payload)
    return digest.digest()


def content_id(value: object, /, *, prefix: str = "") -> str:
    """An id made from a payload: equal payloads get the same one, so enqueueing them twice makes one job.

    >>> content_id({"order": 7}) == content_id({"order": 7})
    True
    >>> content_id({"order": 7}, prefix="invoice-")
    'invoice-c7871aa809c6a1264388f819a06a9975'
    """
    _checker.encode(value)  # refuses values that are not plain data, or would be decoded as another type
    return f"{prefix}{blake2b(_deterministic.encode(value), digest_size=16).hexdigest()}"
