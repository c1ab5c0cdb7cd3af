"""`holdfast manager`: its options, and what it passes on to its workers."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, run_command

from holdfast import App
from holdfast.cli import manager as module
from holdfast.engines import open_engine
from holdfast.errors import InvalidOption
from holdfast.manager import Manager
from holdfast.model.records import WorkerRecord

SHOP = """
from holdfast import App
jobs = App({url!r})

@jobs.task(queue="mails")
async def send() -> None: ...
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def run_with(url: str, *args: str) -> Answer:
        name = f"shop_{abs(hash((str(tmp_path), url)))}"
        (tmp_path / f"{name}.py").write_text(SHOP.format(url=url))
        return run_command(capsys, *(name if word == "SHOP" else word for word in args))

    return run_with


@pytest.fixture
def managers(monkeypatch: pytest.MonkeyPatch) -> list[Manager]:
    """The managers that commands have made. None of them runs."""
    made: list[Manager] = []

    class Made(Manager):
        def run(self, on_ready: object = None) -> None:
            made.append(self)

    monkeypatch.setattr(module, "Manager", Made)
    return made


def test_the_options_of_a_worker_are_passed_on(run: Any, managers: list[Manager]) -> None:
    options = ["-q", "mails:3", "-q", "other", "-c", "7", "--grace", "1m", "--name", "web", "--log-format", "json"]
    answer = run("sqlite:///jobs.db", "manager", "SHOP", "--min", "2", "--max", "5", *options, "--no-lines", "--json")
    assert answer.code == 0, answer.err
    (manager,) = managers
    words = manager.worker_arguments()
    assert words[:4] == [sys.executable, "-m", "holdfast", "worker"]
    assert words[4].startswith("shop_")
    assert words[5:] == [
        *("-q", "mails:3", "-q", "other", "-c", "7", "--grace", "60000ms", "--name", "web"),
        *("--no-lines", "--log-format", "json", "--json"),
    ]
    assert (manager.limits.min, manager.limits.max, manager.limits.slots) == (2, 5, 7)


@pytest.mark.parametrize(("grace", "passed_on"), [("30d", "2592000000ms"), ("123456.7s", "123456700ms"), ("0", "0ms")])
def test_any_grace_is_passed_on_exactly(run: Any, managers: list[Manager], grace: str, passed_on: str) -> None:
    assert run("sqlite:///jobs.db", "manager", "SHOP", "--grace", grace).code == 0
    words = managers[0].worker_arguments()
    assert words[words.index("--grace") + 1] == passed_on


def test_a_fixed_number_of_processes_is_both_limits(run: Any, managers: list[Manager]) -> None:
    assert run("sqlite:///jobs.db", "worker", "SHOP", "--processes", "3").code == 0
    (manager,) = managers
    assert (manager.limits.min, manager.limits.max) == (3, 3)
    assert "--processes" not in manager.worker_arguments()


def test_the_exit_code_says_how_the_manager_has_ended(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, code in (("failure", "No child could start.", 6), ("killed", 2, 7)):
        monkeypatch.setattr(Manager, "run", lambda self, on_ready, ends=(name, value): setattr(self, *ends))
        answer = run("sqlite:///jobs.db", "manager", "SHOP")
        assert answer.code == code
        assert str(value) in answer.err


def test_max_is_at_least_min_if_it_is_not_given(run: Any, managers: list[Manager]) -> None:
    assert run("sqlite:///jobs.db", "manager", "SHOP", "--min", "9").code == 0
    assert managers[0].limits.max == 9


def test_a_max_below_min_is_refused(run: Any) -> None:
    answer = run("sqlite:///jobs.db", "manager", "SHOP", "--min", "3", "--max", "2")
    assert answer.code == 2
    assert "`max` is 2. It must not be lower than `min`, 3." in answer.err


def test_a_memory_store_is_refused(run: Any) -> None:
    answer = run("memory://", "manager", "SHOP")
    assert answer.code == 2
    assert "each would have a memory store of its own" in answer.err


def test_processes_go_with_neither_reload_nor_until_empty(run: Any) -> None:
    for option in ("--reload", "--until-empty"):
        answer = run("sqlite:///jobs.db", "worker", "SHOP", "--processes", "2", option)
        assert answer.code == 2
        assert "--processes goes with neither" in answer.err


def test_status_shows_a_manager_and_its_workers_below_it(run: Any, tmp_path: Path) -> None:
    async def store_records() -> None:
        engine = open_engine(f"sqlite:///{tmp_path}/jobs.db")
        await engine.open()
        for name in ("a-worker", "z-alone"):
            await engine.heartbeat(WorkerRecord(worker=name, queues=("default",), slots=4, busy=1))
        await engine.heartbeat(WorkerRecord(worker="m", children=("a-worker",), min_children=2, max_children=8))
        await engine.close()

    asyncio.run(store_records())
    text = run("", "workers", "list", "--url", "sqlite:///jobs.db").out
    lines = [line.split("  ")[0].rstrip() if not line.startswith(" ") else line[:10] for line in text.splitlines()]
    assert lines[1:] == ["m", "  a-worker", "z-alone"]
    assert "manager of 2 to 8 workers, now 1" in text
    assert "manager of 2 to 8 workers, now 1" in run("", "status", "--url", "sqlite:///jobs.db").out
    shown = {one["name"]: one for one in run("", "workers", "list", "--json", "--url", "sqlite:///jobs.db").objects}
    assert (shown["a-worker"]["manager"], shown["z-alone"]["manager"]) == ("m", "")
    assert (shown["m"]["children"], shown["m"]["min_children"], shown["m"]["max_children"]) == (["a-worker"], 2, 8)


def test_a_manager_alone_is_no_worker(run: Any, tmp_path: Path) -> None:
    async def store_record() -> None:
        engine = open_engine(f"sqlite:///{tmp_path}/jobs.db")
        await engine.open()
        await engine.heartbeat(WorkerRecord(worker="m", min_children=2, max_children=8))
        await engine.close()

    asyncio.run(store_record())
    assert "No worker is alive." in run("", "status", "--url", "sqlite:///jobs.db").out


def test_an_argument_overrides_its_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.toml").write_text("[manager]\nmin = 2\nmax = 6\ninterval = 3\nidle_before_down = '2m'\n")
    limits = App[Any]().manager("shop.jobs").limits
    assert (limits.min, limits.max, limits.idle_before_down_us) == (2, 6, 120_000_000)
    assert App[Any]().manager("shop.jobs", min=7).limits.max == 7
    for wrong in ({"min": 0}, {"max": 0}, {"min": True}, {"min": "2"}, {"interval": 0.01}, {"concurrency": 0}):
        with pytest.raises(InvalidOption):
            App[Any]().manager("shop.jobs", **wrong)
