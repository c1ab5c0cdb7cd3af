"""All settings of an App as they hold, and where each value comes from.

`holdfast.config` merges the file and the environment. Here the arguments in code are added: those of `App(...)`, the
limits of `jobs.queue(...)` and `jobs.pool(...)`, and the options of the address. Passwords are masked.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.config import DEFAULT, Config, QueueSettings, SettingSource, SourceKind, readers
from holdfast.core.connection import QueueLimits, StoreConnection
from holdfast.engine import Engine
from holdfast.errors import ConfigError, Unsupported
from holdfast.model.address import mask_password
from holdfast.model.retry import Computed, Exponential, Fixed, Linear, Listed
from holdfast.readers import backoff_data

OTHER_QUEUES = "*"
"""In place of a queue's name: the settings of all queues that no source names."""
_SECRET = re.compile(r"(^|_)(password|secret|token)$")
"""The end of a key whose value is masked, for settings of third-party engines."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as it holds. `key` is as in the file: `worker.concurrency`. `kind`: what kind of source it has."""

    key: str
    value: object
    kind: SourceKind
    source: str
    """The file with its line, the variable, the call in code, or the flag. Empty if the value is built in."""


def settings_in_use(store: StoreConnection) -> Iterator[Setting]:
    """All settings, in the order of the guide. Reads the configuration; opens no store."""
    config = store.config
    for key in readers(Config):
        yield _top_setting(store, key)
    for name, table in config.tables().items():
        kind: Any = type(table)
        for key in readers(kind):
            yield _setting((name, key), getattr(table, key), config.source(name, key))
    yield from _queue_settings(store)
    yield from _engine_settings(store)


def _top_setting(store: StoreConnection, key: str) -> Setting:
    value, source = getattr(store.config, key), store.config.source(key)
    if key == "url":
        value = _address(store)
        if store.url_source:
            source = SettingSource(SourceKind.CODE, store.url_source)
    elif key in store.options:
        value, source = store.options[key], SettingSource(SourceKind.CODE, f"App({key}=...)")
    if key in store.flags:
        source = SettingSource(SourceKind.FLAG, store.flags[key])
    return _setting((key,), value, source)


def _queue_settings(store: StoreConnection) -> Iterator[Setting]:
    config = store.config
    for name in sorted({*config.queues, *store.limits_in_code}):
        in_code = {
            key: limit for key, limit in store.limits_in_code.get(name, QueueLimits(0, 0))._asdict().items() if limit
        }
        for key in readers(QueueSettings):
            if key in in_code:
                source = SettingSource(SourceKind.CODE, f"queue or pool ({key}=...)")
                yield _setting(("queues", name, key), in_code[key], source)
            else:
                yield _setting(
                    ("queues", name, key), getattr(config.queue(name), key), config.source("queues", name, key)
                )
    for key in readers(QueueSettings):
        yield _setting(("queues", OTHER_QUEUES, key), getattr(QueueSettings(), key), DEFAULT)


def _engine_settings(store: StoreConnection) -> Iterator[Setting]:
    """The table of the engine in use, and those that a source sets for other engines."""
    config = store.config
    tables: dict[str, Any] = {name: type(table) for name, table in config.engines.items()}
    in_address: Mapping[str, object] = {}
    used = ""
    engine = _engine_type(store)
    if engine is not None and engine.settings is not None:
        used = engine.settings.table
        tables = {used: engine.settings, **tables}
        in_address = engine.settings_in_address(store.url)
    for name, table in tables.items():
        for key in readers(table):
            if name == used and key in in_address:
                yield replace(_top_setting(store, "url"), key=f"{name}.{key}", value=in_address[key])
            else:
                yield _setting((name, key), getattr(config.engine(table), key), config.source(name, key))


def _engine_type(store: StoreConnection) -> type[Engine] | None:
    """None: the address names no engine that is installed. The settings are shown all the same."""
    try:
        return store.engine_type
    except (ConfigError, Unsupported):
        return None


def _address(store: StoreConnection) -> str:
    """The address as users are shown it; one that the engine refuses as it was given."""
    try:
        return store.address
    except (ConfigError, Unsupported):
        return store.url


def _setting(place: tuple[str, ...], value: object, source: SettingSource) -> Setting:
    if isinstance(value, str):
        value = "***" if _SECRET.search(place[-1]) else mask_password(value)
    elif isinstance(value, Exponential | Linear | Fixed | Listed | Computed):
        value = backoff_data(value)
    return Setting(".".join(place), value, source.kind, source.name)
