"""Secrets in models, such as pydantic's `SecretStr`: a dump of the model has asterisks in their place.

Such a dump fits the type hint, so the handler would get the asterisks as the secret.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from holdfast.errors import InvalidArguments

PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
"""Types of values that are and contain no secret. A long list of numbers costs little."""


def refuse_masked_secret(model: object, data: object) -> None:
    """Raise InvalidArguments if `data`, the dump of the model, has a mask in place of a secret."""
    waiting: list[tuple[str, Any, Any]] = [("", model, data)]
    while waiting:
        place, value, dumped = waiting.pop()
        if hasattr(value, "get_secret_value"):
            if _is_mask(dumped, value):
                raise InvalidArguments(
                    f"Field `{place}` of {type(model).__qualname__} is a {type(value).__name__}, which would be stored "
                    f"as {dumped!r}: the handler would not get the secret. Pass the name under which the handler finds "
                    "the secret, or give the model a field_serializer that returns it, which is then stored as "
                    "readable text"
                )
        else:
            waiting += _parts(place, value, dumped)


def _is_mask(dumped: object, secret: Any) -> bool:
    """True if this text hides the secret. An empty one is dumped as an empty text."""
    return isinstance(dumped, str) and dumped != "" and (dumped == str(secret) or not dumped.strip("*"))


def _parts(place: str, value: Any, dumped: Any) -> Iterator[tuple[str, Any, Any]]:
    """What is inside the value and may be or contain a secret, each part with its dump.

    Nothing if a serializer has changed the structure.
    """
    if getattr(type(value), "__pydantic_root_model__", False):  # a RootModel is dumped as its only field
        yield place, value.root, dumped
    elif isinstance(dumped, dict):
        yield from _parts_of_dict(place, value, dumped)
    elif isinstance(dumped, list) and isinstance(value, Collection) and len(value) == len(dumped):
        for index, (part, one) in enumerate(zip(value, dumped, strict=True)):
            if type(part) not in PLAIN:
                yield f"{place}[{index}]", part, one


def _parts_of_dict(place: str, value: Any, dumped: dict[Any, Any]) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(value, Mapping):  # its keys are dumped as text, in the same order
        if len(value) != len(dumped):
            return
        for (key, part), (name, one) in zip(value.items(), dumped.items(), strict=True):
            if type(key) not in PLAIN:
                yield f"{place} (a key)".lstrip(), key, name
            if type(part) not in PLAIN:
                yield f"{place}.{name}".lstrip("."), part, one
    else:
        for name, one in dumped.items():
            part = getattr(value, name, None)
            if type(part) not in PLAIN:
                yield f"{place}.{name}".lstrip("."), part, one
