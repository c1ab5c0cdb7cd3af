"""Calls: of rules, of the state and the step, of classes, and of the few builtins that have a translation."""

import ast
import heapq
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace as replace_struct

from holdfast.engines.ledger.state import rank_of
from holdfast.model.job import JobRecord
from holdfast.model.records import PoolRecord
from holdfast.model.work import lease_of
from tools.lua.emitter import NIL, Code, Level, field_of, kind_of, literal, table
from tools.lua.expressions import MISSING
from tools.lua.loops import Loops
from tools.lua.program import OPENED_BY_STATE, stored_name
from tools.lua.refusal import Refused
from tools.lua.value_types import (
    ANY,
    BOOL,
    INT,
    Type,
    defaults_of,
    fields_of,
    is_record,
    list_of,
    of_hint,
    returned_by,
    value_of,
)

HEAP = {heapq.heapify: "heapify", heapq.heappop: "heappop", heapq.heapreplace: "heapreplace"}


class Calls(Loops):
    def call(self, node: ast.Call) -> Code:
        found = self.static(node.func)
        if found is MISSING:
            if isinstance(node.func, ast.Attribute):
                return self.method(node, node.func)
            raise Refused(node, f"`{ast.unparse(node.func)}` is not a function that the translator knows")
        if isinstance(found, type) and is_record(found):
            return self.construct(node, found)
        if found is replace_struct:
            return self.replaced(node, self.temp("copy"))
        if found is lease_of:
            return self.value(node.args[0])  # the stored record has every field of a lease
        if found is rank_of:
            return Code(f"rt.rank_of({self.value(node.args[0]).text})", INT)
        if found in HEAP:
            return self.heap(node, HEAP[found])
        function = self.program.function(found)
        if function is not None:
            text = self.arguments(node, _parameters(found))
            return Code(f"R.{function.name}({text})", returned_by(found))
        builtin: Callable[[ast.Call], Code] | None = getattr(self, f"builtin_{getattr(found, '__name__', '')}", None)
        if builtin is None or not (found is Counter or getattr(found, "__module__", "") == "builtins"):
            raise Refused(node, f"`{ast.unparse(node.func)}` has no translation")
        return builtin(node)

    # Arguments

    def arguments(self, node: ast.Call, parameters: list[tuple[str, Any]], first: str | None = None) -> str:
        """Keyword arguments in the order of the signature; defaults where the callee needs them."""
        texts = [code.text for code in self.bound(node, parameters)]
        given = {keyword.arg for keyword in node.keywords}
        while len(texts) > len(node.args) and texts[-1] == "nil" and parameters[len(texts) - 1][0] not in given:
            texts.pop()
        return ", ".join(texts if first is None else [first, *texts])

    def bound(self, node: ast.Call, parameters: list[tuple[str, Any]]) -> list[Code]:
        names = [name for name, _ in parameters]
        given: dict[str, Callable[[], Code]] = {}
        positional: list[Callable[[], Code]] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                positional += self.spread(argument)
            else:
                positional.append(lambda argument=argument: self.value(argument))  # type: ignore[misc]
        for name, thunk in zip(names, positional, strict=False):
            given[name] = thunk
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg not in names:
                raise Refused(node, f"the argument `{keyword.arg}` is not in the signature")
            given[keyword.arg] = lambda keyword=keyword: self.value(keyword.value)  # type: ignore[misc]
        codes = dict(zip(given, self.in_order(list(given.values())), strict=True))
        ordered = []
        for name, default in parameters:
            if name in codes:
                ordered.append(codes[name])
            elif default is MISSING:
                raise Refused(node, f"the argument `{name}` is missing")
            else:
                ordered.append(NIL if default is None else Code(literal(default), value_of(default), stable=True))
        return ordered

    def spread(self, argument: ast.Starred) -> list[Callable[[], Code]]:
        if isinstance(argument.value, ast.Name) and argument.value.id in self.tuples:
            return [lambda one=one: one for one in self.tuples[argument.value.id]]  # type: ignore[misc]
        code = self.value(argument.value)
        if code.type.kind != "tuple" or not code.stable:
            raise Refused(argument, "`*` is translated for a variable that is a tuple of known length")
        return [
            lambda place=place, type_=type_: Code(f"{code.text}[{place + 1}]", type_, stable=True)  # type: ignore[misc]
            for place, type_ in enumerate(code.type.args)
        ]

    # Methods

    def method(self, node: ast.Call, func: ast.Attribute) -> Code:
        owner = self.value(func.value)
        name = func.attr
        for member in owner.type.members():
            if member.kind in ("step", "state") and member.cls is not None:
                found = getattr(member.cls, name, None)
                if found is None:
                    raise Refused(node, f"{member.cls.__name__} has no `{name}`")
                text = self.arguments(node, _parameters(found)[1:])
                return Code(f"{owner.text}.{name}({text})", returned_by(found))
            if member.kind == "struct" and member.cls is not None:
                return self.struct_method(node, owner, member.cls, name)
        key = f"{owner.type.present().kind}_{name}"
        known: Callable[[ast.Call, Code], Code] | None = getattr(self, f"method_{key}", None)
        if known is None:
            raise Refused(node, f"`.{name}` of a value of the kind {owner.type.kind} has no translation")
        return known(node, owner)

    def struct_method(self, node: ast.Call, owner: Code, cls: type, name: str) -> Code:
        found = getattr(cls, name)
        if found is PoolRecord.lane_of:
            return Code(f"rt.key_lane({self.value(node.args[0]).text}, {field_of(owner.text, 'lanes')})", INT)
        function = self.program.method(node, cls, name).name
        text = self.arguments(node, _parameters(found)[1:], first=owner.text)
        return Code(f"R.{function}({text})", returned_by(found))

    def method_dict_get(self, node: ast.Call, owner: Code) -> Code:
        key = self.key(node.args[0])
        type_ = owner.type.args[1] if len(owner.type.args) == 2 else ANY
        text = f"{owner.within(Level.ATOM)}[{key.text}]"
        if len(node.args) == 1:
            return Code(text, type_.or_none())
        if type_.kind == "bool":
            raise Refused(node, "`.get` with a default of a dict of bools")
        default = self.value(node.args[1])
        return Code(f"{text} or {default.within(Level.OR)}", type_, Level.OR)

    def method_str_isdecimal(self, node: ast.Call, owner: Code) -> Code:
        return Code(f"rt.is_decimal({owner.text})", BOOL)

    def method_str_isascii(self, node: ast.Call, owner: Code) -> Code:
        return Code(f"rt.is_ascii({owner.text})", BOOL)

    # Classes

    def construct(self, node: ast.Call, cls: type) -> Code:
        fields, defaults = fields_of(cls), defaults_of(cls)
        keywords = [one for one in node.keywords if cls is not JobRecord or one.arg not in OPENED_BY_STATE]
        plain = ast.copy_location(ast.Call(node.func, node.args, keywords), node)
        names = [name for name in fields if cls is not JobRecord or name not in OPENED_BY_STATE]
        codes = self.bound(plain, [(name, defaults.get(name, MISSING)) for name in names])
        parts = kind_of(cls)
        for name, code in zip(names, codes, strict=True):
            if code.text != "nil":
                parts.append(f"{stored_name(cls, name)} = {code.text}")
        return Code(table(parts), of_hint(cls), fresh=True)

    def replaced(self, node: ast.Call, name: str) -> Code:
        """`replace(record, field=…)`: a copy, then the fields."""
        if len(node.args) != 1:
            raise Refused(node, "`replace` takes one record and keyword arguments")
        record = self.value(node.args[0])
        if record.type.kind != "struct" or record.type.cls is None:
            raise Refused(node, f"`{ast.unparse(node.args[0])}`: `replace` needs a record whose class is known")
        cls = record.type.cls
        fields = fields_of(cls)
        if not record.stable:
            record = self.spill(record, "record")
        codes = self.in_order([lambda one=one: self.value(one.value) for one in node.keywords])  # type: ignore[misc]
        self.emit(f"local {name} = {self.program.copy_of(cls)}({record.text})")
        for keyword, code in zip(node.keywords, codes, strict=True):
            if keyword.arg not in fields:
                raise Refused(node, f"{cls.__name__} has no field `{keyword.arg}`")
            comment = self.function.comments.get(keyword.value.end_lineno or 0)
            after = f"  -- {comment}" if comment else ""
            self.emit(f"{field_of(name, keyword.arg)} = {code.text}{after}")
        return Code(name, record.type.present(), stable=True, fresh=True)

    def heap(self, node: ast.Call, name: str) -> Code:
        codes = self.values(node.args)
        item = codes[0].type.item
        if item.kind != "tuple" or item.item.kind != "tuple" or any(one.kind != "int" for one in item.item.args):
            raise Refused(node, "a heap has tuples whose first part is a tuple of numbers, no two of them equal")
        return Code(f"rt.{name}({', '.join(code.text for code in codes)})", item)

    # Builtins

    def builtin_len(self, node: ast.Call) -> Code:
        code = self.value(node.args[0])
        if code.type.present().kind != "list":
            raise Refused(node, "`len` is translated for lists only")
        return Code(f"#{code.within(Level.UNARY)}", INT, Level.UNARY)

    def builtin_min(self, node: ast.Call) -> Code:
        return self._extreme(node, "min")

    def builtin_max(self, node: ast.Call) -> Code:
        return self._extreme(node, "max")

    def _extreme(self, node: ast.Call, name: str) -> Code:
        first = node.args[0]
        if len(node.args) == 1:
            if not (name == "min" and isinstance(first, ast.Call) and ast.unparse(first.func).endswith(".values")):
                raise Refused(node, "of one argument only `min(a_dict.values(), default=None)` is translated")
            assert isinstance(first.func, ast.Attribute)
            owner = self.value(first.func.value)
            return Code(f"rt.least_value({owner.text})", owner.type.args[1].or_none())
        codes = self.values(node.args)
        if any(code.type.kind != "int" for code in codes):
            raise Refused(node, f"`{name}` is translated for numbers only")
        text = f"math.{name}({', '.join(code.text for code in codes)})"
        return Code(text, INT, stable=all(code.stable for code in codes))

    def builtin_bool(self, node: ast.Call) -> Code:
        return self.test(node.args[0], exact=True)

    def builtin_str(self, node: ast.Call) -> Code:
        return self.as_text(node.args[0])

    def builtin_int(self, node: ast.Call) -> Code:
        return Code(f"tonumber({self.value(node.args[0]).text})", INT)

    def builtin_tuple(self, node: ast.Call) -> Code:
        if not node.args:
            return Code("{}", list_of(ANY), fresh=True)
        code = self.value(node.args[0])
        if self.returning or code.fresh or isinstance(node.args[0], ast.Call):
            return code  # nothing changes the list any more
        return Code(f"rt.slice({code.text}, 0)", code.type, fresh=True)

    def builtin_list(self, node: ast.Call) -> Code:
        if not node.args:
            return Code("{}", list_of(ANY), fresh=True)
        code = self.value(node.args[0])
        return code if code.fresh else Code(f"rt.slice({code.text}, 0)", code.type, fresh=True)

    def builtin_dict(self, node: ast.Call) -> Code:
        code = self.value(node.args[0])
        return Code(f"rt.copy({code.text})", code.type, fresh=True)

    def builtin_set(self, node: ast.Call) -> Code:
        if node.args:
            raise Refused(node, "`set(…)` of something: use a set comprehension")
        return Code("{}", Type("set"), fresh=True)

    def builtin_next(self, node: ast.Call) -> Code:
        if len(node.args) != 2 or ast.unparse(node.args[1]) != "None":
            raise Refused(node, "`next` is translated with the default None only")
        code = self.value(node.args[0])
        if code.type.kind != "iterator":
            raise Refused(node, "`next` needs an iterator of the state")
        return Code(f"{code.text}()", code.type.item.or_none())

    def builtin_map(self, node: ast.Call) -> Code:
        if self.static(node.args[0]) is not lease_of:
            raise Refused(node, "`map` is translated for `lease_of` only: use a comprehension")
        return self.value(node.args[1])

    def builtin_isinstance(self, node: ast.Call) -> Code:
        code = self.value(node.args[0])
        if not code.stable:
            code = self.spill(code)
        options = _union_of(node.args[1])
        tests = []
        for option in options:
            cls = self.static(option)
            if cls is list:
                tests.append(f"rt.kind({code.text}) == nil")
            elif isinstance(cls, type) and kind_of(cls):
                tests.append(f'rt.kind({code.text}) == "{cls.__name__}"')
            else:
                raise Refused(node, "`isinstance` is translated for list and for classes with the field `kind`")
        return Code(" or ".join(tests), BOOL, Level.OR if len(tests) > 1 else Level.COMPARE)

    def builtin_any(self, node: ast.Call) -> Code:
        return self._quantified(node, found=True)

    def builtin_all(self, node: ast.Call) -> Code:
        return self._quantified(node, found=False)

    def _quantified(self, node: ast.Call, *, found: bool) -> Code:
        generator = node.args[0]
        if not isinstance(generator, ast.GeneratorExp):
            raise Refused(node, "`any` and `all` take a generator expression")
        name = self.temp("any" if found else "all")
        self.emit(f"local {name} = {literal(not found)}")
        with self.generator(generator.generators, unordered=True):
            test = self.test(generator.elt) if found else self.negated(generator.elt)
            self.emit(f"if {test.text} then")
            self.emit(f"  {name} = {literal(found)}")
            self.emit("  break")
            self.emit("end")
        return Code(name, BOOL, stable=True)

    def builtin_sum(self, node: ast.Call) -> Code:
        (source,) = node.args
        name = self.temp("sum")
        if isinstance(source, ast.GeneratorExp):
            self.emit(f"local {name} = 0")
            with self.generator(source.generators, unordered=True):
                item = self.value(source.elt)
                if item.type.kind != "int":
                    raise Refused(node, "`sum` adds numbers")
                self.emit(f"{name} = {name} + {item.within(Level.MULTIPLY)}")
            return Code(name, INT, stable=True)
        if isinstance(source, ast.Call) and ast.unparse(source.func).endswith(".values"):
            assert isinstance(source.func, ast.Attribute)
            return Code(f"rt.sum({self.value(source.func.value).text})", INT)
        raise Refused(node, "`sum` takes a generator expression or the values of a dict")

    def builtin_Counter(self, node: ast.Call) -> Code:  # noqa: N802 - the name of the builtin
        code = self.value(node.args[0])
        return Code(f"rt.counted({code.text})", Type("counter", (code.type.item, INT)), fresh=True)

    def builtin_sorted(self, node: ast.Call) -> Code:
        code = self.value(node.args[0])
        key = next((one.value for one in node.keywords if one.arg == "key"), None)
        if any(one.arg != "key" for one in node.keywords):
            raise Refused(node, "`sorted` takes `key` only")
        if code.type.kind == "dict":
            return Code(f"rt.sorted_keys({code.text})", list_of(code.type.args[0]), fresh=True)
        item = code.type.item
        if item.kind not in ("str", "struct"):
            raise Refused(node, f"`sorted`: the type of the items of `{ast.unparse(node.args[0])}` is not known")
        if key is None and item.kind == "str":
            return Code(f"rt.sorted({code.text}, rt.less)", code.type, fresh=True)
        order = self.temp("order")
        self.emit(f"local function {order}(a, b)")
        with self.indented():
            self._order(node, key, item)
        self.emit("end")
        return Code(f"rt.sorted({code.text}, {order})", code.type, fresh=True)

    def _order(self, node: ast.Call, key: ast.expr | None, item: Type) -> None:
        """The body of a function that is true if `a` comes before `b`."""
        pairs: list[tuple[Code, Code]] = []
        if key is None:
            pairs.append((Code("a", item), Code("b", item)))
        elif isinstance(key, ast.Lambda) and len(key.args.args) == 1:
            name = key.args.args[0].arg
            parts = key.body.elts if isinstance(key.body, ast.Tuple) else [key.body]
            for part in parts:
                pairs.append((self._with(name, "a", item, part), self._with(name, "b", item, part)))
        else:
            raise Refused(node, "`key` of `sorted` is a lambda with one argument")
        flat = [one for left, right in pairs for one in self._comparable(node, left, right)]
        for place, (left, right) in enumerate(flat):
            before = f"rt.less({left.text}, {right.text})" if left.type.kind == "str" else f"{left.text} < {right.text}"
            if place < len(flat) - 1:
                self.emit(f"if {left.text} ~= {right.text} then")
                self.emit(f"  return {before}")
                self.emit("end")
            else:
                self.emit(f"return {before}")

    def _with(self, name: str, text: str, item: Type, part: ast.expr) -> Code:
        types, names = dict(self.types), dict(self.names)
        self.types[name], self.names[name] = item, text
        code = self.value(part)
        self.types, self.names = types, names
        return code

    def _comparable(self, node: ast.Call, left: Code, right: Code) -> list[tuple[Code, Code]]:
        kind, cls = left.type.kind, left.type.cls
        if kind in ("int", "str"):
            return [(left, right)]
        if kind == "struct" and cls is not None and getattr(cls, "__struct_config__").order:  # noqa: B009 - any class
            pairs = []
            for name, type_ in fields_of(cls).items():
                one = Code(field_of(left.text, name), type_), Code(field_of(right.text, name), type_)
                pairs += self._comparable(node, *one)
            return pairs
        raise Refused(node, "`sorted` orders by numbers, texts and records with `order=True`")


def _parameters(found: Any) -> list[tuple[str, Any]]:
    return [
        (name, MISSING if one.default is inspect.Parameter.empty else one.default)
        for name, one in inspect.signature(found).parameters.items()
    ]


def _union_of(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_union_of(node.left), *_union_of(node.right)]
    return node.elts if isinstance(node, ast.Tuple) else [node]
