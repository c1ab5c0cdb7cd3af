"""Conditions: what counts as true, comparisons, `in`, `and` and `or`, and choices between two values."""

import ast
from collections.abc import Callable

from tools.lua.emitter import Code, Level, literal
from tools.lua.expressions import Expressions
from tools.lua.refusal import Refused
from tools.lua.value_types import BOOL, join

_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "~=", ast.Is: "==", ast.IsNot: "~=",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Lt: ast.GtE, ast.GtE: ast.Lt,
    ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_BY_IDENTITY = ("int", "float", "bool", "str", "bytes", "enum", "flag", "none")


class Conditions(Expressions):
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


def opposite(code: Code) -> Code:
    """`not` of a condition, with the opposite operator where it compares with a constant."""
    if code.level == Level.COMPARE:
        for ending, other in (("~= nil", "== nil"), ("== nil", "~= nil"), ("> 0", "== 0"), ("~= 0", "== 0")):
            if code.text.endswith(" " + ending) and " and " not in code.text:
                return Code(code.text.removesuffix(ending) + other, BOOL, Level.COMPARE, code.stable)
    return Code(f"not {code.within(Level.UNARY)}", BOOL, Level.UNARY, code.stable)
