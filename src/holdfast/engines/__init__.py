"""Engines: the contract of `holdfast.engine`, implemented. `open_engine(url)` is the only way in.

An engine is imported when its address is used, so that nobody pays for, or needs to install, what they do not
use. A package of somebody else's joins in by an entry point in the group `holdfast.engines`, named by the
scheme of its addresses.
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from holdfast.engine import Engine
from holdfast.errors import ConfigError, Unsupported
from holdfast.runtime import Runtime, SystemRuntime

GROUP = "holdfast.engines"


class Place(NamedTuple):
    """Where an engine lives, and the extra that brings its driver."""

    module: str
    name: str
    extra: str | None = None


PLACES: dict[str, Place] = {
    "memory": Place("holdfast.engines.memory", "MemoryEngine"),
    "sqlite": Place("holdfast.engines.sqlite", "SqliteEngine"),
    "postgresql": Place("holdfast.engines.postgres", "PostgresEngine", "postgres"),
}
POSTGRES = ("postgresql", "postgres", "postgresql+psycopg", "postgresql+asyncpg", "postgresql+psycopg2")
"""Addresses as people have them, for SQLAlchemy too: all mean the same engine."""
PLACES |= dict.fromkeys(POSTGRES, PLACES["postgresql"])


def open_engine(url: str, *, runtime: Runtime | None = None, **options: Any) -> Engine:
    """Make the engine that an address names. It is not connected yet: call its `open`.

    Options are the engine's own, such as `namespace` and `durability`.

    Raises ConfigError for an address that names no engine, Unsupported when its driver is not installed.

        >>> open_engine("memory://").scheme
        'memory'
    """
    scheme = urlsplit(url).scheme
    factory = _factory(scheme, url)
    engine = factory(url, runtime if runtime is not None else SystemRuntime(), **options)
    assert isinstance(engine, Engine)
    return engine


def _factory(scheme: str, url: str) -> Any:
    place = PLACES.get(scheme)
    if place is not None:
        return _load(scheme, place)
    for entry in entry_points(group=GROUP, name=scheme):
        return entry.load()
    known = ", ".join(f"{name}://" for name in sorted(PLACES))
    raise ConfigError(
        f"The address {_shown(url)!r} names no engine this installation has. Known: {known}.", key="url", source="url"
    )


def _load(scheme: str, place: Place) -> Any:
    try:
        return getattr(import_module(place.module), place.name)
    except ModuleNotFoundError as missing:
        if place.extra is None:
            raise
        raise Unsupported(
            f"The {scheme} engine needs the package {missing.name!r}. Install it with: "
            f"pip install 'holdfast[{place.extra}]'",
            capability=place.extra,
            engine=scheme,
        ) from missing


def _shown(url: str) -> str:
    """An address without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://…" if parts.netloc else url
