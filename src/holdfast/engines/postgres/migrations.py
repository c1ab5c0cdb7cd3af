"""Numbered, forward-only migrations: the files in `sql/`, each applied once, in order, in one transaction.

A released file is never altered. A change of a rule is a new file with the function's next version beside the old one,
so that workers of the release before go on while the new ones start.
"""

from functools import cache
from importlib.resources import files
from typing import NamedTuple

import asyncpg

TABLE = """
CREATE TABLE IF NOT EXISTS migration (
    number integer PRIMARY KEY,
    name text NOT NULL,
    applied timestamptz NOT NULL DEFAULT now()
)
"""


class Migration(NamedTuple):
    number: int
    name: str
    text: str


@cache
def migrations() -> tuple[Migration, ...]:
    """All of them, in order."""
    found = []
    for file in files(__package__).joinpath("sql").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return tuple(sorted(found))


def newest() -> int:
    return migrations()[-1].number


def script(schema: str, after: int = 0) -> str:
    """What `migrate` would do, for people who let somebody else do it. `schema` has been checked."""
    pieces = [f"BEGIN;\n{_prelude(schema)}"]
    pieces += [_piece(schema, migration) for migration in migrations() if migration.number > after]
    return "\n".join([*pieces, "COMMIT;\n"])


def _prelude(schema: str) -> str:
    # Two that migrate at once: the second waits here, and finds nothing left to do.
    return (
        f"SELECT pg_advisory_xact_lock(hashtextextended('holdfast migrate {schema}', 0));\n"
        f"CREATE SCHEMA IF NOT EXISTS {schema};\n"
        f"SET LOCAL search_path = {schema};\n"
        f"SET LOCAL client_min_messages = warning;\n{TABLE};\n"
    )


def _piece(schema: str, migration: Migration) -> str:
    record = f"INSERT INTO migration (number, name) VALUES ({migration.number}, '{migration.name}');\n"
    return f"{migration.text.replace('{schema}', schema)}\n{record}"


async def migrate(connection: asyncpg.Connection, schema: str) -> tuple[str, ...]:
    """Bring the schema up to date; the names of the steps taken."""
    taken = []
    async with connection.transaction():
        await connection.execute(_prelude(schema))
        done = {row["number"] for row in await connection.fetch("SELECT number FROM migration")}
        for migration in migrations():
            if migration.number not in done:
                await connection.execute(_piece(schema, migration))
                taken.append(f"{migration.number:04}_{migration.name}")
    return tuple(taken)
