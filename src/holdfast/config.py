"""Settings, from weakest to strongest: built in, `holdfast.toml` or `[tool.holdfast]`, environment `HOLDFAST_*`.

Arguments in code override all of them and are not seen here. One word per setting: table `[worker]`, key `concurrency`
is `HOLDFAST_WORKER_CONCURRENCY`. Durations are seconds, or text such as "10m". An unknown key, a value of the wrong
type or range, and a file that is not TOML raise a `ConfigError` that names the key and its source.

Nothing is read on import, nor when an `App` is created; `load` is called when a setting is first needed.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_origin, get_type_hints

from holdfast.errors import ConfigError, InvalidOption
from holdfast.model.retry import DEFAULT_BACKOFF, Backoff
from holdfast.readers import (
    backoff_table,
    boolean,
    choice,
    fraction,
    identifier,
    queue_name,
    seconds,
    text,
    whole,
)
from holdfast.runtime import Runtime

T = TypeVar("T")

Reader = Callable[[object], Any]
EngineTables = Mapping[str, type]
Durability = Literal["durable", "fast", "none"]

FILE = "holdfast.toml"
PYPROJECT = "pyproject.toml"
PREFIX = "HOLDFAST_"

NO_SETTINGS = frozenset({"ALLOW_BLOCKING", "DEBUG"})
"""Variables that are switches and not settings."""
PROJECT_PREFIX = "TEST_"
"""Variables of Holdfast's own tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """`[task]`: defaults of the options of `@task`. `max_attempts` 0: no limit; `timeout` 0: no timeout."""

    queue: Annotated[str, queue_name] = "default"
    priority: Annotated[int, whole(-32_768, 32_767)] = 0
    max_attempts: Annotated[int, whole(0)] = 20
    backoff: Annotated[Backoff, backoff_table] = DEFAULT_BACKOFF
    max_losses: Annotated[int, whole(1)] = 5
    timeout: Annotated[float, seconds()] = 0.0
    lease: Annotated[float, seconds(2.0)] = 30.0
    result_ttl: Annotated[float, seconds()] = 3600.0
    retention: Annotated[float, seconds()] = 86_400.0
    failed_retention: Annotated[float, seconds()] = 2_592_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """`[worker]`."""

    concurrency: Annotated[int, whole(1, 100_000)] = 10
    grace: Annotated[float, seconds()] = 30.0
    prefetch: Annotated[int, whole(0, 100_000)] = 0
    poll_interval: Annotated[float, seconds(0.001)] = 1.0
    reap_interval: Annotated[float, seconds(0.001)] = 5.0
    unknown_task_after: Annotated[float, seconds()] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """`[manager]`: the least and the most worker processes, seconds between two looks at the load, and for how long
    less must be enough before the number falls."""

    min: Annotated[int, whole(1, 10_000)] = 1
    max: Annotated[int, whole(1, 10_000)] = 4
    interval: Annotated[float, seconds(0.1)] = 5.0
    idle_before_down: Annotated[float, seconds()] = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """`[queues.NAME]`: most live jobs of the queue and of each lane (0: no limit); fraction at which to warn."""

    max_depth: Annotated[int, whole(0)] = 0
    lane_max_depth: Annotated[int, whole(0)] = 0
    soft_limit: Annotated[float, fraction] = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """`[limits]`, in bytes."""

    payload: Annotated[int, whole(1, 16 * 1_048_576)] = 1_048_576
    result: Annotated[int, whole(1, 16 * 1_048_576)] = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings, merged. `None` means that no source sets the value."""

    app: Annotated[str | None, text] = None
    url: Annotated[str | None, text] = None
    namespace: Annotated[str, identifier] = "holdfast"
    durability: Annotated[Durability | None, choice("durable", "fast", "none")] = None
    auto_migrate: Annotated[bool | None, boolean] = None
    request_timeout: Annotated[float, seconds()] = 30.0
    log_level: Annotated[str, choice("debug", "info", "warning", "error", "critical")] = "info"
    log_format: Annotated[str, choice("text", "json", "none")] = "text"

    task: TaskSettings = TaskSettings()
    worker: WorkerSettings = WorkerSettings()
    manager: ManagerSettings = ManagerSettings()
    limits: LimitSettings = LimitSettings()
    queues: Mapping[str, QueueSettings] = field(default_factory=dict)
    engines: Mapping[str, Any] = field(default_factory=dict)
    """The tables of engines that are set somewhere, by name. Each engine brings its own: see `engine`."""

    environment_url: str | None = None
    """The value of `HOLDFAST_URL`: the App logs a warning if the address in code differs from it."""

    def queue(self, name: str) -> QueueSettings:
        """The settings of a queue; the defaults if no source names it."""
        return self.queues.get(name, _DEFAULT_QUEUE)

    def engine(self, settings: type[T]) -> T:
        """The settings of an engine, by the class of its table."""
        stored: T | None = self.engines.get(cast(Any, settings).table)
        return settings() if stored is None else stored


_DEFAULT_QUEUE = QueueSettings()
_TABLES = {
    "task": TaskSettings,
    "worker": WorkerSettings,
    "manager": ManagerSettings,
    "limits": LimitSettings,
}


def load(
    runtime: Runtime,
    *,
    engine_tables: EngineTables,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Config:
    """Read the file in `folder` (default: the current one) and the environment.

    `engine_tables` are the tables that engines bring: `engines.settings_tables()`.
    """
    environ = os.environ if environ is None else environ
    config = Config()
    source, values = _file(runtime, Path.cwd() if folder is None else folder)
    config = _merged(config, values, source, engine_tables)
    for variable, value in sorted(environ.items()):
        if variable.startswith(PREFIX):
            config = _from_variable(config, variable, value, engine_tables)
    return config


def _engine_table(name: str, engine_tables: EngineTables) -> type | None:
    try:
        return engine_tables[name]
    except KeyError:
        return None


def _with_engine(config: Config, table: type, values: Mapping[str, object], source: str) -> Config:
    name: str = cast(Any, table).table
    return replace(config, engines={**config.engines, name: _updated(config.engine(table), values, name, source)})


# --- The file ---


def _file(runtime: Runtime, folder: Path) -> tuple[str, Mapping[str, object]]:
    """The name of the file and its values. `holdfast.toml` wins over `[tool.holdfast]`; without a file: no values."""
    if (folder / FILE).is_file():
        return FILE, _toml(runtime, folder / FILE)
    if (folder / PYPROJECT).is_file():
        tool = _toml(runtime, folder / PYPROJECT).get("tool", {})
        values = tool.get("holdfast", {}) if isinstance(tool, Mapping) else {}
        if not isinstance(values, Mapping):
            raise ConfigError(f"{PYPROJECT}: `tool.holdfast` must be a table.", key="tool.holdfast", source=PYPROJECT)
        return f"{PYPROJECT} [tool.holdfast]", values
    return "", {}


def _toml(runtime: Runtime, path: Path) -> dict[str, Any]:
    import tomllib

    try:
        # Links are followed: a mounted configuration is often a link, and a user who can replace the link can also
        # replace the file.
        return tomllib.loads(runtime.fs.read_bytes(path.resolve()).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name} cannot be read: {error}.", key="", source=path.name) from error
    except OSError as error:
        raise ConfigError(f"{path.name} cannot be read: {error.strerror}.", key="", source=path.name) from error


def _merged(config: Config, values: Mapping[str, object], source: str, engine_tables: EngineTables) -> Config:
    for key, value in values.items():
        if key in _TABLES:
            table = _updated(getattr(config, key), _table(value, key, source), key, source)
            config = replace(config, **{key: table})
        elif key == "queues":
            for name, options in _table(value, key, source).items():
                place = f"queues.{name}"
                settings = _updated(config.queue(name), _table(options, place, source), place, source)
                config = _with_queue(config, name, settings, place, source)
        elif key not in _readers(Config) and (engine := _engine_table(key, engine_tables)) is not None:
            config = _with_engine(config, engine, _table(value, key, source), source)
        else:
            config = _updated(config, {key: value}, "", source)
    return config


def _table(value: object, key: str, source: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source}: `{key}` must be a table.", key=key, source=source)
    return value


def _with_queue(config: Config, name: str, settings: QueueSettings, place: str, source: str) -> Config:
    checked: str = _read(queue_name, name, place, source)
    return replace(config, queues={**config.queues, checked: settings})


# --- One value ---


def _readers(table: type) -> dict[str, Reader]:
    """The reader of each setting of a table: the second part of its annotation."""
    hints = get_type_hints(table, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated}


def _updated(table: T, values: Mapping[str, object], place: str, source: str) -> T:
    """A copy of the table with these values."""
    readers = _readers(type(table))
    changes = {}
    for key, value in values.items():
        full = f"{place}.{key}" if place else key
        if key not in readers:
            raise _unknown(full, source, _similar(key, readers), place)
        changes[key] = _read(readers[key], value, full, source)
    return cast(T, replace(cast(Any, table), **changes))


def _read(reader: Reader, value: object, key: str, source: str) -> Any:
    try:
        return reader(value)
    except (ValueError, InvalidOption) as error:
        raise ConfigError(f"{source}: `{key}` {error}", key=key, source=source) from error


def _unknown(key: str, source: str, similar: str, place: str = "") -> ConfigError:
    hint = f"Did you mean `{f'{place}.{similar}' if place else similar}`?" if similar else "Check the spelling."
    return ConfigError(f"{source}: there is no setting `{key}`. {hint}", key=key, source=source)


def _similar(key: str, names: Iterable[str]) -> str:
    """The name that `key` is probably a misspelling of, or no text."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(key, names, n=1)), "")


# --- The environment ---


def _from_variable(config: Config, variable: str, value: str, engine_tables: EngineTables) -> Config:
    word = variable.removeprefix(PREFIX)
    if word in NO_SETTINGS or word.startswith(PROJECT_PREFIX):
        return config
    key = word.lower()
    if key in _readers(Config):
        config = _updated(config, {key: value}, "", variable)
        return replace(config, environment_url=config.url) if key == "url" else config
    table, _, rest = key.partition("_")
    if table in _TABLES and rest in _readers(_TABLES[table]):
        return replace(config, **{table: _updated(getattr(config, table), {rest: value}, table, variable)})
    if table == "queues":
        for option in sorted(_readers(QueueSettings), key=len, reverse=True):  # one may end like another
            if rest.endswith(f"_{option}") and (name := rest.removesuffix(f"_{option}")):
                settings = _updated(config.queue(name), {option: value}, f"queues.{name}", variable)
                return _with_queue(config, name, settings, f"queues.{name}", variable)
    engine = _engine_table(table, engine_tables)
    if engine is not None and rest in _readers(engine):
        return _with_engine(config, engine, {rest: value}, variable)
    raise _unknown(key, variable, _similar(key, _every_key(engine_tables)))


def _every_key(engine_tables: EngineTables) -> list[str]:
    inside = [f"{table}_{key}" for table, kind in {**_TABLES, **engine_tables}.items() for key in _readers(kind)]
    return [*_readers(Config), *inside]
