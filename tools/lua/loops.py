"""Loops: comprehensions and `for`."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager

from tools.lua.conditions import Conditions
from tools.lua.emitter import Code, Level, lua_name
from tools.lua.refusal import Refused
from tools.lua.value_types import INT, Type, list_of


class Loops(Conditions):
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
        before = dict(self.types)
        inside = self._open_loop(target, iterable, unordered=unordered)
        with self.indented():
            for line in inside:
                self.emit(line)
            yield
        self.emit("end")
        for node in ast.walk(target):  # its variables end with the loop
            if isinstance(node, ast.Name):
                self.types.pop(node.id, None)
                if node.id in before:
                    self.types[node.id] = before[node.id]

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
