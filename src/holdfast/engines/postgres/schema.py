"""The schema of a namespace: whether it fits this release, how it is brought up to date, and who may use it.

A role that works with Holdfast needs no rights on tables: it may enter the schema and call its functions, which act
with the rights of their owner. A schema that is newer than this release is fine: functions are only ever added.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import asyncpg

from holdfast.engines.postgres.failures import FAILURES, SCHEME
from holdfast.engines.postgres.migrations import migrate, newest, script
from holdfast.errors import ConfigError, EngineError, EngineUnavailable, HoldfastError, SchemaMismatch

Connect = Callable[[], Awaitable[asyncpg.Connection]]


class Schema:
    """`name` has been checked: a lower-case word, which needs no quotes."""

    def __init__(self, name: str, place: str, connect: Connect, *, auto_migrate: bool) -> None:
        self.name = name
        self._place = place
        self._connect = connect
        self._auto_migrate = auto_migrate

    async def check(self, connection: asyncpg.Connection) -> None:
        """See that everything is there that this release calls."""
        async with self._telling("look at"):
            found = await self._version(connection)
        if found >= newest():
            return
        if not self._auto_migrate:
            raise SchemaMismatch(
                f"The schema {self.name!r} at {self._place} is at version {found}, "
                f"this version of Holdfast needs {newest()}. Run: holdfast migrate",
                found=str(found),
                wanted=str(newest()),
                engine=SCHEME,
            )
        await self.migrate()

    async def _version(self, connection: asyncpg.Connection) -> int:
        try:
            version: int = await connection.fetchval(f"SELECT {self.name}.version_1()")
        except (asyncpg.InvalidSchemaNameError, asyncpg.UndefinedFunctionError):
            return 0
        return version

    async def migrate(self) -> tuple[str, ...]:
        async with self._connected("migrate") as connection:
            if await self._version(connection) >= newest():
                return ()  # nothing to do is no question of rights
            return await migrate(connection, self.name)

    async def grant(self, role: str) -> None:
        text = grants(self.name, role)
        async with self._connected("grant rights on") as connection:
            await connection.execute(text)

    async def script(self, after: int | None, roles: Iterable[str]) -> str:
        """What the two above would do. `after` None: what the store lacks; else nobody is asked."""
        if after is None:
            async with self._connected("look at") as connection:
                after = await self._version(connection)
        pieces = [script(self.name, after)] if after < newest() else []
        return "\n".join([*pieces, *(grants(self.name, role) for role in roles)])

    @asynccontextmanager
    async def _connected(self, verb: str) -> AsyncIterator[asyncpg.Connection]:
        connection = await self._connect()
        try:
            async with self._telling(verb):
                yield connection
        finally:
            connection.terminate()

    @asynccontextmanager
    async def _telling(self, verb: str) -> AsyncIterator[None]:
        """What the server refuses, as an error that says what to do."""
        try:
            yield
        except FAILURES as error:
            raise self._told(verb, error) from error

    def _told(self, verb: str, error: BaseException) -> HoldfastError:
        said = f"The attempt to {verb} the schema {self.name!r} at {self._place} failed: {error}."
        if not isinstance(error, asyncpg.PostgresError) or (error.sqlstate or "").startswith(("57P", "08")):
            return EngineUnavailable(f"{said} It may be repeated.", engine=SCHEME)
        said += " Nothing was changed."
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            what = "holdfast migrate --grant ROLE" if verb == "look at" else "the command"
            said += f" The role that Holdfast uses may not do that. Let the owner of the schema run {what}."
        return EngineError(said, engine=SCHEME)


def grants(schema: str, role: str) -> str:
    """All that a role needs. The last line is for functions of later releases, if the same owner migrates to them."""
    name = _quoted(role)
    return (
        f"GRANT USAGE ON SCHEMA {schema} TO {name};\n"
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {name};\n"
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT EXECUTE ON FUNCTIONS TO {name};\n"
    )


def _quoted(role: str) -> str:
    if not role or "\0" in role or role == "public":  # which means everybody, with and without quotes
        raise ConfigError(f"{role!r} is no role that could be given rights.", key="grant")
    doubled = role.replace('"', '""')
    return f'"{doubled}"'
