"""The types of values, as the translator needs them: read from annotations and msgspec classes.

The types decide what a truth test, a comparison or `in` becomes. `0`, `""` and an empty list are true in Lua, `nil`
ends a list, and a table is equal only to itself; so an expression of unknown type is refused where this matters.
"""

import collections
import collections.abc
import types
import typing
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from functools import cache
from typing import Any, Literal

from msgspec import NODEFAULT, Struct, structs

from holdfast.engines.ledger.state import State
from holdfast.engines.ledger.step import Step

Kind = Literal[
    "any", "none", "int", "float", "bool", "str", "bytes", "enum", "flag", "struct", "list", "tuple", "dict", "set",
    "iterator", "counter", "union", "step", "state",
]  # fmt: skip


@dataclass(frozen=True)
class Type:
    kind: Kind
    args: tuple["Type", ...] = ()
    cls: type | None = None
    optional: bool = False

    @property
    def item(self) -> "Type":
        return self.args[0] if self.args else ANY

    def or_none(self) -> "Type":
        return self if self.kind == "none" else Type(self.kind, self.args, self.cls, optional=True)

    def present(self) -> "Type":
        """The same without None."""
        return Type(self.kind, self.args, self.cls)

    @property
    def never_false(self) -> bool:
        """True if Lua counts every value of it as true: neither nil nor false."""
        return not self.optional and self.kind not in ("any", "none", "bool", "union")

    def members(self) -> tuple["Type", ...]:
        return self.args if self.kind == "union" else (self,)


ANY = Type("any")
NONE = Type("none")
INT = Type("int")
BOOL = Type("bool")
STR = Type("str")

_SCALARS: dict[object, Type] = {
    int: INT,
    float: Type("float"),
    bool: BOOL,
    str: STR,
    bytes: Type("bytes"),
    None: NONE,
    types.NoneType: NONE,
    Any: ANY,
    Step: Type("step", cls=Step),
    State: Type("state", cls=State),
}
_LISTS = (list, collections.abc.Iterable, collections.abc.Sequence)


def list_of(item: Type) -> Type:
    return Type("list", (item,))


def of_hint(hint: Any) -> Type:
    """The type that an evaluated annotation means."""
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return join([of_hint(arg) for arg in args])
    if origin is tuple:
        if args[-1] is Ellipsis:
            return list_of(of_hint(args[0]))
        return Type("tuple", tuple(of_hint(arg) for arg in args))
    if origin in _LISTS:
        return list_of(of_hint(args[0]))
    if origin is collections.abc.Iterator:
        return Type("iterator", (of_hint(args[0]),))
    if origin in (dict, collections.abc.Mapping):
        return Type("dict", tuple(of_hint(arg) for arg in args))
    if origin in (set, frozenset):
        return Type("set", (of_hint(args[0]),))
    if isinstance(hint, typing.TypeVar):
        return join([of_hint(arg) for arg in hint.__constraints__])
    if isinstance(hint, type):
        return _of_class(hint)
    return ANY


def _of_class(cls: type) -> Type:
    if issubclass(cls, StrEnum):
        return Type("enum", cls=cls)
    if issubclass(cls, IntFlag):
        return Type("flag", cls=cls)
    if is_record(cls):
        return Type("struct", cls=cls)
    return ANY


def is_record(cls: type) -> bool:
    """A class that is a table with named fields in Lua."""
    return issubclass(cls, Struct) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


def join(found: list[Type]) -> Type:
    """A type that has all values of these."""
    optional = any(one.optional or one.kind == "none" for one in found)
    members = []
    for one in found:
        for member in one.members():
            if member.kind != "none" and member.present() not in members:
                members.append(member.present())
    known = [one for one in members if one.kind != "any"]
    known = [one for one in known if not (one.kind == "list" and one.item == ANY and _more_exact(one, known))]
    if not known:
        return Type("any", optional=optional) if members else NONE
    if len(known) == 1:
        return known[0].or_none() if optional else known[0]
    return Type("union", tuple(known), optional=optional)


def _more_exact(one: Type, known: list[Type]) -> bool:
    return any(other.kind == one.kind and other.item != ANY for other in known)


@cache
def fields_of(cls: type) -> dict[str, Type]:
    """The fields of a record class in their order, with their types."""
    hints = typing.get_type_hints(cls)
    names: tuple[str, ...] = getattr(cls, "__struct_fields__" if issubclass(cls, Struct) else "_fields")
    return {name: of_hint(hints[name]) for name in names}


@cache
def defaults_of(cls: type) -> dict[str, Any]:
    """The fields of a record class that have a default, with it."""
    if issubclass(cls, Struct):
        found: dict[str, Any] = {}
        for field in structs.fields(cls):
            if field.default is not NODEFAULT:
                found[field.name] = field.default
            elif field.default_factory is not NODEFAULT:
                found[field.name] = field.default_factory()
        return found
    return dict(getattr(cls, "_field_defaults", {}))


def returned_by(function: Any) -> Type:
    return of_hint(typing.get_type_hints(function).get("return", Any))


def value_of(value: object) -> Type:
    """The type of a constant of a module."""
    if isinstance(value, frozenset | set):
        return Type("set", (value_of(next(iter(value), None)),))
    return of_hint(type(value))
