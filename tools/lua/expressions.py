"""Expressions. Loops and conditions inside an expression become statements before it."""

import ast
import builtins
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import EnumMeta, IntFlag, StrEnum
from types import ModuleType
from typing import Any

from holdfast.model.job import JobRecord
from tools.lua.emitter import Code, Emitter, Level, field_of, literal, lua_name, quoted
from tools.lua.program import OPENED_BY_STATE, Program, stored_name
from tools.lua.refusal import Refused
from tools.lua.sources import Function
from tools.lua.value_types import ANY, INT, STR, Type, fields_of, join, list_of, of_hint, returned_by, value_of

MISSING = object()

_ARITHMETIC: dict[type[ast.operator], tuple[str, Level]] = {
    ast.Add: ("+", Level.ADD),
    ast.Sub: ("-", Level.ADD),
    ast.Mult: ("*", Level.MULTIPLY),
    ast.Mod: ("%", Level.MULTIPLY),
}


class Expressions(Emitter):
    """Translates the expressions of one function."""

    def __init__(self, program: Program, function: Function) -> None:
        super().__init__()
        self.program = program
        self.function = function
        self.module: ModuleType = function.module
        self.types: dict[str, Type] = {}
        """Types of the variables; a name that is here is a variable."""
        self.names: dict[str, str] = {}
        """Other names in Lua than in Python."""
        self.present: frozenset[str] = frozenset()
        """Variables and fields, as Python text, that are known not to be None here."""
        self.tuples: dict[str, list[Code]] = {}
        """Variables that are a tuple, by its parts: they need no table."""
        self.returning = False
        """True in the expression of a `return`."""

    @abstractmethod
    def call(self, node: ast.Call) -> Code: ...

    @abstractmethod
    def test(self, node: ast.expr, *, exact: bool = False) -> Code: ...

    @abstractmethod
    def bool_value(self, node: ast.BoolOp) -> Code: ...

    @abstractmethod
    def choice(self, node: ast.IfExp) -> Code: ...

    @abstractmethod
    def comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> Code: ...

    @abstractmethod
    def set_comprehension(self, node: ast.SetComp) -> Code: ...

    # Names

    def static(self, node: ast.expr) -> Any:
        """The object that a name of the module or an attribute of a class means, or MISSING."""
        if isinstance(node, ast.Name):
            if node.id in self.types:
                return MISSING
            return getattr(self.module, node.id, getattr(builtins, node.id, MISSING))
        if isinstance(node, ast.Attribute):
            owner = self.static(node.value)
            if isinstance(owner, ModuleType | EnumMeta):
                return getattr(owner, node.attr, MISSING)
        return MISSING

    def name_in_lua(self, name: str) -> str:
        return self.names.get(name) or lua_name(name)

    def constant(self, node: ast.expr, value: Any) -> Code:
        if isinstance(value, IntFlag):
            self.program.use_flags(type(value))
            return Code(literal(value), value_of(value), stable=True)
        if isinstance(value, StrEnum | str | bytes | bool) or value is None:
            return Code(literal(value), value_of(value), stable=True)
        if isinstance(value, int | float | frozenset) or hasattr(value, "__struct_fields__"):
            name = node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)
            try:
                return Code(self.program.constant(name, value), value_of(value), stable=True)
            except ValueError as error:
                raise Refused(node, str(error)) from error
        raise Refused(node, f"`{ast.unparse(node)}` is no constant that Lua can have: use a number, text or frozenset")

    # Values

    def value(self, node: ast.expr) -> Code:
        code = self._value(node)
        if code.type.optional and ast.unparse(node) in self.present:
            return code.typed(code.type.present())
        return code

    @contextmanager
    def knowing(self, test: ast.expr, *, holds: bool) -> Iterator[None]:
        """Inside, `test` holds, or it does not hold."""
        before = self.present
        self.present = before | present_if(test, holds=holds)
        yield
        self.present &= before

    def _value(self, node: ast.expr) -> Code:
        match node:
            case ast.Constant(value=int() | str() | bytes() | None as value):
                return Code(literal(value), value_of(value), stable=True)
            case ast.Name() if node.id in self.tuples:
                text = "{" + ", ".join(code.text for code in self.tuples[node.id]) + "}"
                return Code(text, self.types[node.id], fresh=True)
            case ast.Name() if node.id in self.types:
                return Code(self.name_in_lua(node.id), self.types[node.id], stable=True)
            case ast.Name() | ast.Attribute() if (found := self.static(node)) is not MISSING:
                return self.constant(node, found)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Subscript():
                return self.subscript(node)
            case ast.Call():
                return self.call(node)
            case ast.BinOp():
                return self.binary(node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                code = self.value(operand)
                return Code(f"-{code.within(Level.UNARY)}", code.type, Level.UNARY, code.stable)
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                code = self.flag(operand)
                return Code(f"bit.bnot({code.text})", code.type, stable=code.stable)
            case ast.UnaryOp(op=ast.Not()) | ast.Compare():
                return self.test(node, exact=True)
            case ast.BoolOp():
                return self.bool_value(node)
            case ast.IfExp():
                return self.choice(node)
            case ast.Tuple() | ast.List():
                return self.display(node)
            case ast.ListComp() | ast.GeneratorExp():
                return self.comprehension(node)
            case ast.SetComp():
                return self.set_comprehension(node)
            case ast.Dict(keys=[]):
                return Code("{}", Type("dict"), fresh=True)
            case ast.JoinedStr():
                return self.text(node)
        raise Refused(node, f"`{ast.unparse(node)}`: the translator does not know {type(node).__name__}")

    def values(self, nodes: list[ast.expr]) -> list[Code]:
        return self.in_order([lambda node=node: self.value(node) for node in nodes])  # type: ignore[misc]

    def in_order(self, parts: list[Callable[[], Code]]) -> list[Code]:
        """Evaluate from left to right, also where a later part needs statements before it."""
        codes: list[Code] = []
        for part in parts:
            with self.captured() as lines:
                code = part()
            if lines:
                codes = [one if one.stable else self.spill(one) for one in codes]
                self.lines += lines
            codes.append(code)
        return codes

    def attribute(self, node: ast.Attribute) -> Code:
        owner = self.value(node.value)
        name = node.attr
        for member in owner.type.members():
            if member.kind == "step":
                if name == "state":
                    return Code("S", of_hint(self.program.state), stable=True)
                if name not in self.program.step_fields:
                    raise Refused(node, f"`step.{name}` is not in step.lua")
                return Code(f"{owner.text}.{name}", self.program.step_fields[name], stable=name in ("now", "at"))
            if member.kind == "struct" and member.cls is not None:
                fields = fields_of(member.cls)
                if name in fields:
                    return self.field(owner, member.cls, name, fields[name])
                found = getattr(member.cls, name, None)
                if isinstance(found, property):
                    return self.property(node, owner, member.cls)
        raise Refused(node, f"`{ast.unparse(node)}`: the type of `{ast.unparse(node.value)}` is not known; annotate it")

    def field(self, owner: Code, cls: type, name: str, type_: Type) -> Code:
        if cls is JobRecord and name in OPENED_BY_STATE:
            return Code(f"S.{name}({owner.text})", type_)
        return Code(field_of(owner.within(Level.ATOM), stored_name(cls, name)), type_, stable=owner.stable)

    def property(self, node: ast.Attribute, owner: Code, cls: type) -> Code:
        """A property that is one expression stands where it is read."""
        function = self.program.method(node, cls, node.attr)
        body = [one for one in function.node.body if not isinstance(one, ast.Expr)]
        type_ = returned_by(getattr(cls, node.attr).fget)
        if len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None and owner.stable:
            saved = self.module, self.types, self.names, self.tuples
            self.module, self.types, self.names = function.module, {"self": of_hint(cls)}, {"self": owner.text}
            with self.tried() as lines:
                code = self.value(body[0].value)
            self.module, self.types, self.names, self.tuples = saved
            if not lines:
                return code.typed(type_)
        return Code(f"R.{function.name}({owner.text})", type_)

    def subscript(self, node: ast.Subscript) -> Code:
        if isinstance(node.slice, ast.Slice):
            lower, upper = node.slice.lower, node.slice.upper
            parts = [node.value, lower or ast.Constant(value=0)] + ([] if upper is None else [upper])
            codes = self.values(parts)
            return Code(f"rt.slice({', '.join(code.text for code in codes)})", codes[0].type.present(), fresh=True)
        owner, index = self.in_order([lambda: self.value(node.value), lambda: self.index(node)])
        return Code(f"{owner.within(Level.ATOM)}[{index.text}]", index.type)

    def index(self, node: ast.Subscript) -> Code:
        """The text between the brackets, with the type of what is found there."""
        with self.tried():
            owner = self.value(node.value).type.present()
        if owner.kind == "dict":
            key = self.key(node.slice)
            return Code(key.text, owner.args[1] if len(owner.args) == 2 else ANY)
        if owner.kind not in ("list", "tuple"):
            raise Refused(node, f"`{ast.unparse(node)}`: `[]` needs a list, a tuple or a dict whose type is known")
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            place = node.slice.value
            return Code(str(place + 1), owner.args[place] if owner.kind == "tuple" else owner.item)
        if owner.kind == "tuple":
            raise Refused(node, "a tuple is read at a constant place")
        code = self.value(node.slice)
        if code.type.kind != "int":
            raise Refused(node, f"`{ast.unparse(node)}`: the index must be a number")
        return Code(f"{code.within(Level.ADD)} + 1", owner.item)

    def key(self, node: ast.expr) -> Code:
        """A key of a dict or a member of a set: a tuple of names is one text."""
        parts = self.tuples.get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Tuple) or parts is not None:
            codes = parts if parts is not None else self.values(getattr(node, "elts", []))
            if any(code.type.present().kind not in ("str", "enum") for code in codes):
                raise Refused(node, "a tuple as key has texts only")
            return Code(' .. "\\0" .. '.join(code.within(Level.ADD) for code in codes), STR, Level.CONCAT)
        code = self.value(node)
        return Code(f"rt.key({code.text})", STR) if code.type.kind == "tuple" else code

    def binary(self, node: ast.BinOp) -> Code:
        left, right = self.values([node.left, node.right])
        kinds = {left.type.present().kind, right.type.present().kind}
        stable = left.stable and right.stable
        if isinstance(node.op, ast.BitOr | ast.BitAnd):
            if kinds != {"flag"}:
                raise Refused(node, "`|` and `&` are translated for flags only")
            name = "bor" if isinstance(node.op, ast.BitOr) else "band"
            return Code(f"bit.{name}({left.text}, {right.text})", left.type, stable=stable)
        if isinstance(node.op, ast.Add) and kinds == {"list"}:
            return Code(f"rt.concat({left.text}, {right.text})", join([left.type, right.type]), fresh=True)
        if isinstance(node.op, ast.Add) and kinds <= {"str", "enum"}:
            text = f"{left.within(Level.ADD)} .. {right.within(Level.CONCAT)}"
            return Code(text, STR, Level.CONCAT, stable)
        if kinds != {"int"}:
            raise Refused(node, f"`{ast.unparse(node)}`: arithmetic is translated for whole numbers only")
        if isinstance(node.op, ast.FloorDiv):
            text = f"math.floor({left.within(Level.MULTIPLY)} / {right.within(Level.UNARY)})"
            return Code(text, INT, stable=stable)
        if type(node.op) not in _ARITHMETIC:
            raise Refused(node, f"`{ast.unparse(node)}`: this operator is not translated")
        operator, level = _ARITHMETIC[type(node.op)]
        text = f"{left.within(level)} {operator} {right.within(Level(level + 1))}"
        return Code(text, INT, level, stable)

    def flag(self, node: ast.expr) -> Code:
        code = self.value(node)
        if code.type.kind != "flag":
            raise Refused(node, "`~` is translated for flags only")
        return code

    def text(self, node: ast.JoinedStr) -> Code:
        def part(one: ast.expr) -> Code:
            if isinstance(one, ast.Constant):
                return Code(quoted(str(one.value)), STR, stable=True)
            assert isinstance(one, ast.FormattedValue)
            if one.format_spec is not None or one.conversion != -1:
                raise Refused(node, "an f-string has plain `{…}` only")
            return self.as_text(one.value)

        codes = self.in_order([lambda one=one: part(one) for one in node.values])  # type: ignore[misc]
        return Code(" .. ".join(code.within(Level.ADD) for code in codes), STR, Level.CONCAT)

    def as_text(self, node: ast.expr) -> Code:
        code = self.value(node)
        if code.type.kind == "int":
            return Code(f"rt.integer({code.text})", STR)
        if code.type.kind in ("str", "enum"):
            return code
        raise Refused(node, f"`{ast.unparse(node)}`: only text and whole numbers become text")

    def display(self, node: ast.Tuple | ast.List) -> Code:
        """`(a, b)`, `[a]`, `(*list, a)`."""
        if any(isinstance(one, ast.Starred) for one in node.elts):
            first, *rest = node.elts
            if not isinstance(first, ast.Starred) or any(isinstance(one, ast.Starred) for one in rest):
                raise Refused(node, "a star may only stand first, as in `(*list, item)`")
            owner, *items = self.values([first.value, *rest])
            type_ = list_of(join([owner.type.item, *(one.type for one in items)]))
            return Code(f"rt.extended({', '.join([owner.text, *(one.text for one in items)])})", type_, fresh=True)
        codes = self.values(node.elts)
        text = "{" + ", ".join(code.text for code in codes) + "}"
        if isinstance(node, ast.Tuple) and codes:
            return Code(text, Type("tuple", tuple(code.type for code in codes)), fresh=True)
        if any(code.type.optional or code.type.kind == "none" for code in codes):
            raise Refused(node, "None in a list: nil ends a list in Lua")
        return Code(text, list_of(join([code.type for code in codes]) if codes else ANY), fresh=True)


def present_if(test: ast.expr, *, holds: bool) -> frozenset[str]:
    """What is not None if the test holds, or if it does not."""
    match test:
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as operator], comparators=[ast.Constant(value=None)]):
            if isinstance(operator, ast.IsNot) == holds:
                return frozenset({ast.unparse(left)})
        case ast.BoolOp(op=operator, values=parts) if isinstance(operator, ast.And) == holds:
            return frozenset().union(*(present_if(part, holds=holds) for part in parts))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return present_if(operand, holds=not holds)
    return frozenset()
