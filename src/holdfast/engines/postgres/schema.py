"""The schemas of a namespace: whether they fit this release, how they are brought up to date, and who may use them.

A role that works with Holdfast needs no rights on tables: it may use the schema of the rules and call its functions,
which act with the rights of their owner. Tables that are newer than this release are fine: migrations only add to
them, and the rules of this release stay installed beside newer ones."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import asyncpg

from holdfast.engines.postgres import rules
from holdfast.engines.postgres.failures import FAILURES, SCHEME, of_other_session
from holdfast.engines.postgres.migrations import LOCK_TIMEOUT_S, PRESENT, Rules, migrate, newest, script
from holdfast.errors import ConfigError, EngineError, EngineUnavailable, HoldfastError, SchemaMismatch

Connect = Callable[[], Awaitable[asyncpg.Connection]]


class Installed(NamedTuple):
    """What a store has: the number of its newest tables (0: none that this role may see), and versions of the rules."""

    tables: int
    rules: tuple[int, ...]

    def __str__(self) -> str:
        versions = ", ".join(map(str, self.rules))
        if not self.rules:
            return "no rules" if self.tables else "no tables of Holdfast yet"
        return f"tables {self.tables or 'unknown'}, rules {versions}"


class Schema:
    """`namespace` has been checked: a lower-case word, which needs no quotes."""

    def __init__(
        self, namespace: str, place: str, connect: Connect, *, auto_migrate: bool, version: Rules = PRESENT
    ) -> None:
        self.namespace = namespace
        self.rules = version.schema(namespace)
        self._version = version
        self._place = place
        self._connect = connect
        self.auto_migrate = auto_migrate

    async def check(self, connection: asyncpg.Connection) -> None:
        """Check that the tables and rules of this release are installed."""
        found, wanted = await self.compare(connection)
        if wanted is None:
            return
        if not self.auto_migrate:
            needs = f", this version of Holdfast needs {wanted}" if found.tables or found.rules else ""
            raise SchemaMismatch(
                f"The schema {self.namespace!r} at {self._place} has {found}{needs}. Run: holdfast migrate",
                found=str(found),
                wanted=str(wanted),
                engine=SCHEME,
            )
        await self.migrate()

    async def compare(self, connection: asyncpg.Connection) -> tuple[Installed, Installed | None]:
        """What is installed, and what this release needs. None: it is enough."""
        async with self._explaining("look at"):
            found = await self._installed(connection)
        return found, None if self._is_enough(found) else Installed(newest(), (self._version.version,))

    def _is_enough(self, found: Installed) -> bool:
        return self._version.version in found.rules and found.tables >= newest()

    async def _installed(self, connection: asyncpg.Connection) -> Installed:
        schemas = "SELECT nspname FROM pg_namespace WHERE nspname ~ $1"
        named = await connection.fetch(schemas, f"^{self.namespace}_rules_[0-9]+$")
        versions = sorted(int(row[0].rpartition("_")[2]) for row in named)
        if self._version.version in versions:
            try:
                tables = await connection.fetchval(f"SELECT p_tables FROM {self.rules}.installed()")
                return Installed(tables or 0, tuple(versions))
            except (asyncpg.UndefinedFunctionError, asyncpg.UndefinedTableError):  # left over from a dropped namespace
                versions.remove(self._version.version)
        return Installed(await self._tables(connection), tuple(versions))

    async def _tables(self, connection: asyncpg.Connection) -> int:
        """The number of the newest tables, as far as this role may read it."""
        try:
            number = await connection.fetchval(f"SELECT max(number) FROM {self.namespace}.migration")
        except (
            asyncpg.InvalidSchemaNameError,
            asyncpg.UndefinedTableError,
            asyncpg.UndefinedColumnError,  # a table of others: `migrate` refuses the schema
            asyncpg.InsufficientPrivilegeError,
        ):
            return 0
        return number or 0

    async def migrate(self) -> tuple[str, ...]:
        async with self._connected("migrate") as connection:
            if self._is_enough(await self._installed(connection)) and not await self._is_owner(connection):
                return ()  # nothing is missing, and only the owner can drop old rules
            return await migrate(connection, self.namespace, self._version)

    async def _is_owner(self, connection: asyncpg.Connection) -> bool:
        owner = "SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = $1"
        return bool(await connection.fetchval(owner, self.namespace))

    async def grant(self, role: str) -> None:
        text = grants(self.namespace, role, self._version)
        async with self._connected("grant rights on") as connection:
            await connection.execute(text)

    async def script(self, after: int | None, roles: Iterable[str]) -> str:
        """What the two above would do. `after` None: what the store lacks. Else no connection is made."""
        missing = True
        if after is None:
            async with self._connected("look at") as connection:
                found = await self._installed(connection)
            after, missing = found.tables, not self._is_enough(found)
        pieces = [script(self.namespace, after, self._version)] if missing else []
        return "\n".join([*pieces, *(grants(self.namespace, role, self._version) for role in roles)])

    @asynccontextmanager
    async def _connected(self, verb: str) -> AsyncIterator[asyncpg.Connection]:
        connection = await self._connect()
        try:
            async with self._explaining(verb):
                yield connection
        finally:
            connection.terminate()

    @asynccontextmanager
    async def _explaining(self, verb: str) -> AsyncIterator[None]:
        """What the server refuses, as an error that says what to do."""
        try:
            yield
        except FAILURES as error:
            raise self._explained(verb, error) from error

    def _explained(self, verb: str, error: BaseException) -> HoldfastError:
        if (shared := of_other_session(error, self._place)) is not None:
            return shared
        message = f"The attempt to {verb} the schema {self.namespace!r} at {self._place} failed: {error}."
        if not isinstance(error, asyncpg.PostgresError) or (error.sqlstate or "").startswith(("57P", "08")):
            return EngineUnavailable(f"{message} It may be repeated.", engine=SCHEME)
        message += " Nothing was changed."
        if isinstance(error, asyncpg.LockNotAvailableError):
            return EngineUnavailable(
                f"{message} It waited {LOCK_TIMEOUT_S} s for another migration or for a transaction that uses these "
                "tables. End that one (`SELECT * FROM pg_stat_activity`), then repeat the command.",
                engine=SCHEME,
            )
        if isinstance(error, asyncpg.DuplicateSchemaError):
            return ConfigError(f"{message} Choose another `namespace`.", key="namespace")
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            command = "holdfast migrate --grant ROLE" if verb == "look at" else "the command"
            message += f" The role that Holdfast uses may not do that. Let the owner of the schema run {command}."
        return EngineError(message, engine=SCHEME)


def grants(namespace: str, role: str, version: Rules = PRESENT) -> str:
    """All that a role needs. `migrate` gives it the same on the rules of later releases."""
    name, schema = _quoted(role), version.schema(namespace)
    functions = ",\n    ".join(f"{schema}.{function}" for function in rules.entry_functions(version.source))
    return f"GRANT USAGE ON SCHEMA {schema} TO {name};\nGRANT EXECUTE ON FUNCTION\n    {functions}\nTO {name};\n"


def _quoted(role: str) -> str:
    if not role or "\0" in role or role == "public":  # public means every role, with and without quotes
        raise ConfigError(f"{role!r} is no role that could be given rights.", key="grant")
    doubled = role.replace('"', '""')
    return f'"{doubled}"'
