"""Settings: defaults, file, environment; whatever is wrong is an error that names the key and its source."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast import App, ConfigError, exponential, fixed
from holdfast.config import DEFAULT, Config, SettingSource, SourceKind, load
from holdfast.engines import settings_tables
from holdfast.engines.postgres.settings import PostgresSettings
from holdfast.engines.sqlite.settings import SqliteSettings
from holdfast.model.instants import MINUTE, SECOND
from holdfast.model.retry import Listed
from holdfast.runtime import SystemRuntime


def read(
    folder: Path, text: str = "", environ: Mapping[str, str] | None = None, *, file: str = "holdfast.toml"
) -> Config:
    if text:
        (folder / file).write_text(text, encoding="utf-8")
    return load(SystemRuntime(), engine_tables=settings_tables(), environ=environ or {}, folder=folder)


def refusal(folder: Path, text: str = "", environ: Mapping[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        read(folder, text, environ)
    return refused.value


def test_without_a_file_and_without_variables_the_defaults_hold(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config == Config()
    assert (config.url, config.namespace, config.request_timeout) == (None, "holdfast", 30.0)
    assert (config.worker.concurrency, config.worker.grace, config.worker.poll_interval) == (10, 30.0, 1.0)
    assert (config.limits.payload, config.engine(SqliteSettings).busy_timeout) == (1_048_576, 10.0)
    assert config.queue("any").max_depth == 0


def test_a_file_may_set_everything_that_is_documented(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        app = "shop.jobs:jobs"
        url = "sqlite:///shop.db"
        namespace = "shop"
        durability = "fast"
        auto_migrate = false
        request_timeout = "1m"
        log_level = "debug"
        log_format = "json"
        [task]
        queue = "quick"
        max_attempts = 0
        backoff = { kind = "exponential", initial = 1, multiplier = 3, max = 60, jitter = 0 }
        lease = 10
        [worker]
        concurrency = 3
        grace = "2m"
        [queues.default]
        max_depth = 100
        [queues."e mails"]
        max_depth = 5
        lane_max_depth = 2
        soft_limit = 0.5
        [limits]
        payload = 1000
        [postgres]
        pool_size = 3
        notify = false
        pooled = true
        listen_url = "postgresql://direct/shop"
        [sqlite]
        busy_timeout = 3
        """,
    )
    assert (config.app, config.url, config.namespace) == ("shop.jobs:jobs", "sqlite:///shop.db", "shop")
    assert (config.durability, config.auto_migrate, config.request_timeout) == ("fast", False, 60.0)
    assert config.task.backoff == exponential(1, 3, 60, 0)
    assert (config.worker.concurrency, config.worker.grace) == (3, 120.0)
    assert (config.queue("default").max_depth, config.queue("default").lane_max_depth) == (100, 0)
    assert (config.queue("e mails").lane_max_depth, config.queue("e mails").soft_limit) == (2, 0.5)
    assert config.limits.payload == 1000
    assert config.engine(PostgresSettings) == PostgresSettings(
        pool_size=3, notify=False, pooled=True, listen_url="postgresql://direct/shop"
    )


def test_a_table_of_pyproject_does_as_well(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.holdfast.worker]\nconcurrency = 3", encoding="utf-8")
    assert read(tmp_path).worker.concurrency == 3
    (tmp_path / "holdfast.toml").write_text("worker.concurrency = 4", encoding="utf-8")
    assert read(tmp_path).worker.concurrency == 4


def test_a_file_that_is_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "mounted").write_text("namespace = 'shop'", encoding="utf-8")
    (tmp_path / "holdfast.toml").symlink_to(tmp_path / "mounted")
    assert read(tmp_path).namespace == "shop"


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    environ = {
        "HOLDFAST_URL": "memory://",
        "HOLDFAST_WORKER_CONCURRENCY": "7",
        "HOLDFAST_TASK_LEASE": "1m",
        "HOLDFAST_TASK_FAILED_RETENTION": "1d",
        "HOLDFAST_TASK_BACKOFF": "[1, 10]",
        "HOLDFAST_AUTO_MIGRATE": "no",
        "HOLDFAST_QUEUES_DEFAULT_MAX_DEPTH": "5",
        "HOLDFAST_ALLOW_BLOCKING": "1",
        "OTHER": "x",
    }
    config = read(tmp_path, "url = 'sqlite:///a.db'\n[worker]\nconcurrency = 3\ngrace = 1", environ)
    assert (config.url, config.environment_url, config.auto_migrate) == ("memory://", "memory://", False)
    assert (config.worker.concurrency, config.worker.grace) == (7, 1.0)
    assert (config.task.lease, config.task.failed_retention) == (60.0, 86_400.0)
    assert config.task.backoff == Listed((SECOND, 10 * SECOND))
    assert config.queue("default").max_depth == 5


@pytest.mark.parametrize(
    ("variable", "value"), [("HOLDFAST_POSTGRES_NOTIFY", "no"), ("HOLDFAST_POSTGRES_POOLED", "yes")]
)
def test_the_settings_of_an_engine_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_POSTGRES_POOL_SIZE", "3")
    for url in ("postgresql://db/shop", "postgres://db/shop", "postgresql+psycopg://db/shop"):
        assert App(url).engine.capabilities.push
    monkeypatch.setenv(variable, value)
    assert not App("postgresql://db/shop").engine.capabilities.push


def test_of_two_settings_that_end_alike_the_longer_one_is_meant(tmp_path: Path) -> None:
    config = read(tmp_path, environ={"HOLDFAST_QUEUES_MAILS_LANE_MAX_DEPTH": "5"})
    assert (config.queue("mails").lane_max_depth, config.queue("mails").max_depth) == (5, 0)
    assert set(config.queues) == {"mails"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30.0), ("30s", 30.0), ("1.5m", 90.0), ("2 h", 7200.0), ("1d", 86_400.0), ("250ms", 0.25)],
)
def test_durations_are_read_as_people_write_them(tmp_path: Path, text: str, seconds: float) -> None:
    assert read(tmp_path, environ={"HOLDFAST_REQUEST_TIMEOUT": text}).request_timeout == seconds


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("conurrency = 3", "conurrency", 1),
        ("[worker]\nconcurency = 3", "worker.concurency", 2),
        ("[workers]\nconcurrency = 3", "workers", 1),
        ("worker = 3", "worker", 1),
        ("[worker]\nconcurrency = 0", "worker.concurrency", 2),
        ("[worker]\nconcurrency = '3 of them'", "worker.concurrency", 2),
        ("[worker]\nconcurrency = true", "worker.concurrency", 2),
        ("[worker]\ngrace = -1", "worker.grace", 2),
        ("[worker]\ngrace = nan", "worker.grace", 2),
        ("[worker]\ngrace = inf", "worker.grace", 2),
        ("[worker]\ngrace = 'soon'", "worker.grace", 2),
        ("[task]\nlease = 1", "task.lease", 2),
        ("[task]\nqueue = ''", "task.queue", 2),
        ("[task.backoff]\nkind = 'cubic'", "task.backoff", 1),
        ("[task.backoff]\nkind = 'fixed'\nmultiplier = 3", "task.backoff", 1),
        ("[task]\nbackoff = -1", "task.backoff", 2),
        ("[queues]\ndefault = 3", "queues.default", 2),
        ("[queues.default]\nmax_deph = 3", "queues.default.max_deph", 2),
        ("[queues.default]\nsoft_limit = 2", "queues.default.soft_limit", 2),
        ("[limits]\npayload = 100_000_000", "limits.payload", 2),
        ("url = 3", "url", 1),
        ("namespace = 'No Word'", "namespace", 1),
        ("durability = 'strong'", "durability", 1),
        ("auto_migrate = 'perhaps'", "auto_migrate", 1),
        ("log_level = 'loud'", "log_level", 1),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_source(tmp_path: Path, text: str, key: str, line: int) -> None:
    error = refusal(tmp_path, text)
    assert (error.key, error.source) == (key, f"holdfast.toml, line {line}")
    assert str(error).startswith(f"holdfast.toml, line {line}: ")
    assert f"`{key}`" in str(error)


def test_the_line_is_found_in_any_style_of_toml(tmp_path: Path) -> None:
    text = """\
# worker.concurrency = 9
namespace = "shop"
app = \"\"\"
worker.concurrency = 8
\"\"\"

worker = { grace = 5,  concurrency = 7 }
task.backoff = [
    1,
    10,
]
[queues]
"e mails" = { max_depth = 3 }
[queues.other]
max_depth = 4
[limits]

payload =   2000
"""
    config = read(tmp_path, text.replace("\n", "\r\n"))
    places = {
        ("namespace",): 2,
        ("app",): 3,
        ("worker", "grace"): 7,
        ("worker", "concurrency"): 7,
        ("task", "backoff"): 8,
        ("queues", "e mails", "max_depth"): 13,
        ("queues", "other", "max_depth"): 15,
        ("limits", "payload"): 18,
    }
    for place, line in places.items():
        assert config.source(*place) == SettingSource(SourceKind.FILE, f"holdfast.toml, line {line}")
    assert config.source("limits", "result") == DEFAULT


def test_the_line_is_found_in_pyproject(tmp_path: Path) -> None:
    text = "[project]\nname = 'worker'\n\n[tool.other]\nworker = 1\n\n[tool.holdfast.worker]\nconcurrency = 3\n"
    config = read(tmp_path, text, file="pyproject.toml")
    assert config.source("worker", "concurrency") == SettingSource(SourceKind.FILE, "pyproject.toml, line 8")
    (tmp_path / "pyproject.toml").write_text(text + "grace = -1\n")
    assert refusal(tmp_path).source == "pyproject.toml, line 9"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HOLDFAST_WORKER_CONCURENCY", "3"),
        ("HOLDFAST_CONCURRENCY", "3"),
        ("HOLDFAST_WORKER_CONCURRENCY", "many"),
        ("HOLDFAST_QUEUES_MAX_DEPTH", "3"),
        ("HOLDFAST_REQUEST_TIMEOUT", "nan"),
        ("HOLDFAST_TASK_BACKOFF", "{ kind = "),
        ("HOLDFAST_URL", ""),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, variable: str, value: str) -> None:
    assert refusal(tmp_path, environ={variable: value}).source == variable


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[dashboard]\nport = 1", "dashboard"),
        ("[limits]\nerror = 1000", "limits.error"),
    ],
)
def test_a_setting_without_effect_is_refused(tmp_path: Path, text: str, key: str) -> None:
    error = refusal(tmp_path, text)
    line = 1 + key.count(".")
    assert str(error) == f"holdfast.toml, line {line}: there is no setting `{key}`. Check the spelling."
    assert (error.key, error.source) == (key, f"holdfast.toml, line {line}")


@pytest.mark.parametrize(
    "variable",
    [
        "HOLDFAST_DASHBOARD_PORT",
        "HOLDFAST_LIMITS_ERROR",
    ],
)
def test_a_variable_without_effect_is_refused(tmp_path: Path, variable: str) -> None:
    error = refusal(tmp_path, environ={variable: "9"})
    assert f"{variable}: there is no setting `{variable.removeprefix('HOLDFAST_').lower()}`." in str(error)


def test_variables_that_kubernetes_makes_of_a_service_are_no_settings(tmp_path: Path) -> None:
    made = {
        "SERVICE_HOST": "10.0.0.7",
        "SERVICE_PORT": "6379",
        "SERVICE_PORT_REDIS_TLS": "6379",
        "PORT": "tcp://10.0.0.7:6379",
        "PORT_6379_TCP": "tcp://10.0.0.7:6379",
        "PORT_6379_TCP_PROTO": "tcp",
        "PORT_6379_TCP_PORT": "6379",
        "PORT_6379_TCP_ADDR": "10.0.0.7",
    }
    services = ("HOLDFAST", "HOLDFAST_REDIS", "HOLDFAST_WORKER", "HOLDFAST_QUEUES_MAILS")
    environ = {f"{service}_{name}": value for service in services for name, value in made.items()}
    assert read(tmp_path, environ={**environ, "HOLDFAST_WORKER_CONCURRENCY": "3"}).worker.concurrency == 3


def test_the_error_of_a_misspelt_key_names_the_right_one(tmp_path: Path) -> None:
    assert "`worker.concurrency`" in str(refusal(tmp_path, "[worker]\nconcurrancy = 3"))
    (tmp_path / "holdfast.toml").unlink()
    assert "`HOLDFAST_WORKER_CONCURRENCY`" in str(refusal(tmp_path, environ={"HOLDFAST_WORKER_CONCURRANCY": "3"}))


@pytest.mark.parametrize("content", [b"url = ", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "holdfast.toml").write_bytes(content)
    assert refusal(tmp_path).source == "holdfast.toml"


def test_the_defaults_of_tasks_come_from_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "holdfast.toml").write_text(
        "[task]\nqueue = 'quick'\nmax_attempts = 0\nbackoff = 3\nlease = 60\nresult_ttl = 1\ntimeout = 5",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    jobs = App("memory://")

    @jobs.task
    async def open_to_all() -> None: ...

    @jobs.task(queue="slow", max_attempts=3, timeout=None)
    async def decided() -> None: ...

    policy = open_to_all.policy
    assert (policy.queue, policy.retry.max_attempts, policy.retry.backoff) == ("quick", None, fixed(3))
    assert (policy.lease, policy.result_ttl, policy.timeout) == (MINUTE, SECOND, 5 * SECOND)
    assert (decided.policy.queue, decided.policy.retry.max_attempts, decided.policy.timeout) == ("slow", 3, None)
    assert decided.policy.lease == MINUTE


def test_declaring_a_task_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "holdfast.toml").write_text("nonsense", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    jobs = App()

    @jobs.task(queue="quick")
    def resize() -> None: ...

    with pytest.raises(ConfigError):
        resize.enqueue()
