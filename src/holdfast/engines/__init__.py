"""Engines: the contract of `holdfast.engine`, implemented. `open_engine(url)` makes one.

The module of an engine is imported when its address is used, so that its driver need not be installed otherwise. A
third-party package adds an engine by an entry point in the group `holdfast.engines`; the entry point's name is the
scheme of its addresses, its value the engine class.
"""

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from holdfast.engine import Engine, EngineSettings
from holdfast.errors import ConfigError, Unsupported
from holdfast.model.address import mask_password
from holdfast.runtime import Runtime, SystemRuntime

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

GROUP = "holdfast.engines"


class EngineEntry(NamedTuple):
    """Where an engine is defined, and its settings; `extra` installs its driver."""

    engine: str
    settings: str = ""
    """In a module of its own, which imports no driver."""
    extra: str = ""


_POSTGRES = EngineEntry(
    engine="holdfast.engines.postgres.engine:PostgresEngine",
    settings="holdfast.engines.postgres.settings:PostgresSettings",
    extra="postgres",
)
_REDIS = EngineEntry(
    engine="holdfast.engines.redis.engine:RedisEngine",
    settings="holdfast.engines.redis.settings:RedisSettings",
    extra="redis",
)
ENGINES: dict[str, EngineEntry] = {
    "memory": EngineEntry("holdfast.engines.memory:MemoryEngine"),
    "sqlite": EngineEntry(
        engine="holdfast.engines.sqlite.engine:SqliteEngine", settings="holdfast.engines.sqlite.settings:SqliteSettings"
    ),
    "file": EngineEntry(
        engine="holdfast.engines.file.engine:FileEngine", settings="holdfast.engines.file.settings:FileSettings"
    ),
    # Addresses as users have them, for SQLAlchemy too: all mean the same engine.
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "postgresql+psycopg": _POSTGRES,
    "postgresql+asyncpg": _POSTGRES,
    "postgresql+psycopg2": _POSTGRES,
    "redis": _REDIS,
    "rediss": _REDIS,
    "valkey": _REDIS,
    "valkeys": _REDIS,
    "unix": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "valkey+sentinel": _REDIS,
    "valkeys+sentinel": _REDIS,
}
"""By the scheme of an address."""


def open_engine(url: str, *, fast_paths: bool = True, runtime: Runtime | None = None, **options: Any) -> Engine:
    """Make the engine that an address names. It is not connected yet: call its `open`.

    Options are the engine's own, such as `namespace` and `durability`. `fast_paths=False` turns off an engine's
    optimisations, if it has any: for tests, which run with and without them.

    Raises ConfigError for an address that names no engine, Unsupported if its driver is not installed.

        >>> open_engine("memory://").scheme
        'memory'
    """
    cls: Any = engine_class(url)
    if not fast_paths and "fast_paths" in inspect.signature(cls).parameters:
        options["fast_paths"] = False
    engine = cls(url, runtime if runtime is not None else SystemRuntime(), **options)
    assert isinstance(engine, Engine)
    return engine


def engine_class(url: str) -> type[Engine]:
    """The class of the engine that an address names. Connects to nothing; raises as `open_engine`."""
    scheme = url.partition(":")[0].lower()
    entry = ENGINES.get(scheme)
    if entry is None:
        for installed in _installed(scheme):
            return cast(type[Engine], installed.load())
        known = ", ".join(f"{name}://" for name in sorted(ENGINES))
        raise ConfigError(
            f"The address {mask_password(url)!r} names no engine this installation has. Known: {known}.",
            key="url",
            source="url",
        )
    try:
        return cast(type[Engine], _load(entry.engine))
    except ModuleNotFoundError as missing:
        if not entry.extra:
            raise
        raise Unsupported(
            f"The {scheme} engine needs the package {missing.name!r}. Install it with: "
            f"pip install 'holdfast[{entry.extra}]'",
            capability=entry.extra,
            engine=scheme,
        ) from missing


class SettingsTables(dict[str, type[EngineSettings]]):
    """Tables of settings, by name. The table of a third-party engine is found by the scheme that it is named after."""

    def __missing__(self, name: str) -> type[EngineSettings]:
        for installed in _installed(name):
            settings: type[EngineSettings] | None = installed.load().settings
            if settings is not None:
                return settings
        raise KeyError(name)


def settings_tables() -> SettingsTables:
    """The tables of settings that engines bring. Imports no driver of the engines in this package."""
    found = [_load(entry.settings) for entry in ENGINES.values() if entry.settings]
    return SettingsTables({settings.table: settings for settings in found})


def _installed(name: str) -> "EntryPoints":
    """Engines of other packages. A process that uses none does not pay for the import: 10 ms."""
    from importlib.metadata import entry_points

    return entry_points(group=GROUP, name=name)


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
