"""Of two sources of a setting the stronger one wins: each pair, whichever source has which value, in both orders.

Each case reads the value that is used. What `App.settings` and `holdfast config` report must be the same.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, forget_modules

from holdfast import App
from holdfast.config import SourceKind
from holdfast.errors import SchemaMismatch
from holdfast.events import WorkerStarted

STRENGTH = ("default", "pyproject", "file", "environment", "code", "flag")
"""The weakest first. `pyproject.toml` is not read where there is `holdfast.toml`."""
KINDS = {source: SourceKind("file" if source == "pyproject" else source) for source in STRENGTH}


def write(folder: Path, environment: pytest.MonkeyPatch, source: str, name: str, value: Any) -> None:
    """Give a setting a value in a file or in the environment."""
    *table, key = name.split(".")
    if source == "file":
        heading = f"[{'.'.join(table)}]\n" if table else ""
        (folder / "holdfast.toml").write_text(f"{heading}{key} = {json.dumps(value)}\n")
    elif source == "pyproject":
        heading = f"[{'.'.join(('tool.holdfast', *table))}]"
        (folder / "pyproject.toml").write_text(f"{heading}\n{key} = {json.dumps(value)}\n")
    elif source == "environment":
        text = value if isinstance(value, str) else json.dumps(value)
        environment.setenv(f"HOLDFAST_{name.replace('.', '_').upper()}", text)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- Files, environment, code ---


def work() -> None: ...


def app_on(url: str) -> Callable[..., App[Any]]:
    """Makes an App on this store, with the keywords that are given."""

    def make(**options: Any) -> App[Any]:
        return App(url, **options)

    return make


in_memory = app_on("memory://")


def app_of_url(**options: Any) -> App[Any]:
    return App(options.get("url"))


def app_with_task(**options: Any) -> App[Any]:
    app = App[Any]("memory://")
    app.task(name="work", **options)(work)
    return app


def app_with_queue(**options: Any) -> App[Any]:
    app = App[Any]("memory://")
    app.queue("mails", int, **options)
    return app


def app_on_redis(**options: Any) -> App[Any]:
    return App("redis://127.0.0.1:1/0" + "".join(f"?{name}={value}" for name, value in options.items()))


class AppWithWorker(App[Any]):
    """Keeps the options that its code gives a worker."""

    def __init__(self, **options: Any) -> None:
        super().__init__("memory://")
        self.worker_options = options


def slots_of_worker(app: App[Any]) -> int:
    """The slots of a worker that has run."""
    assert isinstance(app, AppWithWorker)
    started: list[WorkerStarted] = []
    app.on(WorkerStarted)(started.append)
    app.worker(until_empty=True, **app.worker_options).run()
    return started[-1].slots


def makes_tables(app: App[Any]) -> bool:
    """Whether the store is migrated when it is opened."""
    try:
        app.open()
    except SchemaMismatch:
        return False
    finally:
        app.close()
        for file in Path.cwd().glob("jobs.db*"):
            file.unlink()
    return True


def limit_of_mails(app: App[Any]) -> int:
    limits = app._store.depth_limits(["mails"])
    return limits[0].limit if limits else 0


def engine_options(app: App[Any]) -> Any:
    engine: Any = app.engine
    return engine._store


def redis_settings(app: App[Any]) -> Any:
    engine: Any = app.engine
    return engine._servers.settings


def payload_limit(app: App[Any]) -> int:
    codec: Any = app._store.codec
    return int(codec.limits.size)


@dataclass(frozen=True)
class Case:
    """`used` reads the value that an App uses. `make` makes it; with `in_code`, it takes the setting as a keyword."""

    key: str
    values: tuple[Any, Any]
    default: Any
    used: Callable[[App[Any]], Any]
    make: Callable[..., App[Any]] = in_memory
    in_code: bool = False


CASES = [
    # Text
    Case("url", ("sqlite:a.db", "sqlite:b.db"), "holdfast.db", lambda a: Path(a.address).name, app_of_url, True),
    Case("namespace", ("shop", "bank"), "holdfast", lambda a: a._store.namespace, in_code=True),
    # A choice
    Case("durability", ("fast", "none"), "durable", lambda a: a.durability, app_on("sqlite:jobs.db"), True),
    Case("log_level", ("debug", "error"), "info", lambda a: a.config.log_level),
    Case("log_format", ("json", "none"), "text", lambda a: a.config.log_format),
    # True or false
    Case("auto_migrate", (True, False), True, makes_tables, app_on("sqlite:jobs.db"), True),
    # Durations
    Case("request_timeout", (5, 6), 30, lambda a: a.config.request_timeout),
    Case("task.lease", (5, 6), 30, lambda a: a.registry["work"].policy.lease / 1_000_000, app_with_task, True),
    Case("worker.grace", (5, 6), 30, lambda a: a.config.worker.grace),
    # Numbers
    Case("task.priority", (5, 6), 0, lambda a: a.registry["work"].policy.priority, app_with_task, True),
    Case("worker.concurrency", (5, 6), 10, slots_of_worker, AppWithWorker, True),
    Case("manager.max", (5, 6), 4, lambda a: a.config.manager.max),
    Case("limits.payload", (2000, 3000), 1_048_576, payload_limit),
    # A queue's table, tables of engines
    Case("queues.mails.max_depth", (5, 6), 0, limit_of_mails, app_with_queue, True),
    Case("sqlite.busy_timeout", (5, 6), 10, lambda a: engine_options(a).busy_timeout_s, app_on("sqlite:jobs.db")),
    Case("redis.timeout", (5, 6), 60, lambda a: redis_settings(a).timeout, app_on_redis, True),
    Case("redis.notify", (True, False), True, lambda a: redis_settings(a).notify, app_on_redis),
    Case("postgres.pooled", (True, False), False, lambda a: not a.engine.capabilities.push, app_on("postgresql:///x")),
]

PAIRS = [
    (case, weak, strong)
    for case in CASES
    for weak, strong in combinations(STRENGTH[:-1], 2)
    if strong != "code" or case.in_code
]


@pytest.mark.parametrize(("case", "weak", "strong"), PAIRS, ids=[f"{c.key}-{w}-{s}" for c, w, s in PAIRS])
def test_the_stronger_of_two_sources_wins(
    folder: Path, monkeypatch: pytest.MonkeyPatch, case: Case, weak: str, strong: str
) -> None:
    for values in permutations(case.values):
        value_of = dict(zip((weak, strong), values, strict=True))
        for order in ((weak, strong), (strong, weak)):
            in_code = {case.key.rpartition(".")[2]: value_of["code"]} if strong == "code" else {}
            app = None
            for source in order:
                if source == "code":
                    app = case.make(**in_code)  # the files and the environment are read when it is first used
                else:
                    write(folder, monkeypatch, source, case.key, value_of[source])
            assert_used(case, app or case.make(**in_code), value_of[strong], strong)


def assert_used(case: Case, app: App[Any], value: Any, source: str) -> None:
    used, reported = case.used(app), next(setting for setting in app.settings() if setting.key == case.key)
    assert used == (value.removeprefix("sqlite:") if case.key == "url" else value)
    if not case.key.startswith(("task.", "worker.")) or source != "code":  # the App shows its own defaults of those
        assert Path(str(reported.value)).name == used if case.key == "url" else reported.value == used
        assert reported.kind is KINDS[source]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_without_any_source_the_default_holds(case: Case) -> None:
    app = case.make()
    assert case.used(app) == case.default
    key = case.key.replace("mails", "*")
    reported = next((setting for setting in app.settings() if setting.key == key), None)
    assert reported is not None
    assert reported.kind is SourceKind.DEFAULT or case.key == "url"


# --- Flags ---


@dataclass(frozen=True)
class FlagCase:
    """A setting that a command takes as a flag. `used` reads the objects that the command prints."""

    key: str
    values: tuple[Any, Any]
    default: Any
    flag: str
    command: tuple[str, ...]
    used: Callable[[Sequence[dict[str, Any]]], Any]


def of_event(kind: str, field: str) -> Callable[[Sequence[dict[str, Any]]], Any]:
    return lambda objects: round(next(event[field] for event in objects if event["event"] == kind))


def of_setting(key: str) -> Callable[[Sequence[dict[str, Any]]], Any]:
    return lambda objects: next(row["value"] for row in objects if row["key"] == key)


WORKER = ("worker", "shop:jobs", "--until-empty")
FLAG_CASES = [
    FlagCase("worker.concurrency", (5, 6), 10, "-c", WORKER, of_event("WorkerStarted", "slots")),
    FlagCase("worker.grace", (5, 6), 30, "--grace", WORKER, of_event("WorkerStopping", "grace")),
    FlagCase("app", ("shop:jobs", "shop:more"), None, "--app", ("config",), of_setting("app")),
    FlagCase("namespace", ("shop", "bank"), "holdfast", "--namespace", ("config",), of_setting("namespace")),
    FlagCase("url", ("sqlite:a.db", "sqlite:b.db"), "holdfast.db", "--url", ("config",), of_setting("url")),
]
FLAG_PAIRS = [(case, weak) for case in FLAG_CASES for weak in STRENGTH[:-2]]


@pytest.mark.parametrize(("case", "weak"), FLAG_PAIRS, ids=[f"{c.key}-{w}" for c, w in FLAG_PAIRS])
def test_a_flag_is_stronger_than_any_other_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch, run: Run, case: FlagCase, weak: str
) -> None:
    (folder / "shop.py").write_text("from holdfast import App\njobs = App('sqlite:jobs.db')\nmore = App()\n")
    for in_source, in_flag in permutations(case.values):
        write(folder, monkeypatch, weak, case.key, in_source)
        assert _used(run, folder, case) == (case.default if weak == "default" else _bare(in_source))
        assert _used(run, folder, case, case.flag, str(in_flag)) == _bare(in_flag)


def _used(run: Run, folder: Path, case: FlagCase, *flags: str) -> Any:
    forget_modules(folder)
    answer = run(*case.command, *flags, "--json")
    assert (answer.code, answer.err) == (0, "")
    value = case.used(answer.objects)
    return Path(value).name if case.key == "url" else value


def _bare(value: Any) -> Any:
    return value.removeprefix("sqlite:") if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--concurency", "3"], "--concurency"),
        (["-c", "0"], "'-c' / '--concurrency'"),
        (["-c", "many"], "'-c' / '--concurrency'"),
        (["--grace", "soon"], "'--grace'"),
        (["--log-format", "loud"], "'--log-format'"),
    ],
)
def test_a_wrong_flag_is_named(run: Run, flags: list[str], message: str) -> None:
    answer = run("worker", "shop", *flags)
    assert answer.code == 2
    assert message in answer.err


def test_an_address_and_an_app_exclude_each_other(run: Run, folder: Path) -> None:
    (folder / "shop.py").write_text("from holdfast import App\njobs = App('sqlite:jobs.db')\n")
    assert run("config", "shop", "--url", "sqlite:other.db").code == 2
