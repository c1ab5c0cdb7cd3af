"""`holdfast worker` beside an application's own logging configuration, as real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import App

SHOP = """
import logging, logging.config
from contextlib import asynccontextmanager
from holdfast import App

{early}

@asynccontextmanager
async def lifespan():
    exec({late!r})
    yield None

jobs = App("sqlite:///jobs.db", lifespan=lifespan)

@jobs.task
def levels() -> None:
    print("root level", logging.getLevelName(logging.getLogger().level), flush=True)
    logging.getLogger("shop").warning("from the handler")

@jobs.task(max_attempts=1)
def breaks() -> None:
    raise ValueError("card expired")
"""

DICT_CONFIG = """
logging.config.dictConfig({
    "version": 1,
    "formatters": {"own": {"format": "own %(name)s %(levelname)s %(message)s"}},
    "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own"}},
    "root": {"handlers": ["own"], "level": "WARNING"},
})
"""
BASIC_CONFIG = 'logging.basicConfig(format="own %(name)s %(levelname)s %(message)s", level=logging.ERROR)'
OWN_HANDLER = """
own = logging.StreamHandler()
own.setFormatter(logging.Formatter("own %(name)s %(levelname)s %(message)s"))
logging.getLogger().addHandler(own)
"""
UVICORN = """
logging.config.dictConfig({
    "version": 1,
    "disable_existing_loggers": True,
    "formatters": {"own": {"format": "own %(name)s %(levelname)s %(message)s"}},
    "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own"}},
    "loggers": {
        "uvicorn": {"handlers": ["own"], "level": "INFO", "propagate": False},
        "shop": {"handlers": ["own"], "level": "INFO"},
    },
})
"""


def work(folder: Path, early: str = "", *args: str, late: str = "", **environment: str) -> list[str]:
    """The lines that a worker writes to standard output and error while it runs one job of each task."""
    (folder / "shop.py").write_text(SHOP.format(early=early, late=late))
    with App[object](f"sqlite:///{folder}/jobs.db") as app:
        app.client.task("levels").enqueue()
        app.client.task("breaks").enqueue()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast", "worker", "shop", "-c", "1", "--until-empty", *args],
        cwd=folder,
        env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    lines = ended.stdout.splitlines()
    assert ended.returncode == 0, lines
    return lines


def lines_with(lines: list[str], *words: str) -> list[str]:
    return [line for line in lines if all(word in line for word in words)]


@pytest.mark.parametrize(
    ("early", "root_level"), [(DICT_CONFIG, "WARNING"), (BASIC_CONFIG, "ERROR"), (OWN_HANDLER, "WARNING")]
)
def test_a_failed_job_is_logged_once_by_the_handlers_of_the_application(
    tmp_path: Path, early: str, root_level: str
) -> None:
    lines = work(tmp_path, early)
    assert lines_with(lines, f"root level {root_level}")
    (failed,) = lines_with(lines, "failed", "card expired")
    assert failed.startswith("own holdfast.worker ERROR")
    assert not lines_with(lines, "works on"), "the level of the application counts"
    if root_level == "WARNING":
        assert lines_with(lines, "from the handler") == ["own shop WARNING from the handler"]


def test_a_configuration_without_root_leaves_holdfast_its_own_lines(tmp_path: Path) -> None:
    lines = work(tmp_path, UVICORN)
    (failed,) = lines_with(lines, "failed", "card expired")
    assert "ERROR holdfast.worker: " in failed
    assert lines_with(lines, "from the handler") == ["own shop WARNING from the handler"]


def test_without_any_configuration_the_lines_of_all_loggers_name_their_job(tmp_path: Path) -> None:
    lines = work(tmp_path)
    assert lines_with(lines, "root level WARNING")
    assert lines_with(lines, "INFO holdfast.worker", "works on")
    assert len(lines_with(lines, "ERROR holdfast.worker", "card expired")) == 1
    assert len(lines_with(lines, "WARNING shop: from the handler [levels ", "attempt 1]")) == 1


@pytest.mark.parametrize("late", [DICT_CONFIG, BASIC_CONFIG])
def test_a_configuration_made_in_the_lifespan_replaces_that_of_the_command(tmp_path: Path, late: str) -> None:
    lines = work(tmp_path, late=late)
    (failed,) = lines_with(lines, "failed", "card expired")
    assert failed.startswith("own holdfast.worker ERROR")


def test_log_format_none_leaves_the_log_as_python_has_it(tmp_path: Path) -> None:
    lines = work(tmp_path, "", "--log-format", "none")
    assert "from the handler" in lines
    assert not lines_with(lines, "works on")


def test_log_format_on_the_command_line_beats_the_setting(tmp_path: Path) -> None:
    lines = work(tmp_path, "", "--log-format", "json", HOLDFAST_LOG_FORMAT="none")
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    (failed,) = [line for line in logged if line["level"] == "error"]
    assert (failed["task"], failed["attempt"]) == ("breaks", 1)


def test_log_format_says_if_the_application_has_its_own_logging(tmp_path: Path) -> None:
    lines = work(tmp_path, BASIC_CONFIG, "--log-format", "json")
    assert lines_with(lines, "holdfast: --log-format json has no effect")
