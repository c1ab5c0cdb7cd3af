"""Settings, from weakest to strongest: built in, `holdfast.toml` or `[tool.holdfast]`, environment `HOLDFAST_*`.

Arguments in code and flags of commands override all of them; `core/settings.py` shows all sources together. One word
per setting: table `[worker]`, key `concurrency` is `HOLDFAST_WORKER_CONCURRENCY`. Durations are seconds, or text such
as "10m". An unknown key, a value of the wrong type or range, and a file that is not TOML raise a `ConfigError` that
names the key and its source.

Nothing is read on import, nor when an `App` is created; `load` is called when a setting is first needed.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_origin, get_type_hints

from holdfast.config_file import ConfigFile, read_config_file
from holdfast.errors import ConfigError, InvalidOption
from holdfast.model.retry import DEFAULT_BACKOFF, Backoff
from holdfast.readers import (
    backoff_table,
    boolean,
    byte_size,
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

Place = tuple[str, ...]
"""Where a setting is: `("url",)`, `("worker", "concurrency")`, `("queues", "mails", "max_depth")`."""

PREFIX = "HOLDFAST_"

MAX_SLOTS = 100_000
"""Of a worker. The contract allows no larger claim."""
MAX_CHILDREN = 10_000
"""Of a manager: more processes than a host can run, so a higher number is a mistake."""

NO_SETTINGS = frozenset({"ALLOW_BLOCKING", "DEBUG"})
"""Variables that are switches and not settings."""
PROJECT_PREFIX = "TEST_"
"""Variables of Holdfast's own tests."""
_OF_KUBERNETES = re.compile(
    r"(.+_)?((SERVICE_(HOST|PORT(_.+)?)|PORT_[0-9]+_(TCP|UDP|SCTP)(_.+)?)=.*|PORT=(tcp|udp|sctp)://.*)"
)
"""What every pod gets about each Service of its namespace, here about one named `holdfast` or `holdfast-…`."""


class SourceKind(StrEnum):
    """Where a value may come from, the weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    CODE = "code"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class SettingSource:
    """Where a value comes from. `name`: the file with its line, the variable, the call, or the flag."""

    kind: SourceKind
    name: str = ""


DEFAULT = SettingSource(SourceKind.DEFAULT)


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

    concurrency: Annotated[int, whole(1, MAX_SLOTS)] = 10
    grace: Annotated[float, seconds()] = 30.0
    prefetch: Annotated[int, whole(0, MAX_SLOTS)] = 0
    poll_interval: Annotated[float, seconds(0.001)] = 1.0
    reap_interval: Annotated[float, seconds(0.001)] = 5.0
    unknown_task_after: Annotated[float, seconds()] = 0.0
    max_jobs: Annotated[int, whole(0)] = 0
    max_memory: Annotated[int, byte_size] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """`[manager]`: the least and the most worker processes, seconds between two looks at the load, and for how long
    less must be enough before the number falls."""

    min: Annotated[int, whole(1, MAX_CHILDREN)] = 1
    max: Annotated[int, whole(1, MAX_CHILDREN)] = 4
    interval: Annotated[float, seconds(0.1)] = 5.0
    idle_before_down: Annotated[float, seconds()] = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """`[queues.NAME]`: most live jobs of the queue and of each lane (0: no limit); fraction at which to warn.

    The last three are for payloads that are pulled; without them, `[task]` holds.
    """

    max_depth: Annotated[int, whole(0)] = 0
    lane_max_depth: Annotated[int, whole(0)] = 0
    soft_limit: Annotated[float, fraction] = 0.8
    max_attempts: Annotated[int | None, whole(0)] = None
    backoff: Annotated[Backoff | None, backoff_table] = None
    lease: Annotated[float | None, seconds(2.0)] = None


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
    variables: Mapping[Place, str] = field(default_factory=dict, compare=False)
    """The variable of each setting that the environment sets."""
    file: ConfigFile | None = field(default=None, compare=False)
    file_places: frozenset[Place] = field(default=frozenset(), compare=False)
    """The settings that are in the file."""

    def queue(self, name: str) -> QueueSettings:
        """The settings of a queue; the defaults if no source names it."""
        return self.queues.get(name, _DEFAULT_QUEUE)

    def engine(self, settings: type[T]) -> T:
        """The settings of an engine, by the class of its table."""
        stored: T | None = self.engines.get(cast(Any, settings).table)
        return settings() if stored is None else stored

    def tables(self) -> dict[str, Any]:
        """The tables with fixed names, by name: not those of queues and engines."""
        return {name: getattr(self, name) for name in _TABLES}

    def source(self, *place: str) -> SettingSource:
        """Where the value of a setting comes from."""
        if place in self.variables:
            return SettingSource(SourceKind.ENVIRONMENT, self.variables[place])
        if self.file is not None and place in self.file_places:
            return SettingSource(SourceKind.FILE, self.file.place_of(*place))
        return DEFAULT


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
    tables = SettingTables(engine_tables)
    file = read_config_file(runtime, Path.cwd() if folder is None else folder)
    from_file = {} if file is None else _file_values(file, tables)
    from_environment, variables = _environment_values(environ, tables)
    return tables.config(
        {**from_file, **from_environment},
        environment_url=from_environment.get(("url",)),
        variables=variables,
        file=file,
        file_places=frozenset(from_file),
    )


# --- The tables ---


class SettingTables:
    """Which settings exist, and the reader of each: those of this module and those of engines."""

    def __init__(self, engine_tables: EngineTables) -> None:
        self._engine_tables = engine_tables

    def table(self, name: str) -> type | None:
        """The class of the table with this name. Asks for an installed engine of that name last."""
        if name in _TABLES:
            return _TABLES[name]
        try:
            return self._engine_tables[name]
        except KeyError:
            return None

    def readers(self, *table: str) -> Mapping[str, Reader]:
        """The readers of a table: of `()`, `("worker",)` or `("queues", NAME)`. Empty if there is none."""
        match table:
            case ():
                return readers(Config)
            case ("queues", _):
                return readers(QueueSettings)
            case (name,) if (found := self.table(name)) is not None:
                return readers(found)
        return {}

    def places(self) -> list[Place]:
        """All settings but those of queues."""
        names = {**_TABLES, **self._engine_tables}
        return [(key,) for key in readers(Config)] + [(name, key) for name in names for key in self.readers(name)]

    def config(self, values: Mapping[Place, Any], **more: Any) -> Config:
        """The settings with these values; all others have their defaults."""
        by_table: dict[Place, dict[str, Any]] = {}
        for place, value in values.items():
            by_table.setdefault(place[:-1], {})[place[-1]] = value
        top = by_table.pop((), {})
        own = {name: _TABLES[name](**keys) for (name, *_), keys in by_table.items() if name in _TABLES}
        queues = {table[1]: QueueSettings(**keys) for table, keys in by_table.items() if table[0] == "queues"}
        engines = {
            name: cast(type, self.table(name))(**keys)
            for (name, *_), keys in by_table.items()
            if name not in _TABLES and name != "queues"
        }
        return Config(**top, **own, queues=queues, engines=engines, **more)


@cache
def readers(table: type) -> Mapping[str, Reader]:
    """The reader of each setting of a table: the second part of its annotation."""
    hints = get_type_hints(table, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated}


def _read(reader: Reader, value: object, place: Place, source: str) -> Any:
    key = ".".join(place)
    try:
        return reader(value)
    except (ValueError, InvalidOption) as error:
        raise ConfigError(f"{source}: `{key}` {error}", key=key, source=source) from error


def _similar(key: str, names: Iterable[str]) -> str:
    """The name that `key` is probably a misspelling of, or no text."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(key, names, n=1)), "")


def _unknown(key: str, source: str, similar: str) -> ConfigError:
    hint = f"Did you mean `{similar}`?" if similar else "Check the spelling."
    return ConfigError(f"{source}: there is no setting `{key}`. {hint}", key=key, source=source)


# --- The file ---


def _file_values(file: ConfigFile, tables: SettingTables) -> dict[Place, Any]:
    values = {}
    for place, value in _file_items(file, tables):
        known = tables.readers(*place[:-1])
        if place[-1] not in known:
            similar = _similar(place[-1], known)
            raise _unknown(".".join(place), file.place_of(*place), similar and ".".join((*place[:-1], similar)))
        values[place] = _read_in_file(known[place[-1]], value, place, file)
    return values


def _file_items(file: ConfigFile, tables: SettingTables) -> Iterator[tuple[Place, object]]:
    """Each value of the file and its place."""
    for key, value in file.values.items():
        if key == "queues":
            for name, options in _items(value, (key,), file):
                _read_in_file(queue_name, name, (key, name), file)
                for option, setting in _items(options, (key, name), file):
                    yield (key, name, option), setting
        elif key in tables.readers() or tables.table(key) is None:
            yield (key,), value
        else:
            for option, setting in _items(value, (key,), file):
                yield (key, option), setting


def _items(value: object, place: Place, file: ConfigFile) -> Iterable[tuple[str, object]]:
    if not isinstance(value, Mapping):
        key, source = ".".join(place), file.place_of(*place)
        raise ConfigError(f"{source}: `{key}` must be a table.", key=key, source=source)
    return value.items()


def _read_in_file(reader: Reader, value: object, place: Place, file: ConfigFile) -> Any:
    try:
        return _read(reader, value, place, file.name)
    except ConfigError:
        return _read(reader, value, place, file.place_of(*place))  # raises again, now with the line


# --- The environment ---


def variable_of(*place: str) -> str:
    """The variable of a setting.

    >>> variable_of("worker", "concurrency")
    'HOLDFAST_WORKER_CONCURRENCY'
    """
    return PREFIX + "_".join(place).upper()


def _environment_values(environ: Mapping[str, str], tables: SettingTables) -> tuple[dict[Place, Any], dict[Place, str]]:
    values: dict[Place, Any] = {}
    variables: dict[Place, str] = {}
    for variable, value in sorted(environ.items()):
        word = variable.removeprefix(PREFIX)
        if word == variable or word in NO_SETTINGS or word.startswith(PROJECT_PREFIX):
            continue
        place = _place_of(word.lower(), tables)
        if place is None and _OF_KUBERNETES.fullmatch(f"{word}={value}"):
            continue
        if place is None:
            known = [variable_of(*place) for place in tables.places()]
            raise _unknown(word.lower(), variable, _similar(variable, known))
        if place[0] == "queues":
            _read(queue_name, place[1], place[:-1], variable)
        values[place] = _read(tables.readers(*place[:-1])[place[-1]], value, place, variable)
        variables[place] = variable
    return values, variables


def _place_of(word: str, tables: SettingTables) -> Place | None:
    """The setting that a variable means: `worker_concurrency` is `("worker", "concurrency")`."""
    if word in tables.readers():
        return (word,)
    table, _, key = word.partition("_")
    if table == "queues":
        for option in sorted(readers(QueueSettings), key=len, reverse=True):  # one may end like another
            if key.endswith(f"_{option}") and (name := key.removesuffix(f"_{option}")):
                return (table, name, option)
        return None
    return (table, key) if key in tables.readers(table) else None
