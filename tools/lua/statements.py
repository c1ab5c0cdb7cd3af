"""Statements and whole functions."""

import ast
from collections.abc import Sequence

from msgspec.structs import replace as replace_struct

from tools.lua.calls import Calls
from tools.lua.emitter import Code, lua_name
from tools.lua.expressions import present_if
from tools.lua.program import Program
from tools.lua.refusal import Refused
from tools.lua.scopes import Block, Scopes, find_scopes, simplify
from tools.lua.sources import Function
from tools.lua.value_types import ANY, Type, join, of_hint


def translate(program: Program, function: Function) -> str:
    """One function as Lua."""
    first = Statements(program, function, {})
    first.run()  # to learn the types of the variables
    second = Statements(program, function, first.learned)
    second.run()
    return "\n".join(second.lines)


class Statements(Calls):
    def __init__(self, program: Program, function: Function, learned: dict[str, Type]) -> None:
        super().__init__(program, function)
        self.learned = dict(learned)
        """The type of each variable that is assigned, over all its assignments."""
        self.scopes = Scopes()
        self.line = function.node.lineno
        self.annotated: set[str] = set()
        self.several = 0
        """How many values the function returns; 0 for one or none."""

    def run(self) -> None:
        node = self.function.node
        hints = self._hints()
        arguments = [*node.args.args, *node.args.kwonlyargs]
        if node.args.vararg or node.args.kwarg or node.args.posonlyargs:
            raise Refused(node, "a function has plain and keyword-only parameters only")
        if any(not (isinstance(one, ast.Name) and one.id == "property") for one in node.decorator_list):
            raise Refused(node, "a decorator has no translation")
        for argument in arguments:
            own = self.function.owner is not None and argument.arg == "self"
            hint = self.function.owner if own else hints.get(argument.arg)
            self.types[argument.arg] = ANY if hint is None else of_hint(hint)
        returned = of_hint(hints.get("return", None))
        self.several = len(returned.args) if returned.kind == "tuple" and not returned.optional else 0
        body = simplify(node.body)
        self.scopes = find_scopes(body, set(self.types))
        for name, type_ in self.learned.items():
            self.types[name] = type_
        names = ", ".join(lua_name(argument.arg) for argument in arguments)
        self.emit(f"-- {self.function.file}: {self.function.title}")
        document = ast.get_docstring(node)
        if document:
            self.emit("-- " + document.split("\n")[0])
        self.emit(f"function R.{self.function.name}({names})")
        self.line = node.body[0].end_lineno or 0 if document else node.lineno
        with self.indented():
            self.block(body)
        self.emit("end")

    def _hints(self) -> dict[str, object]:
        """The evaluated annotations, also of a text that is not on the disk."""
        node = self.function.node
        found: dict[str, object] = {}
        for argument in [*node.args.args, *node.args.kwonlyargs]:
            if argument.annotation is not None:
                found[argument.arg] = self._evaluated(argument.annotation)
        if node.returns is not None:
            found["return"] = self._evaluated(node.returns)
        return found

    def _evaluated(self, annotation: ast.expr) -> object:
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        return eval(compile(ast.Expression(annotation), "<annotation>", "eval"), dict(vars(self.module)))

    # Blocks and comments

    def block(self, body: Block) -> None:
        before = self.present
        for statement in body:
            self._comments(statement)
            for name in sorted(self.scopes.before_statement.get(id(statement), [])):
                self.emit(f"local {self.name_in_lua(name)}")
            self.statement(statement)
            if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body):
                self.present |= present_if(statement.test, holds=False)
        self.present &= before
        if not body:
            self.emit("-- nothing")

    def _comments(self, statement: ast.stmt) -> None:
        """Comments before the statement, and in it if it is one that has no block."""
        compound = isinstance(statement, ast.If | ast.For | ast.While | ast.Match)
        end = statement.lineno if compound else statement.end_lineno or statement.lineno
        inside = set()
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and self.static(node.func) is replace_struct:
                inside |= {keyword.value.end_lineno for keyword in node.keywords}
        for line in range(self.line + 1, end + 1):
            comment = self.function.comments.get(line)
            if comment and (line not in inside or compound):
                self.emit(f"-- {comment}")
        self.line = max(self.line, end)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Return(value=None):
                self.emit("return")
            case ast.Return(value=ast.expr() as value):
                self.returned(value)
            case ast.Assign(targets=[target], value=value):
                self.assign(node, target, value)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value):
                self.learned[name] = self.types[name] = of_hint(self._evaluated(annotation))
                self.annotated.add(name)
                self.assign(node, node.target, value)
            case ast.AugAssign(target=target, op=op, value=value):
                load = ast.copy_location(ast.parse(ast.unparse(target), mode="eval").body, target)
                ast.fix_missing_locations(load)
                binary = ast.copy_location(ast.BinOp(load, op, value), node)
                self.assign(node, target, binary)
            case ast.If():
                self.if_(node)
            case ast.While(test, body):
                self._forget(set(_stored(body)))
                with self.captured() as lines:
                    code = self.test(test)
                if lines:
                    raise Refused(
                        node, "the test of this `while` needs statements: compute it in the loop, and `break`"
                    )
                self.emit(f"while {code.text} do")
                with self.indented():
                    self.block(body)
                self.emit("end")
            case ast.For(target, iterable, body):
                self._forget(set(_stored([node])))
                with self.loop(target, iterable):
                    self.block(body)
            case ast.Match():
                self.match(node)
            case ast.Expr(value=ast.Call() as call):
                self.expression(call)
            case ast.Assert(test=test):
                self.emit(f"assert({self.test(test).text})")
            case ast.Pass():
                pass
            case ast.Break():
                self.emit("break")
            case _:
                raise Refused(node, f"the statement {type(node).__name__} has no translation")

    def if_(self, node: ast.If, word: str = "if") -> None:
        if not node.body and node.orelse:  # it had a `continue` only
            other = ast.UnaryOp(ast.Not(), node.test)
            self.if_(ast.copy_location(ast.If(ast.copy_location(other, node.test), node.orelse, []), node), word)
            return
        self.emit(f"{word} {self.test(node.test).text} then")
        with self.indented(), self.knowing(node.test, holds=True):
            self.block(node.body)
        with self.knowing(node.test, holds=False):
            self._else(node)

    def _else(self, node: ast.If) -> None:
        if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            other = node.orelse[0]
            with self.tried() as lines:
                self.test(other.test)
            has_comment = any(line in self.function.comments for line in range(self.line + 1, other.lineno + 1))
            if not lines and id(other) not in self.scopes.before_statement and not has_comment:
                self.if_(other, "elseif")
                return
        if node.orelse:
            self.emit("else")
            with self.indented():
                self.block(node.orelse)
        self.emit("end")

    def match(self, node: ast.Match) -> None:
        subject = self.value(node.subject)
        if not subject.stable:
            subject = self.spill(subject)
        word = "if"
        for case in node.cases:
            match case.pattern:
                case ast.MatchValue(value=value) if case.guard is None:
                    self.emit(f"{word} {subject.text} == {self.value(value).text} then")
                case ast.MatchAs(pattern=None, name=None) if case.guard is None and case is node.cases[-1]:
                    self.emit("else")
                case _:
                    raise Refused(node, "`match` is translated for values of an enum, with `case _` last")
            with self.indented():
                self.block(case.body)
            word = "elseif"
        self.emit("end")

    def expression(self, node: ast.Call) -> None:
        """A call whose value is not used."""
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "add"):
            owner = self.value(node.func.value)
            kind = owner.type.kind
            if kind == "list" and node.func.attr == "append":
                if not owner.stable and not isinstance(node.func.value, ast.Attribute):
                    owner = self.spill(owner)
                item = self.value(node.args[0])
                if item.type.optional or item.type.kind == "none":
                    raise Refused(node, "None in a list: nil ends a list in Lua")
                self.emit(f"{owner.text}[#{owner.text} + 1] = {item.text}")
                if isinstance(node.func.value, ast.Name):
                    self._learn(node.func.value.id, Type("list", (item.type,)))
                return
            if kind == "set" and node.func.attr == "add":
                self.emit(f"{owner.text}[{self.key(node.args[0]).text}] = true")
                return
        self.emit(self.value(node).text)

    # Assignments and returns

    def assign(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        declared = self.scopes.with_statement.get(id(node), set())
        if isinstance(target, ast.Tuple):
            self._assign_several(target, value, declared)
            return
        if isinstance(target, ast.Subscript):
            place = self.subscript(target)
            self.emit(f"{place.text} = {self.value(value).text}")
            return
        if not isinstance(target, ast.Name):
            raise Refused(
                target, f"`{ast.unparse(target)}` is assigned: only variables and items of lists and dicts are"
            )
        name = target.id
        lua = self.name_in_lua(name)
        word = "local " if name in declared else ""
        if word and isinstance(value, ast.Tuple) and self._needs_no_table(name, value):
            self.tuples[name] = self.values(value.elts)
            self._learn(name, Type("tuple", tuple(code.type for code in self.tuples[name])))
            return
        if word and isinstance(value, ast.Call) and self.static(value.func) is replace_struct:
            self._learn(name, self.replaced(value, lua).type)
            return
        if isinstance(value, ast.IfExp):
            with self.tried() as lines:
                self.choice(value)
            if lines:
                found: list[Type] = []

                def write(code: Code) -> None:
                    found.append(code.type)
                    self.emit(f"{lua} = {code.text}")

                if word:
                    self.emit(f"local {lua}")
                self.assign_choice(value, write)
                self._learn(name, join(found))
                return
        code = self.value(value)
        self._learn(name, code.type)
        if code.text == "nil" and word:
            self.emit(f"local {lua}")
        elif code.fresh and code.stable and word:
            self._rename(code.text, lua)
        else:
            self.emit(f"{word}{lua} = {code.text}")

    def _needs_no_table(self, name: str, value: ast.Tuple) -> bool:
        """True if the parts of a tuple can be read again wherever the variable is used."""
        if any(isinstance(one, ast.Starred) for one in value.elts):
            return False
        stored = _stored([self.function.node])
        loops = [node for node in ast.walk(self.function.node) if isinstance(node, ast.For)]
        in_loops = {one for loop in loops for one in _stored([loop.target])}
        with self.tried() as lines:
            codes = self.values(value.elts)
        read = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        same = not any(one in stored and one not in in_loops for one in read)
        return not lines and all(code.stable for code in codes) and same and stored.count(name) == 1

    def _rename(self, temp: str, name: str) -> None:
        """The table was made in a variable of its own: give that variable the name."""
        import re

        start = max(place for place, line in enumerate(self.lines) if line.strip().startswith(f"local {temp} ="))
        pattern = re.compile(rf"\b{temp}\b")
        self.lines[start:] = [pattern.sub(name, line) for line in self.lines[start:]]

    def _assign_several(self, target: ast.Tuple, value: ast.expr, declared: set[str]) -> None:
        if not all(isinstance(one, ast.Name) for one in target.elts):
            raise Refused(target, "only plain names stand on the left of `=` with several targets")
        names = [one.id for one in target.elts if isinstance(one, ast.Name)]
        texts = [self.name_in_lua(name) for name in names]
        word = "local " if set(names) <= declared else ""
        if declared and not word:
            self.emit(f"local {', '.join(self.name_in_lua(name) for name in names if name in declared)}")
        if isinstance(value, ast.IfExp):
            if word:
                self.emit(f"local {', '.join(texts)}")
            types: list[list[Type]] = [[] for _ in names]
            self.emit(f"if {self.test(value.test).text} then")
            with self.indented():
                self._write_several(names, texts, value.body, "", types)
            self.emit("else")
            with self.indented():
                self._write_several(names, texts, value.orelse, "", types)
            self.emit("end")
        else:
            types = [[] for _ in names]
            self._write_several(names, texts, value, word, types)
        for name, found in zip(names, types, strict=True):
            self._learn(name, join(found))

    def _write_several(
        self, names: list[str], texts: list[str], value: ast.expr, word: str, types: list[list[Type]]
    ) -> None:
        if isinstance(value, ast.Tuple):
            codes = self.values(value.elts)
            right = ", ".join(code.text for code in codes)
            found = [code.type for code in codes]
        else:
            code = self.value(value)
            if code.type.kind != "tuple" or len(code.type.args) != len(names):
                raise Refused(value, f"`{ast.unparse(value)}` is not a tuple of {len(names)} values")
            found = list(code.type.args)
            if isinstance(value, ast.Call):
                right = code.text  # a function returns several values
            else:
                code = self.spill(code, "item")
                right = ", ".join(f"{code.text}[{place + 1}]" for place in range(len(names)))
        for place, type_ in enumerate(found):
            types[place].append(type_)
        self.emit(f"{word}{', '.join(texts)} = {right}")

    def _learn(self, name: str, type_: Type) -> None:
        self._forget({name})
        if name in self.annotated:
            return
        known = self.learned.get(name)
        if known is None and name in self.types:  # a parameter keeps its annotation
            return
        self.learned[name] = self.types[name] = type_ if known is None else join([known, type_])

    def _forget(self, names: set[str]) -> None:
        """These variables have new values: what was known of them no longer holds."""
        self.present = frozenset(text for text in self.present if text.split(".")[0] not in names)

    def returned(self, value: ast.expr) -> None:
        self.returning = True
        self._returned(value)
        self.returning = False

    def _returned(self, value: ast.expr) -> None:
        if isinstance(value, ast.Tuple) and self.several:
            self.emit("return " + ", ".join(code.text for code in self.values(value.elts)))
            return
        if isinstance(value, ast.IfExp):
            with self.tried() as lines:
                self.choice(value)
            if lines or self.several:
                self.emit(f"if {self.test(value.test).text} then")
                with self.indented():
                    self._returned(value.body)
                self.emit("end")
                self._returned(value.orelse)
                return
        if self.several and not isinstance(value, ast.Call):
            raise Refused(value, "several values are returned as a tuple display or by a call")
        code = self.value(value)
        self.emit(f"return {code.text}")


def _leaves(body: Block) -> bool:
    return isinstance(body[-1], ast.Return | ast.Break)


def _stored(parts: Sequence[ast.AST]) -> list[str]:
    """The variables that are assigned here, as often as they are."""
    nodes = [node for part in parts for node in ast.walk(part)]
    return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
