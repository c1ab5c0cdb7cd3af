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
from tools.lua.program import Program
from tools.lua.refusal import Refused
from tools.lua.sources import Function
from tools.lua.value_types import ANY, BOOL, INT, STR, Type, fields_of, join, list_of, of_hint, returned_by, value_of

MISSING = object()

_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "~=", ast.Is: "==", ast.IsNot: "~=",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Lt: ast.GtE, ast.GtE: ast.Lt,
    ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], tuple[str, Level]] = {
    ast.Add: ("+", Level.ADD),
    ast.Sub: ("-", Level.ADD),
    ast.Mult: ("*", Level.MULTIPLY),
    ast.Mod: ("%", Level.MULTIPLY),
}
_BY_IDENTITY = ("int", "float", "bool", "str", "bytes", "enum", "flag", "none")
OPENED_BY_STATE = ("metadata",)
"""Fields of a stored job that are in its `tail`; the state opens it."""


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
        self.returning = False
        """True in the expression of a `return`."""

    @abstractmethod
    def call(self, node: ast.Call) -> Code: ...

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
                    function = self.program.method(node, member.cls, name)
                    return Code(f"R.{function}({owner.text})", returned_by(found.fget))
        raise Refused(node, f"`{ast.unparse(node)}`: the type of `{ast.unparse(node.value)}` is not known; annotate it")

    def field(self, owner: Code, cls: type, name: str, type_: Type) -> Code:
        if cls is JobRecord and name in OPENED_BY_STATE:
            return Code(f"S.{name}({owner.text})", type_)
        if name == "payload" and "payload_hash" in fields_of(cls):
            name = "tail"
        return Code(field_of(owner.within(Level.ATOM), name), type_, stable=owner.stable)

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
        if isinstance(node, ast.Tuple):
            codes = self.values(node.elts)
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

    # Conditions

    def test(self, node: ast.expr, *, exact: bool = False) -> Code:
        """As a condition. `exact`: as a value that is true or false, never nil."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.negated(operand)
            case ast.Compare():
                return self.compare(node, exact=exact)
            case ast.BoolOp():
                return self.bool_test(node, exact=exact)
            case ast.Constant(value=bool() as value):
                return Code(literal(value), BOOL, stable=True)
        return self.truth(node, self.value(node), exact=exact)

    def truth(self, node: ast.expr, code: Code, *, exact: bool = False) -> Code:
        kind, optional = code.type.kind, code.type.optional
        if kind == "bool" and not optional:
            return code
        if kind == "struct":
            return Code(f"{code.within(Level.CONCAT)} ~= nil", BOOL, Level.COMPARE, code.stable) if exact else code
        if not optional:
            after = {"int": "~= 0", "flag": "~= 0", "str": '~= ""', "bytes": '~= ""'}.get(kind)
            if after is not None:
                return Code(f"{code.within(Level.CONCAT)} {after}", BOOL, Level.COMPARE, code.stable)
            if kind == "list":
                return Code(f"#{code.within(Level.UNARY)} > 0", BOOL, Level.COMPARE)
            if kind in ("dict", "set"):
                return Code(f"next({code.text}) ~= nil", BOOL, Level.COMPARE)
        what = "an optional value" if optional else f"a value of the kind {kind}"
        raise Refused(node, f"the truth of `{ast.unparse(node)}`, {what}: compare it, for example with `is None`")

    def negated(self, node: ast.expr) -> Code:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            operator = _OPPOSITE[type(node.ops[0])]()
            return self.test(ast.copy_location(ast.Compare(node.left, [operator], node.comparators), node))
        return opposite(self.test(node))

    def compare(self, node: ast.Compare, *, exact: bool) -> Code:
        operands = [node.left, *node.comparators]
        if len(node.ops) > 1:
            pairs: list[ast.expr] = [
                ast.copy_location(ast.Compare(operands[i], [node.ops[i]], [operands[i + 1]]), node)
                for i in range(len(node.ops))
            ]
            if not all(isinstance(one, ast.Name | ast.Attribute | ast.Constant) for one in operands[1:-1]):
                raise Refused(node, "the middle of a chain of comparisons must be a variable or a field")
            return self.bool_test(ast.copy_location(ast.BoolOp(ast.And(), pairs), node), exact=exact)
        operator = node.ops[0]
        if isinstance(operator, ast.In | ast.NotIn):
            code = self.contained(node, exact=exact and isinstance(operator, ast.In))
            return code if isinstance(operator, ast.In) else opposite(code)
        left, right = self.values(operands)
        return self.compare_two(node, left, right, operator)

    def compare_two(self, node: ast.Compare, left: Code, right: Code, operator: ast.cmpop) -> Code:
        stable = left.stable and right.stable
        text = f"{left.within(Level.CONCAT)} {_COMPARE[type(operator)]} {right.within(Level.CONCAT)}"
        kinds = {left.type.kind, right.type.kind}
        if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            if not kinds <= {"int", "float"}:
                raise Refused(node, f"`{ast.unparse(node)}`: only numbers are compared by `<`; texts by `sorted`")
        elif isinstance(operator, ast.Eq | ast.NotEq) and not kinds <= {*_BY_IDENTITY}:
            if "any" in kinds or "union" in kinds:
                raise Refused(node, f"`{ast.unparse(node)}`: the types are not known")
            equal = f"rt.equal({left.text}, {right.text})"
            if isinstance(operator, ast.Eq):
                return Code(equal, BOOL)
            return Code(f"not {equal}", BOOL, Level.UNARY)
        elif (
            isinstance(operator, ast.Is | ast.IsNot)
            and kinds & {"str", "bytes", "int", "float"}
            and "none" not in kinds
        ):
            raise Refused(node, f"`{ast.unparse(node)}`: `is` compares with None, enum members, flags and records only")
        return Code(text, BOOL, Level.COMPARE, stable)

    def contained(self, node: ast.Compare, *, exact: bool) -> Code:
        """`a in b`; the caller negates it."""
        place = node.comparators[0]
        if isinstance(place, ast.Tuple):
            left, *options = self.values([node.left, *place.elts])
            if not left.stable:
                left = self.spill(left)
            text = " or ".join(f"{left.text} == {one.within(Level.CONCAT)}" for one in options)
            return Code(text, BOOL, Level.OR)
        owner, key = self.in_order([lambda: self.value(place), lambda: self.key(node.left)])
        kind = owner.type.present().kind
        if kind == "set":
            text = f"{owner.within(Level.ATOM)}[{key.text}]"
            return Code(f"{text} == true", BOOL, Level.COMPARE) if exact else Code(text, BOOL)
        if kind == "dict":
            return Code(f"{owner.within(Level.ATOM)}[{key.text}] ~= nil", BOOL, Level.COMPARE)
        if kind == "list":
            return Code(f"rt.contains({owner.text}, {key.text})", BOOL)
        raise Refused(node, f"`{ast.unparse(node)}`: `in` needs a set, a dict or a list whose type is known")

    def bool_test(self, node: ast.BoolOp, *, exact: bool) -> Code:
        word, level = ("and", Level.AND) if isinstance(node.op, ast.And) else ("or", Level.OR)
        done: list[Code] = []
        for index, operand in enumerate(node.values):
            with self.captured() as lines:
                self.indent += 1 if index else 0
                code = self.test(operand, exact=exact)
                self.indent -= 1 if index else 0
            if lines and index:
                done = [self._stop_early(self._joined(done, word, level), word, lines, code)]
                continue
            self.lines += lines
            done.append(code)
        return self._joined(done, word, level)

    def _joined(self, parts: list[Code], word: str, level: Level) -> Code:
        if len(parts) == 1:
            return parts[0]
        text = f" {word} ".join(part.within(level) for part in parts)
        return Code(text, BOOL, level, all(part.stable for part in parts))

    def _stop_early(self, first: Code, word: str, lines: list[str], second: Code) -> Code:
        """`first and second`, where `second` needs statements before it."""
        name = self.temp("test")
        self.emit(f"local {name} = {first.text}")
        self.emit(f"if {name} then" if word == "and" else f"if not {name} then")
        self.lines += lines
        self.emit(f"  {name} = {second.text}")
        self.emit("end")
        return Code(name, BOOL, stable=True)

    def bool_value(self, node: ast.BoolOp) -> Code:
        with self.tried():
            kinds = [self.value(one).type for one in node.values]
        if all(one.kind == "bool" and not one.optional for one in kinds):
            return self.bool_test(node, exact=True)
        if not isinstance(node.op, ast.Or) or len(node.values) != 2:
            raise Refused(
                node, f"`{ast.unparse(node)}`: `and` and `or` are translated for bool, `or` also for two values"
            )
        first, second = node.values
        if kinds[0].kind == "struct":
            left, right = self.values(node.values)
            type_ = join([kinds[0].present(), kinds[1]])
            return Code(f"{left.within(Level.OR)} or {right.within(Level.OR)}", type_, Level.OR)
        return self.choice(ast.copy_location(ast.IfExp(first, first, second), node))

    # Choices

    def choice(self, node: ast.IfExp) -> Code:
        """`a if test else b`. `test and a or b` is right only where `a` is neither nil nor false."""
        other = self._other_if_none(node)
        if other is not None:
            return other
        with self.tried() as test_lines:
            self.test(node.test)
        with self.tried() as then_lines, self.knowing(node.test, holds=True):
            then = self.value(node.body)
        with self.tried() as else_lines, self.knowing(node.test, holds=False):
            orelse = self.value(node.orelse)
        type_ = join([then.type, orelse.type])
        plain = not test_lines and not then_lines and not else_lines
        if plain and orelse.text == "nil" and then.type.kind not in ("bool", "any", "union"):
            test = self.test(node.test)
            return Code(f"{test.within(Level.AND)} and {then.within(Level.AND)} or nil", type_, Level.OR)
        if plain and then.text == "nil" and orelse.type.kind not in ("bool", "any", "union"):
            test = self.negated(node.test)
            return Code(f"{test.within(Level.AND)} and {orelse.within(Level.AND)} or nil", type_, Level.OR)
        if plain and then.type.never_false:
            test = self.test(node.test)
            text = f"{test.within(Level.AND)} and {then.within(Level.AND)} or {orelse.within(Level.OR)}"
            return Code(
                text, type_, Level.OR, test.stable and then.stable and orelse.stable, then.fresh and orelse.fresh
            )
        name = self.temp("value")
        self.emit(f"local {name}")
        self.assign_choice(node, lambda code: self.emit(f"{name} = {code.text}"))
        return Code(name, type_, stable=True)

    def assign_choice(self, node: ast.IfExp, write: Callable[[Code], None]) -> None:
        """An `if` whose branches write the two values."""
        self.emit(f"if {self.test(node.test).text} then")
        with self.indented(), self.knowing(node.test, holds=True):
            write(self.value(node.body))
        self.emit("else")
        with self.indented(), self.knowing(node.test, holds=False):
            write(self.value(node.orelse))
        self.emit("end")

    def _other_if_none(self, node: ast.IfExp) -> Code | None:
        """`b if a is None else a` and `a if a is not None else b` are `a or b`."""
        test = node.test
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Is | ast.IsNot):
            return None
        value, other = (node.orelse, node.body) if isinstance(test.ops[0], ast.Is) else (node.body, node.orelse)
        is_none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
        if not is_none or ast.dump(value) != ast.dump(test.left):
            return None
        with self.tried() as lines:
            left, right = self.value(value), self.value(other)
        if lines or not left.stable or left.type.kind in ("bool", "any"):
            return None
        type_ = join([left.type.present(), right.type])
        return Code(f"{left.within(Level.OR)} or {right.within(Level.OR)}", type_, Level.OR, right.stable)

    # Loops

    def comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> Code:
        name = self.temp("list")
        self.emit(f"local {name} = {{}}")
        with self.generator(node.generators):
            item = self.value(node.elt)
            text = f"{item.text} or false" if item.type.optional else item.text
            if item.type.optional and item.type.kind != "struct":
                raise Refused(node, "None in a list: only a list of optional records is translated")
            self.emit(f"{name}[#{name} + 1] = {text}")
        return Code(name, list_of(item.type), stable=True, fresh=True)

    def set_comprehension(self, node: ast.SetComp) -> Code:
        name = self.temp("set")
        self.emit(f"local {name} = {{}}")
        with self.generator(node.generators):
            item = self.key(node.elt)
            self.emit(f"{name}[{item.text}] = true")
        return Code(name, Type("set", (item.type,)), stable=True, fresh=True)

    @contextmanager
    def generator(self, generators: list[ast.comprehension], *, unordered: bool = False) -> Iterator[None]:
        """The loop of a comprehension, whose variables are its own."""
        if len(generators) != 1 or generators[0].is_async:
            raise Refused(generators[0].target, "a comprehension has one `for`")
        generator = generators[0]
        before = dict(self.types)
        with self.loop(generator.target, generator.iter, unordered=unordered):
            if generator.ifs:
                tests = [self.test(one) for one in generator.ifs]
                self.emit(f"if {self._joined(tests, 'and', Level.AND).text} then")
                with self.indented():
                    yield
                self.emit("end")
            else:
                yield
        self.types = before

    @contextmanager
    def loop(self, target: ast.expr, iterable: ast.expr, *, unordered: bool = False) -> Iterator[None]:
        """`for target in iterable`: a list, an iterator of the state, `enumerate`; a dict where order is no matter."""
        inside = self._open_loop(target, iterable, unordered=unordered)
        with self.indented():
            for line in inside:
                self.emit(line)
            yield
        self.emit("end")

    def _open_loop(self, target: ast.expr, iterable: ast.expr, *, unordered: bool) -> list[str]:
        match iterable:
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner]):
                return self._open_enumerate(target, inner)
            case ast.Call(func=ast.Attribute(value=owner, attr="items" | "values" as what), args=[]):
                return self._open_dict(target, owner, what, unordered=unordered)
        code = self.value(iterable)
        kinds = [one for one in code.type.members() if one.kind in ("list", "iterator")]
        if len(kinds) != 1:
            raise Refused(iterable, f"a loop over `{ast.unparse(iterable)}`: its type must be a list or an iterator")
        item = kinds[0].item
        if item.optional:
            raise Refused(iterable, "a loop over a list that may have None in it")
        if isinstance(target, ast.Tuple):
            names = [self._loop_name(one) for one in target.elts]
            if item.kind != "tuple" or len(item.args) != len(names):
                raise Refused(iterable, "a loop with several variables needs a list of tuples of that length")
            for name, type_ in zip(names, item.args, strict=True):
                self.types[name] = type_
            self.emit(f"for _, item in ipairs({code.text}) do")
            places = ", ".join(f"item[{place + 1}]" for place in range(len(names)))
            return [f"local {', '.join(map(lua_name, names))} = {places}"]
        name = self._loop_name(target)
        self.types[name] = item
        if kinds[0].kind == "iterator":
            self.emit(f"for {lua_name(name)} in {code.text} do")
        else:
            self.emit(f"for _, {lua_name(name)} in ipairs({code.text}) do")
        return []

    def _open_enumerate(self, target: ast.expr, inner: ast.expr) -> list[str]:
        if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            raise Refused(target, "`enumerate` needs two variables")
        index, name = (self._loop_name(one) for one in target.elts)
        code = self.value(inner)
        self.types[index], self.types[name] = INT, code.type.item
        place = self.temp("place")
        self.emit(f"for {place}, {lua_name(name)} in ipairs({code.text}) do")
        return [f"local {lua_name(index)} = {place} - 1"]

    def _open_dict(self, target: ast.expr, owner: ast.expr, what: str, *, unordered: bool) -> list[str]:
        code = self.value(owner)
        if code.type.kind == "counter":
            unordered = True
        if code.type.kind not in ("dict", "counter") or not unordered:
            raise Refused(owner, "a loop over a dict: Lua keeps no order; loop over a list, or use any, all or sum")
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        names = [self._loop_name(one) for one in targets]
        for name, type_ in zip(names, code.type.args if what == "items" else code.type.args[1:], strict=True):
            self.types[name] = type_
        if code.type.kind == "counter":
            self.emit(f"for _, item in ipairs({code.text}) do")
            return [f"local {', '.join(map(lua_name, names))} = item[1], item[2]"]
        if what == "values":
            names = ["_", *names]
        self.emit(f"for {', '.join(map(lua_name, names))} in pairs({code.text}) do")
        return []

    def _loop_name(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Name):
            raise Refused(node, "the variable of a loop must be a plain name")
        return node.id


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


def opposite(code: Code) -> Code:
    """`not` of a condition, with the opposite operator where it compares with a constant."""
    if code.level == Level.COMPARE:
        for ending, other in (("~= nil", "== nil"), ("== nil", "~= nil"), ("> 0", "== 0"), ("~= 0", "== 0")):
            if code.text.endswith(" " + ending) and " and " not in code.text:
                return Code(code.text.removesuffix(ending) + other, BOOL, Level.COMPARE, code.stable)
    return Code(f"not {code.within(Level.UNARY)}", BOOL, Level.UNARY, code.stable)
