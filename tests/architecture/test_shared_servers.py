"""Tests share one server of each kind with the other processes of their run: they look only at their own part of it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
OWN_PART = {
    "pg_stat_activity": ("datname = current_database()", "pid ="),
    "pg_locks": ("datname = current_database()", "database =", "key"),
    "pg_listening_channels": ("pid =",),
}
"""What a query of such a view names, too: the database of this process, one session, or a key with the namespace."""
OF_THE_WHOLE_SERVER = ("client_list", "dbsize", "flushall", "script_flush", "slowlog_get")
"""Methods of a Redis client that read or change all databases."""
ALLOWED_IN = {"redis_server.py": ("client_list",)}
"""It leaves out the connections to other databases."""
SUSPICIOUS = re.compile("|".join((*OWN_PART, *OF_THE_WHOLE_SERVER, r"redis_server\.")))
COMMANDS = (("CLIENT", "LIST"), ("SCRIPT", "FLUSH"), ("FLUSHALL",), ("SLOWLOG", "GET"), ("CONFIG", "SET"))


def wrong_uses(source: str, name: str = "") -> Iterator[str]:
    if not SUSPICIOUS.search(source):
        return
    nodes = list(ast.walk(ast.parse(source)))
    pieces = {id(piece) for node in nodes if isinstance(node, ast.JoinedStr) for piece in node.values}
    for node in nodes:
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in pieces:
            text = ast.unparse(node)
            for view, parts in OWN_PART.items():
                if f"FROM {view}" in text and not any(part in text for part in parts):
                    yield f"line {line}: {view} without the database or the session"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            words = tuple(arg.value for arg in node.args if isinstance(arg, ast.Constant))
            server = ast.unparse(node.func.value)
            if node.func.attr in OF_THE_WHOLE_SERVER and node.func.attr not in ALLOWED_IN.get(name, ()):
                yield f"line {line}: {node.func.attr} is about all databases"
            if server == "redis_server" and (
                node.func.attr == "configure" or any(words[: len(command)] == command for command in COMMANDS)
            ):
                yield f"line {line}: this changes the shared server: use a private_server"


def test_tests_look_at_their_own_part_of_a_shared_server() -> None:
    files = {*TESTS.rglob("test_*.py"), *(TESTS / "support").glob("*.py")} - {Path(__file__)}
    found = {str(path.relative_to(TESTS)): list(wrong_uses(path.read_text("utf-8"), path.name)) for path in files}
    assert {name: uses for name, uses in found.items() if uses} == {}


@pytest.mark.parametrize(
    ("source", "is_wrong"),
    [
        ('''query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"''', True),
        ('''query = "SELECT 1 FROM pg_stat_activity" " WHERE datname = current_database()"''', False),
        ('query = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"', False),
        ('query = "SELECT count(*) FROM pg_locks"', True),
        ("server.client.client_list()", True),
        ('redis_server.execute("SCRIPT", "FLUSH")', True),
        ('private.execute("SCRIPT", "FLUSH")', False),
        ("redis_server.configure(maxmemory=1)", True),
        ("server.configure(maxmemory=1)", False),
    ],
)
def test_a_look_at_the_whole_server_is_recognised(source: str, is_wrong: bool) -> None:
    assert bool(list(wrong_uses(source))) is is_wrong
