"""Plans as every PostgreSQL server prints them: `debug_print_plan` needs no extension and no privilege.

With this setting the server sends each plan that it makes to the client, also for the statements inside functions, with
the settings of those functions. The text is a tree such as `{INDEXSCAN :scan.scanrelid 1 :indexid 16389 …}`. Versions
differ in the prefixes of the keys (`:scanrelid`, `:scan.scanrelid`), which are ignored here.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

TOKEN = re.compile(r'[{}()]|"(?:\\.|[^"\\])*"|(?:\\.|[^\s{}()"\\])+', re.DOTALL)


class Scan(NamedTuple):
    """How a plan reads a table: the kind of scan, the table, and the index it goes by ("" if there is none)."""

    how: str
    table: str
    by: str


class Node(NamedTuple):
    kind: str
    fields: dict[str, list[Any]]


@contextmanager
def printed_plans(connection: psycopg.Connection[Any]) -> Iterator[list[str]]:
    """The plans that the server makes on this connection meanwhile. Plans that it has made before are made again."""
    texts: list[str] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.message_primary == "plan:":
            texts.append(diagnostic.message_detail or "")

    connection.execute("DISCARD PLANS")
    connection.execute("SET debug_pretty_print = off")
    connection.execute("SET client_min_messages = log")
    connection.execute("SET debug_print_plan = on")
    connection.add_notice_handler(note)
    try:
        yield texts
    finally:
        connection.remove_notice_handler(note)
        if connection.info.transaction_status is not psycopg.pq.TransactionStatus.INERROR:
            connection.execute("SET debug_print_plan = off")
            connection.execute("SET client_min_messages = notice")


def scans_of(plan: str, names: dict[int, str]) -> list[Scan]:
    """The scans in a plan. `names` are those of tables and indexes, by their OIDs."""
    (root,) = _values(iter(TOKEN.findall(plan)))
    nodes = list(_nodes(root))
    tables = [int(node.fields.get("relid", ["0"])[0]) for node in nodes if node.kind == "RANGETBLENTRY"]
    scans = []
    for node in nodes:
        if "scanrelid" in node.fields and node.kind.endswith("SCAN"):
            table = tables[int(node.fields["scanrelid"][0]) - 1]
            index = int(node.fields.get("indexid", ["0"])[0])
            if table:
                scans.append(Scan(node.kind, names.get(table, str(table)), names.get(index, "")))
    return scans


def _nodes(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
        for values in value.fields.values():
            yield from _nodes(values)
    elif isinstance(value, list):
        for part in value:
            yield from _nodes(part)


def _values(tokens: Iterator[str], end: str = "") -> list[Any]:
    """Values up to this bracket: texts, lists and nodes."""
    values: list[Any] = []
    for token in tokens:
        if token == end:
            break
        elif token == "(":
            values.append(_values(tokens, ")"))
        elif token == "{":
            values.append(_node(_values(tokens, "}")))
        else:
            values.append(token)
    return values


def _node(values: list[Any]) -> Node:
    kind, *rest = values
    fields: dict[str, list[Any]] = {}
    present: list[Any] = []
    for value in rest:
        if isinstance(value, str) and value.startswith(":"):
            present = fields.setdefault(value.rpartition(".")[2].lstrip(":"), [])
        else:
            present.append(value)
    return Node(kind, fields)
