"""Empty stores for single tests, from a small stock: emptying a used schema takes a millisecond, making one a hundred.

Nothing here knows the engine's tables. A new schema is opened once by the engine; what stands in it then is what it
is brought back to. Only the records of what is installed are left alone.
"""

import asyncio
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from postgres import PostgresServer

from holdfast.engines import open_engine

KEPT = ("migration", "rules")
"""Tables that say what is installed: they are left alone."""
SMALL = 1 << 20
"""Bytes of a table, below which deleting its rows is faster than cutting it off."""

Prepare = Callable[[str, str], None]
"""Fills a new namespace, given its address and name, as an engine does that opens it for the first time."""


class Store(NamedTuple):
    url: str
    namespace: str


def open_once(url: str, namespace: str) -> None:
    """In a thread of its own: the caller may stand in a running loop."""
    failures: list[BaseException] = []

    async def opened() -> None:
        engine = open_engine(url, namespace=namespace)
        await engine.migrate()
        await engine.open()
        await engine.close()

    def run() -> None:
        try:
            asyncio.run(opened())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


@dataclass
class Schema:
    """One namespace, and what stood in it when it was new."""

    server: PostgresServer
    name: str
    tables: tuple[str, ...] = ()
    sequences: tuple[str, ...] = ()
    seeds: dict[str, str] = field(default_factory=dict)

    def look(self) -> None:
        """Note what is there."""
        self.tables = tuple(name for name, kind in self._relations() if kind == "r" and name not in KEPT)
        self.sequences = tuple(name for name, kind in self._relations() if kind == "S")
        for table in self.tables:
            (rows,) = self.server.execute(f"SELECT json_agg(t)::text FROM {self.name}.{table} AS t")
            if rows[0] is not None:
                self.seeds[table] = rows[0]

    def empty(self) -> bool:
        """Bring it back to what it was. False: a connection still uses it, so it is not lent again."""
        try:
            self.server.execute(";\n".join(["BEGIN", "SET LOCAL lock_timeout = '3s'", *self._steps(), "COMMIT"]))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            self.server.execute("ROLLBACK")
            return False
        for table, rows in self.seeds.items():
            place = f"{self.name}.{table}"
            self.server.execute(f"INSERT INTO {place} SELECT * FROM json_populate_recordset(NULL::{place}, %s)", rows)
        return True

    def _steps(self) -> list[str]:
        known = {*self.tables, *self.sequences, *KEPT}
        kinds = {"r": "TABLE", "S": "SEQUENCE"}
        steps = [
            f"DROP {kinds[kind]} IF EXISTS {self.name}.{name} CASCADE"
            for name, kind in self._relations()
            if name not in known
        ]
        places = [f"{self.name}.{table}" for table in self.tables]
        if places:
            sizes = self.server.execute(
                "SELECT max(pg_relation_size(place::regclass)) FROM unnest(%s::text[]) AS place", places
            )
            # The lock waits for, and so finds, transactions that a test left open.
            steps.append(f"LOCK TABLE {', '.join(places)}")
            if sizes[0][0] < SMALL:
                steps += [f"DELETE FROM {place}" for place in places]
            else:
                steps.append(f"TRUNCATE {', '.join(places)} CASCADE")
        return steps + [f"ALTER SEQUENCE {self.name}.{name} RESTART" for name in self.sequences]

    def _relations(self) -> list[tuple[str, str]]:
        """Tables and sequences, by name and kind."""
        rows = self.server.execute(
            "SELECT relname, relkind FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'S')",
            self.name,
        )
        return [(name, kind) for name, kind in rows]

    def drop(self) -> None:
        self.server.execute("SET lock_timeout = '3s'")
        drop_namespace(self.server, self.name)
        self.server.execute("RESET lock_timeout")


class Stock:
    """The namespaces that this process made on one server: lent to a test, given back, emptied, lent again."""

    def __init__(self, server: PostgresServer, prepare: Prepare = open_once) -> None:
        self.server = server
        self._prepare = prepare
        self._free: list[Schema] = []
        self._lent: dict[str, Schema] = {}

    def fresh(self) -> Store:
        """An empty store."""
        while self._free:
            schema = self._free.pop()
            if schema.empty():
                return self._lend(schema)
        schema = Schema(self.server, unused_name())
        self._prepare(self.server.url(), schema.name)
        schema.look()
        return self._lend(schema)

    def _lend(self, schema: Schema) -> Store:
        self._lent[schema.name] = schema
        return Store(self.server.url(), schema.name)

    def give_back(self, namespace: str | None = None) -> None:
        """One that is used no longer; None: all of them, as after a test."""
        names = list(self._lent) if namespace is None else [namespace]
        self._free += [self._lent.pop(name) for name in names]

    def drop_all(self) -> None:
        self.give_back()
        while self._free:
            self._free.pop().drop()


_stocks: WeakKeyDictionary[PostgresServer, dict[str, Stock]] = WeakKeyDictionary()


def stock(server: PostgresServer, use: str = "") -> Stock:
    """This process's stock on that server. A use that alters the rules of its namespaces has a stock of its own."""
    return _stocks.setdefault(server, {}).setdefault(use, Stock(server))


def _all_stocks() -> list[Stock]:
    return [each for by_use in _stocks.values() for each in by_use.values()]


def fresh_namespace(server: PostgresServer) -> Store:
    """An empty store for one test: address and namespace. It goes back to the stock when the test has ended."""
    return stock(server).fresh()


def give_back_all() -> None:
    for each in _all_stocks():
        each.give_back()


def drop_all() -> None:
    """Nothing stays behind on a server that lives longer than the run."""
    for each in _all_stocks():
        if not each.server.own:
            each.drop_all()


def drop_namespace(server: PostgresServer, name: str) -> None:
    """The tables of a namespace, and the rules of every version."""
    schemas = "SELECT nspname FROM pg_namespace WHERE nspname = %s OR nspname ~ ('^' || %s || '_rules_[0-9]+$')"
    for (schema,) in server.execute(schemas, name, name):
        server.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def unused_name() -> str:
    """A namespace that no test has used."""
    return f"t{os.getpid()}_{secrets.token_hex(4)}"
