"""What `migrate` does: tables by numbered files, each applied once; rules installed whole, beside older versions.

Both in one transaction. Two that migrate at once wait for each other, and the second finds nothing left to do. A file
of `tables/` is never altered once it is released. The call and the script for people who let a database administrator
do it consist of the same statements."""

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import asyncpg

from holdfast.engines.postgres import rules
from holdfast.engines.postgres.failures import SCHEME
from holdfast.errors import ConfigError, SchemaMismatch

_NAMESPACE = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_OF_RULES = re.compile(r".*_rules_[0-9]+")
_OF_THE_SERVER = re.compile(r"public|information_schema|pg_.*")

_APPLIED = """
CREATE TABLE IF NOT EXISTS migration (
    number integer PRIMARY KEY,
    name text NOT NULL,
    applied timestamptz NOT NULL DEFAULT now()
)
"""


def check_namespace(namespace: str) -> None:
    """It is put into statements without quotes, and with `_rules_N` behind it must fit into 63 bytes."""
    if not _NAMESPACE.fullmatch(namespace):
        raise ConfigError(
            f"The namespace {namespace!r} must be a lower-case word of at most 31 letters, digits and underscores.",
            key="namespace",
        )
    if _OF_THE_SERVER.fullmatch(namespace):
        raise ConfigError(
            f"The namespace {namespace!r} is a schema that every database has and others use. Holdfast needs one of "
            "its own. Choose another name, such as 'holdfast'.",
            key="namespace",
        )
    if _OF_RULES.fullmatch(namespace):
        raise ConfigError(
            f"The namespace {namespace!r} ends like a schema of rules. Choose a name without '_rules_' and a number.",
            key="namespace",
        )


class Migration(NamedTuple):
    number: int
    name: str
    text: str


@cache
def migrations() -> tuple[Migration, ...]:
    """The files of `tables/`, in order."""
    found = []
    for file in files(__package__).joinpath("tables").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return tuple(sorted(found))


def newest() -> int:
    return migrations()[-1].number


class Rules(NamedTuple):
    """A version of the rules as it can be installed. Tests install others than the present one."""

    version: int = rules.RULES_VERSION
    source: tuple[rules.Rule, ...] | None = None

    def schema(self, namespace: str) -> str:
        return rules.schema_of(namespace, self.version)

    def checksum(self) -> str:
        return rules.checksum(self.source)

    def text(self, namespace: str) -> str:
        return rules.render(namespace, self.version, self.source)


PRESENT = Rules()


def script(namespace: str, after: int = 0, version: Rules = PRESENT) -> str:
    """The statements of `migrate` for a store whose tables are at number `after` and that lacks the rules."""
    tables = [_table_step(migration) for migration in migrations() if migration.number > after]
    rest = [_install(namespace, version), *_after_install(namespace, version)]
    return "\n".join([f"BEGIN;\n{_prelude(namespace)}", *tables, *rest, "COMMIT;\n"])


def _refuse_foreign(schema: str, ours: str) -> str:
    """A statement that fails if the schema contains anything and not what `ours` finds: others use it."""
    return (
        f"DO $$ BEGIN IF NOT coalesce({ours}, false) AND EXISTS (\n"
        f"    SELECT FROM pg_class WHERE relnamespace = to_regnamespace('{schema}')\n"
        f"    UNION ALL SELECT FROM pg_proc WHERE pronamespace = to_regnamespace('{schema}')\n"
        f") THEN RAISE duplicate_schema USING MESSAGE = 'the schema {schema} contains tables or functions that are not "
        f"Holdfast''s'; END IF; END $$;\n"
    )


LOCK_TIMEOUT_S = 30
"""`migrate` waits this long for another `migrate`, or for a transaction that uses the tables."""


def _prelude(namespace: str) -> str:
    installed = f"to_regclass('{namespace}.migration') IS NOT NULL AND to_regclass('{namespace}.rules') IS NOT NULL"
    return (
        f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s';\n"  # PF1: calls of others wait behind a statement that waits
        f"SELECT pg_advisory_xact_lock(hashtextextended('holdfast migrate {namespace}', 0));\n"
        f"{_refuse_foreign(namespace, installed)}"
        f"CREATE SCHEMA IF NOT EXISTS {namespace};\n"
        f"SET LOCAL search_path = {namespace};\n"
        f"SET LOCAL client_min_messages = warning;\n{_APPLIED};\n"
    )


def _table_step(migration: Migration) -> str:
    record = f"INSERT INTO migration (number, name) VALUES ({migration.number}, '{migration.name}');\n"
    return f"{migration.text}\n{record}"


def _install(namespace: str, version: Rules) -> str:
    """A schema of this name that no row of `rules` names is left over from a namespace that was dropped. A row without
    its schema comes from a dump of the tables alone.

    Bodies are not checked as they are created: functions name each other, whatever file they stand in.
    """
    schema = version.schema(namespace)
    ours = _are_installed(namespace, version)
    return (
        f"DELETE FROM rules WHERE version = {version.version} AND NOT ({ours});\n"
        f"INSERT INTO rules (version, checksum) VALUES ({version.version}, '{version.checksum()}');\n"
        f"{_refuse_foreign(schema, ours)}"
        f"DROP SCHEMA IF EXISTS {schema} CASCADE;\n"
        f"CREATE SCHEMA {schema};\n"
        f"SET LOCAL search_path = {schema}, {namespace};\n"
        f"SET LOCAL check_function_bodies = off;\n"
        f"{version.text(namespace)}\n"
        f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC;\n"
        f"SELECT {schema}.adopt_grants();\n"
    )


def _are_installed(namespace: str, version: Rules) -> str:
    return f"to_regproc('{version.schema(namespace)}.installed') IS NOT NULL"


def _after_install(namespace: str, version: Rules) -> tuple[str, ...]:
    return (f"SELECT {version.schema(namespace)}.drop_old_versions();\n",)


async def migrate(connection: asyncpg.Connection, namespace: str, version: Rules = PRESENT) -> tuple[str, ...]:
    """Bring tables and rules up to date. Answers the steps taken, and which old rules were dropped or kept."""
    taken = []
    async with connection.transaction():
        await connection.execute(_prelude(namespace))
        applied = {row["number"] for row in await connection.fetch("SELECT number FROM migration")}
        for migration in migrations():
            if migration.number not in applied:
                await connection.execute(_table_step(migration))
                taken.append(f"{migration.number:04}_{migration.name}")
        if await _is_missing(connection, namespace, version):
            await connection.execute(_install(namespace, version))
            taken.append(f"rules {version.version}")
        for statement in _after_install(namespace, version):
            taken += [row[0] for row in await connection.fetch(statement)]
    return tuple(taken)


async def _is_missing(connection: asyncpg.Connection, namespace: str, version: Rules) -> bool:
    ours = _are_installed(namespace, version)
    found = await connection.fetchval(f"SELECT checksum FROM rules WHERE version = $1 AND {ours}", version.version)
    if found is not None and found != version.checksum():
        raise SchemaMismatch(
            f"Rules {version.version} of the schema {namespace!r} are installed with another text. Nothing was changed "
            f"here. A changed text needs a new number: raise RULES_VERSION. Or, if no process uses it, drop the schema "
            f"{version.schema(namespace)} and its row in {namespace}.rules, and migrate again.",
            found=f"rules {version.version}, checksum {found}",
            wanted=f"rules {version.version}, checksum {version.checksum()}",
            engine=SCHEME,
        )
    return found is None
