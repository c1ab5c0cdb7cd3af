"""Which App and which store a command uses, and its message if there is none."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from command_line import Answer, Run, forget_modules

from holdfast import App
from holdfast.cli.root import root
from holdfast.errors import EngineUnavailable

SHOP = "from holdfast import App\njobs = App('sqlite:///jobs.db')\n"


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in an empty folder, with the modules of that folder imported anew."""
    monkeypatch.chdir(tmp_path)

    def run_in_folder(*args: str) -> Answer:
        forget_modules(tmp_path)
        return run(*args)

    return run_in_folder


def groups() -> set[str]:
    context = click.Context(root)
    return {name for name in root.list_commands(context) if isinstance(root.get_command(context, name), click.Group)}


def commands() -> list[tuple[str, ...]]:
    context = click.Context(root)
    found: list[tuple[str, ...]] = [()]
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        found.append((name,))
        if isinstance(command, click.Group):
            found += [(name, inner) for inner in command.list_commands(context)]
    return found


NO_STORE = ((), ("worker",), ("manager",), ("check",), ("demo",), ("file", "compact"), ("completion",))
"""They have no `--url`: they need the tasks of an App, or no store at all."""


def place(answer: Answer) -> str:
    assert answer.code == 0, answer.err
    path: str = answer.objects[0]["place"]
    return path


def make(url: str) -> None:
    App[Any](url).migrate()


# --- By module ---


def test_a_module_stands_for_the_only_app_in_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one_app.py").write_text(SHOP + "same = jobs\n")
    make("sqlite:///jobs.db")
    assert place(run("status", "--json", "--app", "one_app")) == str(tmp_path / "jobs.db")


def test_of_several_apps_one_has_to_be_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "two_apps.py").write_text(SHOP + "other = App('sqlite:///other.db')\n")
    make("sqlite:///other.db")
    answer = run("status", "--app", "two_apps")
    assert (answer.code, "two_apps:jobs" in answer.err) == (2, True)
    assert place(run("status", "--json", "--app", "two_apps:other")) == str(tmp_path / "other.db")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module", "There is no module 'no_such_module'"),
        ("shp", "Did you mean 'shop'?"),
        ("shop.py", "Name the module: shop"),
        ("shop:nothing", "is not an App"),
        ("shop:", "is not a target"),
        ("json", "There is no App in json"),
        ("broken", "broken.py, line 3: ZeroDivisionError"),
        ("unreadable", "unreadable.py, line 1: SyntaxError"),
        ("lacking", "lacking.py, line 1: ModuleNotFoundError: No module named 'not_installed'"),
    ],
)
def test_a_target_that_is_none_exits_with_2_and_says_why(run: Run, tmp_path: Path, target: str, message: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "broken.py").write_text("\n\n1 / 0\n")
    (tmp_path / "unreadable.py").write_text("def (:\n")
    (tmp_path / "lacking.py").write_text("import not_installed\n")
    answer = run("status", "--app", target)
    assert answer.code == 2
    assert message in answer.err
    assert "Traceback" not in answer.err


def test_the_modules_an_app_names_are_imported(run: Run, tmp_path: Path) -> None:
    (tmp_path / "spread.py").write_text(
        "from holdfast import App\njobs = App('sqlite:///jobs.db', modules=['spread_more'])\n"
    )
    (tmp_path / "spread_more.py").write_text("from spread import jobs\n@jobs.task\ndef found() -> None: ...\n")
    assert run("enqueue", "found", "--app", "spread").code == 0


# --- By environment and file ---


def test_the_app_comes_from_the_environment_or_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "env_shop.py").write_text(SHOP)
    make("sqlite:///jobs.db")
    (tmp_path / "holdfast.toml").write_text('app = "env_shop"\n')
    assert place(run("status", "--json")) == str(tmp_path / "jobs.db")
    (tmp_path / "holdfast.toml").unlink()
    monkeypatch.setenv("HOLDFAST_APP", "env_shop:jobs")
    assert place(run("status", "--json")) == str(tmp_path / "jobs.db")


def test_the_address_comes_from_the_environment_or_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("sqlite:///file.db")
    make("sqlite:///environment.db")
    (tmp_path / "holdfast.toml").write_text('url = "sqlite:///file.db"\n')
    assert place(run("status", "--json")) == str(tmp_path / "file.db")
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///environment.db")
    assert place(run("status", "--json")) == str(tmp_path / "environment.db")


def test_a_wrong_setting_exits_with_2_and_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("[worker]\nconcurency = 3\n")
    answer = run("status")
    assert answer.code == 2
    assert "worker.concurrency" in answer.err


# --- By address ---


def test_an_address_may_stand_in_a_variable(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("sqlite:///named.db")
    monkeypatch.setenv("MY_STORE", "sqlite:///named.db")
    assert place(run("status", "--json", "--url", "env:MY_STORE")) == str(tmp_path / "named.db")
    assert run("status", "--url", "env:NOT_SET").code == 2


@pytest.mark.parametrize(
    "url", ["postgresql://me:s3cret@host/shop", "postgresql:///shop?password=s3cret", "redis://:s3cret@host"]
)
def test_a_password_on_the_command_line_is_refused_and_not_repeated(run: Run, url: str) -> None:
    answer = run("status", "--url", url)
    assert answer.code == 2
    assert "env:NAME" in answer.err
    assert "s3cret" not in answer.err + answer.out


def test_an_app_and_an_address_exclude_each_other(run: Run, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    assert run("status", "--app", "shop", "--url", "sqlite:///x.db").code == 2


@pytest.mark.parametrize("url", ["sqlite:///nowhere", "file:nowhere"])
@pytest.mark.parametrize("command", [["status"], ["jobs", "list"], ["queues", "pause", "mails"], ["workers", "list"]])
def test_a_command_that_reads_creates_no_store_and_exits_with_3(
    run: Run, tmp_path: Path, command: list[str], url: str
) -> None:
    answer = run(*command, "--url", url)
    assert answer.code == 3
    assert str(tmp_path / "nowhere") in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_reads_creates_no_store_in_a_folder_that_exists(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert run("status", "--url", "file:mine").code == 3
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_file_store_is_shown_with_its_whole_path_and_its_promise(run: Run, tmp_path: Path) -> None:
    make("file:jobs")
    assert place(run("status", "--json", "--url", "file:jobs")) == str(tmp_path / "jobs")
    assert "durable (every commit synced)" in run("status", "--url", "file:jobs").out


@pytest.mark.parametrize("what", ["removed", "emptied"])
def test_status_does_not_call_a_store_empty_whose_file_was_removed(run: Run, tmp_path: Path, what: str) -> None:
    jobs = App(f"sqlite:///{tmp_path}/jobs.db")

    @jobs.task
    def work() -> None: ...

    with jobs:
        work.enqueue()
        for suffix in ("", "-wal", "-shm"):
            (tmp_path / f"jobs.db{suffix}").unlink()
        with pytest.raises(EngineUnavailable, match="moved or removed"):
            work.enqueue()
        if what == "emptied":
            (tmp_path / "jobs.db").touch()
        answer = run("status", "--url", f"sqlite:///{tmp_path}/jobs.db")
    assert answer.code == 3
    assert "was moved or removed" in answer.err
    assert "no job has been enqueued" not in answer.out


def test_a_store_that_cannot_be_opened_exits_with_3(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a_folder.db").mkdir()
    answer = run("status", "--url", "sqlite:///a_folder.db")
    assert answer.code == 3
    assert "Traceback" not in answer.err


def test_a_store_inside_one_process_is_refused(run: Run) -> None:
    answer = run("status", "--url", "memory://")
    assert answer.code == 2
    assert "exists in one process only" in answer.err


def test_an_address_of_no_engine_exits_with_2(run: Run) -> None:
    assert run("status", "--url", "carrier-pigeon://loft").code == 2


# --- Which namespace ---


def make_namespaces(folder: Path) -> str:
    """Two namespaces in one folder: one job in `first`, two in `second`."""
    url = f"file://{folder}/stores"
    for namespace, ids in (("first", ["one"]), ("second", ["two", "three"])):
        app: App[Any] = App(url, namespace=namespace, durability="none")
        with app:
            for job_id in ids:
                app.queue("scans", int).enqueue(1, id=job_id)
    return url


def test_a_namespace_goes_with_an_address(run: Run, tmp_path: Path) -> None:
    url = make_namespaces(tmp_path)
    for namespace, ids in (("first", {"one"}), ("second", {"two", "three"})):
        answer = run("jobs", "list", "--json", "--url", url, "--namespace", namespace)
        assert {job["id"] for job in answer.objects} == ids
    assert run("jobs", "list", "--url", url).code == 3, "there is no store in the default namespace"


def test_a_namespace_goes_with_the_address_of_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", make_namespaces(tmp_path))
    assert [job["id"] for job in run("jobs", "list", "--json", "--namespace", "first").objects] == ["one"]


@pytest.mark.parametrize("by", ["--app", "HOLDFAST_APP"])
def test_a_namespace_is_refused_beside_an_app(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    (tmp_path / "shop_app.py").write_text(SHOP)
    if by == "HOLDFAST_APP":
        monkeypatch.setenv(by, "shop_app")
    answer = run("status", "--namespace", "first", *(["--app", "shop_app"] if by == "--app" else []))
    assert (answer.code, answer.out) == (2, "")
    assert "--namespace goes with --url: the App shop_app has its own namespace" in answer.err


def test_a_namespace_that_no_engine_takes_exits_with_2(run: Run, tmp_path: Path) -> None:
    assert run("status", "--url", make_namespaces(tmp_path), "--namespace", "No such").code == 2


def test_every_command_on_a_store_takes_a_namespace(run: Run) -> None:
    on_store = [c for c in commands() if c not in NO_STORE and " ".join(c) not in groups()]
    assert [command for command in on_store if "--namespace" not in run(*command, "--help").out] == []


# --- Everywhere ---


def test_debug_shows_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    answer = run("status", "--url", "env:NOT_SET")
    assert answer.code == 2
    assert "Traceback" in answer.err


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_a_help_page_with_an_example(run: Run, command: tuple[str, ...]) -> None:
    answer = run(*command, "--help")
    assert answer.code == 0
    assert "Example" in answer.out
    assert f"holdfast {' '.join(command)}".rstrip() in answer.out.partition("Example")[2]


@pytest.mark.parametrize("command", [c for c in commands() if c not in ((), ("demo",))], ids=" ".join)
def test_every_command_that_does_something_prints_json(run: Run, command: tuple[str, ...]) -> None:
    if len(command) > 1 or command[0] not in groups():
        assert "--json" in run(*command, "--help").out


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version").out.startswith("holdfast ")


def test_an_unknown_command_exits_with_2(run: Run) -> None:
    assert run("levitate").code == 2


def test_the_package_is_the_command_and_importing_it_loads_neither_click_nor_rich(tmp_path: Path) -> None:
    script = "import sys, holdfast; print({'click', 'rich'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert loaded.stdout == "set()\n"
    command = subprocess.run(
        [sys.executable, "-m", "holdfast", "--version"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
        cwd=tmp_path,
    )
    assert command.stdout.startswith("holdfast ")


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_a_worker_that_starts_while_its_server_is_away_says_so_and_exits_with_3(
    run: Run, tmp_path: Path, scheme: str
) -> None:
    (tmp_path / "away.py").write_text(
        f"from holdfast import App\njobs = App('{scheme}://user:secret@127.0.0.1:1/0')\n@jobs.task\ndef t(): ...\n"
    )
    answer = run("worker", "away")
    assert answer.code == 3
    assert "127.0.0.1:1/0 cannot be reached" in answer.err
    assert "secret" not in answer.err


@pytest.mark.parametrize("command", ["worker", "manager", "config"])
def test_two_different_apps_for_one_command_are_refused(run: Run, command: str) -> None:
    answer = run(command, "shop.jobs", "--app", "other.jobs")
    assert answer.code == 2
    assert "Which App: shop.jobs, or --app other.jobs?" in answer.err
