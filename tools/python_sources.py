"""Reads the public names of the package from its source: classes, functions, fields, options and their docstrings.

Nothing is imported, and no annotation is evaluated: texts are cut out of the source. So the result is the same with
every version of Python, and a module whose library is not installed can be read, too.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A module as lines and as a tree."""

    name: str
    lines: tuple[str, ...]
    tree: ast.Module

    def cut(self, node: ast.AST) -> str:
        """The text of a node on one line, without the quotes around an annotation."""
        line = re.sub(r"\s+", " ", self._segment(node))
        line = re.sub(r"(?<=[(\[]) | (?=[)\]])", "", line)
        line = re.sub(r",(?=[)\]])", "", line)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return f'"{node.value}"'
        return line

    def _segment(self, node: ast.AST) -> str:
        """As `ast.get_source_segment`, which divides the whole text into lines at each call."""
        first, last = node.lineno - 1, node.end_lineno  # type: ignore[attr-defined]
        lines = [line.encode() for line in self.lines[first:last]]
        lines[-1] = lines[-1][: node.end_col_offset]  # type: ignore[attr-defined]
        lines[0] = lines[0][node.col_offset :]  # type: ignore[attr-defined]
        return b"\n".join(lines).decode()

    def annotation(self, node: ast.expr | None) -> str:
        """A type as text. One that is quoted because of an import is shown without its quotes."""
        if node is None:
            return ""
        text = self.cut(node)
        if isinstance(node, ast.Constant):
            return text.strip('"')
        return text if "Literal[" in text else text.replace('"', "")

    def value(self, node: ast.expr) -> str:
        """A default. The name of a constant of this module is replaced by its value."""
        if isinstance(node, ast.Name):
            for statement in self.tree.body:
                target = _target(statement)
                if target == node.id and isinstance(found := getattr(statement, "value", None), ast.Constant):
                    return self.cut(found)
        return self.cut(node)


@dataclass(frozen=True)
class Definition:
    """A public name: where it is defined, its statement, and the docstring below a plain value."""

    name: str
    module: Module
    node: ast.stmt
    below: str = ""


@dataclass(frozen=True)
class Attribute:
    """A field, a property, an option or a member of an enum."""

    name: str
    type: str = ""
    default: str = ""
    doc: str = ""


@dataclass(frozen=True)
class Method:
    """A method or function. `twin` is the async form of a blocking method."""

    name: str
    signature: str
    doc: str
    twin: str = ""


@dataclass(frozen=True)
class ClassPage:
    """All of a class that users see."""

    name: str
    bases: tuple[str, ...]
    doc: str
    attributes: tuple[Attribute, ...]
    methods: tuple[Method, ...]
    parameters: str = field(default="")
    """Of the constructor."""


@cache
def module(name: str) -> Module:
    """The module of this dotted name."""
    path = SOURCE.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = file.read_text(encoding="utf-8")
    return Module(name, tuple(text.split("\n")), ast.parse(text))


def public_names(name: str) -> list[str]:
    """`__all__`; without one, what the module itself defines without a leading underscore, and has a docstring."""
    source = module(name)
    for statement in source.tree.body:
        if _target(statement) == "__all__":
            listed: list[str] = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
            return listed
    return [found.name for found in _defined(source) if not found.name.startswith("_") and doc_of(found)]


def find(module_name: str, name: str) -> Definition:
    """Where a name of a module is defined: there, or where it is imported from."""
    source = module(module_name)
    for found in _defined(source):
        if found.name == name:
            return found
    for statement in _statements(source.tree.body):
        if isinstance(statement, ast.ImportFrom) and statement.module:
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    return find(statement.module, alias.name)
    raise LookupError(f"{module_name} has no {name}")


def doc_of(found: Definition) -> str:
    """The docstring of a class or function, or the text below a value."""
    if isinstance(found.node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return ast.get_docstring(found.node) or ""
    return found.below


def _defined(source: Module) -> Iterator[Definition]:
    """The names that a module defines itself; of an overloaded function, the last definition."""
    by_name: dict[str, Definition] = {}
    body = source.tree.body
    for index, statement in enumerate(body):
        name = _target(statement)
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = statement.name
        if name:
            by_name[name] = Definition(name, source, statement, _text_after(body, index))
    yield from by_name.values()


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Also those below `if TYPE_CHECKING:`."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from statement.body


def _target(statement: ast.stmt) -> str:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def _text_after(body: list[ast.stmt], index: int) -> str:
    match body[index + 1 : index + 2]:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return re.sub(r"\n *", "\n", text.strip())
    return ""


# --- Functions ---


def signature(source: Module, function: Function, *, bound: bool) -> str:
    """The parameters and the type of the answer. `bound`: without `self`."""
    parameters = _parameters(source, function, bound=bound)
    answer = source.annotation(function.returns)
    arrow = f" -> {answer}" if answer else ""
    line = f"({', '.join(parameters)}){arrow}"
    if len(line) + len(function.name) <= 100:
        return line
    lines = "\n".join(f"    {parameter}," for parameter in parameters)
    return f"(\n{lines}\n){arrow}"


def _parameters(source: Module, function: Function, *, bound: bool) -> list[str]:
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [*[None] * (len(plain) - len(arguments.defaults)), *arguments.defaults]
    shown = [_parameter(source, *pair) for pair in zip(plain, defaults, strict=True)]
    slash = len(arguments.posonlyargs)
    if bound:
        shown, slash = shown[1:], slash - 1
    if slash > 0:
        shown.insert(slash, "/")
    if arguments.vararg:
        shown.append(f"*{_parameter(source, arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        shown.append("*")
    for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        shown.append(_parameter(source, *pair))
    if arguments.kwarg:
        shown.append(f"**{_parameter(source, arguments.kwarg, None)}")
    return shown


def _parameter(source: Module, argument: ast.arg, default: ast.expr | None) -> str:
    annotation = source.annotation(argument.annotation)
    text = f"{argument.arg}: {annotation}" if annotation else argument.arg
    if default is None:
        return text
    return f"{text} = {source.value(default)}" if annotation else f"{text}={source.value(default)}"


# --- Classes ---


def class_page(found: Definition, hidden: frozenset[str]) -> ClassPage:
    """What users see of a class: its own members, and those of its bases that are no public names themselves."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    attributes: dict[str, Attribute] = {}
    methods: dict[str, Method] = {}
    for source, each in [*_private_bases(found), (found.module, node)]:
        for attribute in _attributes(source, each):
            attributes[attribute.name] = attribute
        for method in _methods(source, each):
            methods[method.name] = method
    for name in [*attributes, *methods]:
        if name.startswith("_") or name in hidden:
            attributes.pop(name, None)
            methods.pop(name, None)
    init = next((each for each in _functions(node) if each.name == "__init__"), None)
    return ClassPage(
        found.name,
        tuple(base for each in node.bases if (base := found.module.cut(each)) not in INTERNAL_BASES),
        ast.get_docstring(node) or "",
        tuple(attributes.values()),
        tuple(methods.values()),
        "" if init is None else signature(found.module, init, bound=True).partition(" -> ")[0],
    )


def _private_bases(found: Definition) -> Iterator[tuple[Module, ast.ClassDef]]:
    """Classes of the package that this one inherits from and that have no place on the page."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    for base in node.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(name, ast.Name) and name.id in INHERITED:
            above = find(found.module.name, name.id)
            yield from _private_bases(above)
            assert isinstance(above.node, ast.ClassDef)
            yield above.module, above.node


INTERNAL_BASES = frozenset({"_Portable", "_Msgspec", "Shown", "QueueOrLane"})
"""Classes that mean nothing to users."""

INHERITED = frozenset({"QueueOrLane", "PoolOptions", "FakeClock"})
"""Bases whose members are shown with each class that has them."""


def _functions(node: ast.ClassDef) -> list[Function]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def _decorators(function: Function) -> set[str]:
    return {each.id for each in function.decorator_list if isinstance(each, ast.Name)}


def _attributes(source: Module, node: ast.ClassDef) -> Iterator[Attribute]:
    is_enum = any(isinstance(base, ast.Name) and base.id in ("StrEnum", "IntFlag") for base in node.bases)
    for index, statement in enumerate(node.body):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                default = "" if value is None else source.value(value)
                default = re.sub(r"^field\(default_factory=(\w+)\)$", r"\1()", default)
                shown = "" if default.startswith(("field(", "_column(", "UNSET")) else default
                yield Attribute(name, source.annotation(annotation), shown, _text_after(node.body, index))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant() as value) if is_enum:
                yield Attribute(name, "", source.cut(value), _text_after(node.body, index))
            case ast.FunctionDef(name="__init__"):
                yield from _set_by_init(source, statement)
            case ast.FunctionDef() if "property" in _decorators(statement):
                yield Attribute(
                    statement.name, source.annotation(statement.returns), "", ast.get_docstring(statement) or ""
                )


def _set_by_init(source: Module, init: Function) -> Iterator[Attribute]:
    """`self.name = ...` with a text below it, and the facts of an error: keywords that are kept under their name."""
    keywords = {each.arg: each for each in init.args.kwonlyargs}
    for index, statement in enumerate(init.body):
        match statement:
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=value) if doc := _text_after(init.body, index):
                yield Attribute(name, _type_of(source, init, value), "", doc)
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation):
                if doc := _text_after(init.body, index):
                    yield Attribute(name, source.annotation(annotation), "", doc)
            case ast.Assign(targets=[target]) if source.name == "holdfast.errors":
                for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(each, ast.Attribute) and each.attr in keywords:
                        yield Attribute(each.attr, source.annotation(keywords[each.attr].annotation))


def _type_of(source: Module, init: Function, value: ast.expr) -> str:
    """The type of a parameter that is kept as it is."""
    for each in (*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs):
        if isinstance(value, ast.Name) and each.arg == value.id:
            return source.annotation(each.annotation)
    return ""


def _methods(source: Module, node: ast.ClassDef) -> Iterator[Method]:
    """A blocking method, `verb = blocking(averb)`, is shown in place of its async form."""
    by_name = {each.name: each for each in _functions(node) if not _decorators(each) & {"property", "classmethod"}}
    twins = {}
    for statement in node.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Name(id="blocking"), args=[ast.Name(id=twin)]),
            ):
                twins[twin] = name
    for name in by_name:
        if f"a{name}" in by_name:  # written twice, because the two differ
            twins[f"a{name}"] = name
    for name, each in by_name.items():
        if name in twins.values():
            continue
        function = by_name.get(twins.get(name, name), each)
        static = "staticmethod" in _decorators(function)
        text = signature(source, function, bound=not static)
        doc = ast.get_docstring(function) or ""
        yield Method(twins.get(name, name), text, doc, name if name in twins else "")
