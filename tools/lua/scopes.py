"""Where a variable is declared: in the innermost block that has all its uses.

Python's variables belong to the function, Lua's to the block. First the constructs that Lua 5.1 does not have are
replaced by others: `continue` by an `else`, `:=` by an assignment before.
"""

import ast
from collections import defaultdict
from dataclasses import dataclass, field

from tools.lua.refusal import Refused

Block = list[ast.stmt]


def simplify(body: Block, *, in_loop: bool = False) -> Block:
    """The same statements without `continue`, without `:=`, and without docstrings."""
    out: Block = []
    for index, statement in enumerate(body):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if isinstance(statement, ast.Continue):
            if not in_loop or index != len(body) - 1:
                raise Refused(statement, "`continue` must be the last statement of a loop or of an `if` in it")
            break
        if isinstance(statement, ast.While):
            out.append(_simplify_while(statement))
        elif isinstance(statement, ast.For):
            loop = ast.For(statement.target, statement.iter, simplify(statement.body, in_loop=True), [])
            if statement.orelse:
                raise Refused(statement, "`for … else` has no translation: use a variable")
            out.append(ast.copy_location(loop, statement))
        elif isinstance(statement, ast.If):
            test, before = _without_walrus(statement.test)
            out += before
            rest = body[index + 1 :]
            if in_loop and _ends_with_continue(statement.body):
                orelse = simplify([*statement.orelse, *rest], in_loop=True)
                new = ast.If(test, simplify(statement.body, in_loop=True), orelse)
                out.append(ast.copy_location(new, statement))
                return out
            last = in_loop and not rest
            new = ast.If(test, simplify(statement.body, in_loop=last), simplify(statement.orelse, in_loop=last))
            out.append(ast.copy_location(new, statement))
        else:
            out.append(statement)
    return out


def _ends_with_continue(body: Block) -> bool:
    return isinstance(body[-1], ast.Continue)


def _simplify_while(statement: ast.While) -> ast.While:
    if statement.orelse:
        raise Refused(statement, "`while … else` has no translation: use a variable")
    body = simplify(statement.body, in_loop=True)
    test = statement.test
    if any(isinstance(node, ast.NamedExpr) for node in ast.walk(test)):
        parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
        checks: Block = []
        for part in parts:
            plain, before = _without_walrus(part)
            stop = ast.copy_location(ast.Break(), part)
            negated = ast.copy_location(ast.UnaryOp(ast.Not(), plain), part)
            checks += [*before, ast.copy_location(ast.If(negated, [stop], []), part)]
        body = checks + body
        test = ast.copy_location(ast.Constant(value=True), test)
    return ast.copy_location(ast.While(test, body, []), statement)


def _without_walrus(test: ast.expr) -> tuple[ast.expr, Block]:
    """The test without `:=`, and the assignment that stands before it."""
    place = test.left if isinstance(test, ast.Compare) else test
    if isinstance(place, ast.NamedExpr):
        target = ast.copy_location(ast.Name(place.target.id, ast.Store()), place)
        before = ast.copy_location(ast.Assign([target], place.value), place)
        name = ast.copy_location(ast.Name(place.target.id, ast.Load()), place)
        if isinstance(test, ast.Compare):
            return ast.copy_location(ast.Compare(name, test.ops, test.comparators), test), [before]
        return name, [before]
    for node in ast.walk(test):
        if isinstance(node, ast.NamedExpr):
            raise Refused(node, "`:=` is translated only as the first thing that an `if` or `while` evaluates")
    return test, []


@dataclass
class Scopes:
    """The statements before which, or with which, each variable is declared."""

    with_statement: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By the id of an assignment: the variables that it declares."""
    before_statement: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By the id of a statement: the variables to declare before it."""


@dataclass
class _Use:
    path: tuple[tuple[int, int], ...]
    """Block and index of the statement in it, from the outermost block on."""
    statement: ast.stmt
    stores: bool


def find_scopes(body: Block, parameters: set[str]) -> Scopes:
    uses: dict[str, list[_Use]] = defaultdict(list)
    blocks: dict[int, Block] = {}
    _collect(body, (), uses, blocks, frozenset())
    loops = [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.For)]
    scopes = Scopes()
    for name, found in uses.items():
        if not any(use.stores for use in found):
            continue
        for loop in loops:
            if name in _names(loop.target):
                raise Refused(loop, f"`{name}` is the variable of a loop, and assigned elsewhere: rename one")
        if name in parameters:
            continue
        common = _common_path([use.path for use in found])
        block, index = common
        statement = blocks[block][index]
        first = next(use for use in found if use.path[-1] == (block, index) or (block, index) in use.path)
        if first.statement is statement and isinstance(statement, ast.Assign | ast.AnnAssign) and first.stores:
            scopes.with_statement[id(statement)].add(name)
        else:
            scopes.before_statement[id(statement)].append(name)
            if _follow(blocks[block][index:], name, is_set=False)[0]:
                raise Refused(statement, f"`{name}` may be read before it is assigned: assign it first")
    return scopes


def _follow(body: Block, name: str, *, is_set: bool) -> tuple[bool, bool]:
    """Whether the variable may be read before it is assigned, and whether it is assigned for certain at the end.

    In a loop Python would read the value of the last round there, and Lua nil.
    """
    unset_read = False
    for statement in body:
        parts, blocks = _parts_of(statement)
        for part in parts:
            found = _occurrences(part)
            unset_read |= not is_set and (name, False) in found
        results = [_follow(block, name, is_set=is_set) for block in blocks]
        unset_read |= any(read for read, _ in results)
        if isinstance(statement, ast.If):
            ends = [_follow_end(block, result) for block, result in zip(blocks, results, strict=True)]
            is_set |= all(ends)
        elif not blocks:
            is_set |= (name, True) in _occurrences(statement)
    return unset_read, is_set


def _follow_end(block: Block, result: tuple[bool, bool]) -> bool:
    return result[1] or bool(block and isinstance(block[-1], ast.Return | ast.Break))


def _parts_of(statement: ast.stmt) -> tuple[list[ast.AST], list[Block]]:
    """The expressions of a statement, and its blocks."""
    match statement:
        case ast.If(test, then, orelse):
            return [test], [then, orelse]
        case ast.While(test, repeated):
            return [test], [repeated]
        case ast.For(_, iterable, repeated):
            return [iterable], [repeated]
        case ast.Match(subject, cases):
            return [subject], [case.body for case in cases]
    return [statement], []


def _common_path(paths: list[tuple[tuple[int, int], ...]]) -> tuple[int, int]:
    """The innermost block that has all these uses, and the first statement in it that has one."""
    depth = 0
    while all(len(path) > depth + 1 for path in paths) and len({path[depth + 1][0] for path in paths}) == 1:
        if len({path[depth] for path in paths}) > 1:
            break
        depth += 1
    block = paths[0][depth][0]
    return block, min(path[depth][1] for path in paths)


def _collect(
    body: Block,
    path: tuple[tuple[int, int], ...],
    uses: dict[str, list[_Use]],
    blocks: dict[int, Block],
    loop_names: frozenset[str],
) -> None:
    blocks[id(body)] = body
    for index, statement in enumerate(body):
        here = (*path, (id(body), index))
        parts, inner = _parts_of(statement)
        names = loop_names | _names(statement.target) if isinstance(statement, ast.For) else loop_names
        for part in parts:
            for name, stores in _occurrences(part):
                if name not in loop_names:
                    uses[name].append(_Use(here, statement, stores))
        for block in inner:
            _collect(block, here, uses, blocks, names)


def _names(target: ast.expr) -> frozenset[str]:
    return frozenset(node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _occurrences(node: ast.AST) -> list[tuple[str, bool]]:
    """Names in a statement, stores first, without the variables of comprehensions and lambdas."""
    found: list[tuple[str, bool]] = []

    def visit(part: ast.AST, hidden: frozenset[str]) -> None:
        if isinstance(part, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            bound = frozenset().union(*(_names(one.target) for one in part.generators))
            for index, generator in enumerate(part.generators):
                visit(generator.iter, hidden if index == 0 else hidden | bound)
                for condition in generator.ifs:
                    visit(condition, hidden | bound)
            elements = [part.key, part.value] if isinstance(part, ast.DictComp) else [part.elt]
            for element in elements:
                visit(element, hidden | bound)
            return
        if isinstance(part, ast.Lambda):
            visit(part.body, hidden | {argument.arg for argument in part.args.args})
            return
        if isinstance(part, ast.Name) and part.id not in hidden:
            found.append((part.id, isinstance(part.ctx, ast.Store)))
        for child in ast.iter_child_nodes(part):
            visit(child, hidden)

    visit(node, frozenset())
    stores = {name for name, is_store in found if is_store}
    return [(name, True) for name in stores] + [(name, False) for name, is_store in found if not is_store]
