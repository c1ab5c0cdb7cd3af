"""Every setting can be set in the file, in `pyproject.toml` and by its variable. A new setting needs a row here."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.config import Config, QueueSettings, SettingSource, SettingTables, SourceKind, load, readers, variable_of
from holdfast.engines import settings_tables
from holdfast.model.retry import Listed
from holdfast.runtime import SystemRuntime

ROWS: dict[str, tuple[str, str, Any]] = {
    "app": ('"shop.jobs:jobs"', "shop.jobs:jobs", "shop.jobs:jobs"),
    "url": ('"sqlite:shop.db"', "sqlite:shop.db", "sqlite:shop.db"),
    "namespace": ('"shop"', "shop", "shop"),
    "durability": ('"fast"', "fast", "fast"),
    "auto_migrate": ("false", "no", False),
    "request_timeout": ('"1m"', "1m", 60.0),
    "log_level": ('"debug"', "debug", "debug"),
    "log_format": ('"json"', "json", "json"),
    "task.queue": ('"quick"', "quick", "quick"),
    "task.priority": ("-7", "-7", -7),
    "task.max_attempts": ("7", "7", 7),
    "task.backoff": ("[1, 10]", "[1, 10]", Listed((1_000_000, 10_000_000))),
    "task.max_losses": ("7", "7", 7),
    "task.timeout": ("2.5", "2.5", 2.5),
    "task.lease": ('"1m"', "60", 60.0),
    "task.result_ttl": ("7", "7s", 7.0),
    "task.retention": ('"2h"', "2h", 7200.0),
    "task.failed_retention": ('"7d"', "7d", 604_800.0),
    "worker.concurrency": ("7", "7", 7),
    "worker.grace": ("7", "7", 7.0),
    "worker.prefetch": ("7", "7", 7),
    "worker.poll_interval": ("0.25", "250ms", 0.25),
    "worker.reap_interval": ("0.25", "0.25", 0.25),
    "worker.unknown_task_after": ("7", "7", 7.0),
    "worker.max_jobs": ("7", "7", 7),
    "worker.max_memory": ('"64MiB"', "64MiB", 64 * 1024 * 1024),
    "manager.min": ("2", "2", 2),
    "manager.max": ("8", "8", 8),
    "manager.interval": ("0.5", "0.5", 0.5),
    "manager.idle_before_down": ('"2m"', "2m", 120.0),
    "limits.payload": ("2000", "2000", 2000),
    "limits.result": ("2000", "2000", 2000),
    "queues.mails.max_depth": ("7", "7", 7),
    "queues.mails.lane_max_depth": ("7", "7", 7),
    "queues.mails.soft_limit": ("0.5", "0.5", 0.5),
    "queues.mails.max_attempts": ("7", "7", 7),
    "queues.mails.backoff": ("[1, 10]", "[1, 10]", Listed((1_000_000, 10_000_000))),
    "queues.mails.lease": ('"1m"', "60", 60.0),
    "sqlite.busy_timeout": ("7", "7", 7.0),
    "file.segment_bytes": ("100000", "100000", 100_000),
    "file.sync_interval": ("0.25", "0.25", 0.25),
    "file.lock_timeout": ("7", "7", 7.0),
    "file.allow_network_disk": ("true", "yes", True),
    "postgres.pool_size": ("7", "7", 7),
    "postgres.notify": ("false", "0", False),
    "postgres.pooled": ("true", "1", True),
    "postgres.listen_url": ('"postgresql://x/y"', "postgresql://x/y", "postgresql://x/y"),
    "redis.timeout": ("7", "7", 7.0),
    "redis.connect_timeout": ("7", "7", 7.0),
    "redis.cluster": ('"namespace"', "namespace", "namespace"),
    "redis.notify": ("false", "false", False),
    "redis.replicas": ("2", "2", 2),
    "redis.replica_timeout": ("7", "7", 7.0),
    "redis.allow_eviction": ("true", "on", True),
}
"""By key: the value in TOML, in the environment, and as it is read. None is the default."""


def value_of(config: Config, place: tuple[str, ...]) -> Any:
    match place:
        case (key,):
            return getattr(config, key)
        case ("queues", name, key):
            return getattr(config.queue(name), key)
        case (table, key) if table in config.tables():
            return getattr(config.tables()[table], key)
        case (table, key):
            return getattr(config.engine(settings_tables()[table]), key)
    raise AssertionError(place)


def test_every_setting_has_a_row() -> None:
    settings = {".".join(place) for place in SettingTables(settings_tables()).places()}
    assert set(ROWS) == settings | {f"queues.mails.{key}" for key in readers(QueueSettings)}


@pytest.mark.parametrize("key", ROWS)
@pytest.mark.parametrize("source", ["holdfast.toml", "pyproject.toml", "environment"])
def test_a_setting_is_read_and_its_source_is_known(tmp_path: Path, source: str, key: str) -> None:
    in_file, in_variable, value = ROWS[key]
    place = tuple(key.split("."))
    environ = {}
    if source == "environment":
        environ[variable_of(*place)] = in_variable
        expected = SettingSource(SourceKind.ENVIRONMENT, variable_of(*place))
    else:
        table = ("tool", "holdfast", *place[:-1]) if source == "pyproject.toml" else place[:-1]
        heading = f"[{'.'.join(table)}]\n" if table else "\n"
        (tmp_path / source).write_text(f"# the first line\n{heading}{place[-1]} = {in_file}\n", encoding="utf-8")
        expected = SettingSource(SourceKind.FILE, f"{source}, line 3")
    config = load(SystemRuntime(), engine_tables=settings_tables(), environ=environ, folder=tmp_path)
    assert value_of(config, place) == value
    assert value_of(Config(), place) != value
    assert config.source(*place) == expected
