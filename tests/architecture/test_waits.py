"""Every wait of ours has a limit, or a comment that says why it needs none (PF1 in docs/contract.md).

The check reads the source. A call that can wait for ever is `wait()`, `join()`, `acquire()` or `get()` without a
limit, and a file lock that is taken without LOCK_NB. A limit may also be an `asyncio.timeout` around it. Any other
such call needs the comment `# no limit: reason`, in its line or in the line above. The reason says what ends the wait,
such as the method that ends a thread.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
NOT_OURS = {"demo", "testing"}
"""Programs that are started by hand, and the test kit."""
CAN_WAIT = {"wait", "join", "acquire", "get"}
MARK = "# no limit: "


def waits_without_limit(source: str) -> Iterator[int]:
    """The lines of calls that can wait for ever and do not say why."""
    lines = source.splitlines()
    tree = ast.parse(source)
    bounded = {id(call) for call in _calls_inside_timeouts(tree)}
    context_variables = {
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and "ContextVar" in ast.unparse(node.value or ast.Constant(0))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in bounded and _can_wait_for_ever(node, context_variables):
            last = node.end_lineno or node.lineno
            if not any(MARK in line for line in lines[max(0, node.lineno - 2) : last]):
                yield node.lineno


def _calls_inside_timeouts(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncWith) and any("timeout(" in ast.unparse(item) for item in node.items):
            yield from ast.walk(node)


def _can_wait_for_ever(call: ast.Call, context_variables: set[str]) -> bool:
    if not isinstance(call.func, ast.Attribute) or ast.unparse(call.func.value) in context_variables:
        return False
    if call.func.attr == "flock":
        return "LOCK_EX" in ast.unparse(call) and "LOCK_NB" not in ast.unparse(call)
    return call.func.attr in CAN_WAIT and not call.args and not call.keywords


def test_every_wait_of_the_package_has_a_limit_or_says_why_it_needs_none() -> None:  # PF1
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in NOT_OURS
        for line in waits_without_limit(path.read_text(encoding="utf-8"))
    ]
    assert not found, f"waits without a limit: {', '.join(found)}"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("event.wait()", True),
        ("event.wait(2.0)", False),
        ("event.wait()  # no limit: `close` sets it", False),
        ("# no limit: `close` sets it\nevent.wait()", False),
        ("thread.join(timeout=1.0)", False),
        ("thread.join()", True),
        ("fcntl.flock(fd, fcntl.LOCK_EX)", True),
        ("fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", False),
        ("names.get('a')", False),
        ("current = ContextVar('current')\ncurrent.get()", False),
        ("async def f():\n    async with asyncio.timeout(1):\n        await event.wait()", False),
        ("async def f():\n    await event.wait()", True),
    ],
)
def test_the_check_finds_a_wait_without_a_limit(line: str, found: bool) -> None:
    assert bool(list(waits_without_limit(line))) is found
