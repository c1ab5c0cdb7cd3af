"""Secrets in models, such as pydantic's `SecretStr`: a dump of the model has asterisks in their place.

Such a dump fits the type hint, so the handler would get the asterisks as the secret.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from holdfast.errors import InvalidArguments


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
    """What is inside the value, each part with its dump. Nothing if a serializer has changed the structure."""
    if isinstance(dumped, dict):
        for name, one in dumped.items():
            part = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
            yield f"{place}.{name}".lstrip("."), part, one
    elif isinstance(dumped, list) and isinstance(value, Collection) and len(value) == len(dumped):
        for index, (part, one) in enumerate(zip(value, dumped, strict=True)):
            yield f"{place}[{index}]", part, one
