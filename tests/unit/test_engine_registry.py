"""The registry of engines: classes by address, tables of settings, shown addresses, the switch for fast paths."""

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

from holdfast import ConfigError
from holdfast.config import load
from holdfast.engines import engine_class, open_engine, settings_tables
from holdfast.engines.memory import MemoryEngine
from holdfast.readers import whole
from holdfast.runtime import SystemRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfSettings:
    table: ClassVar[str] = "shelf"

    boards: Annotated[int, whole(1)] = 3


class ShelfEngine(MemoryEngine):
    """An engine of a third party, with a table of settings and fast paths."""

    scheme = "shelf"
    settings = ShelfSettings

    def __init__(self, url: str, runtime: Any, *, boards: int = 3, fast_paths: bool = True) -> None:
        super().__init__(url, runtime)
        self.boards, self.fast_paths = boards, fast_paths


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("shelf", f"{__name__}:ShelfEngine", "holdfast.engines")

    def installed(*, group: str, name: str | None = None) -> list[EntryPoint]:
        return [entry] if group == entry.group and name in (None, entry.name) else []

    monkeypatch.setattr("importlib.metadata.entry_points", installed)


def test_reading_the_tables_of_all_engines_imports_no_driver() -> None:
    code = (
        "import sys\nfrom holdfast.engines import settings_tables\n"
        "assert sorted(settings_tables()) == ['file', 'postgres', 'redis', 'sqlite']\n"
        "assert not {'asyncpg', 'hiredis', 'psycopg', 'redis', 'sqlite3'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_address_is_shown_by_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = "postgresql+asyncpg://me:secret@db/shop?sslpassword=hidden"
    assert engine_class(url).shown_address(url) == "postgresql+asyncpg://me:***@db/shop?sslpassword=***"
    url = "rediss://me:secret@cache/1?ssl_password=hidden"
    assert engine_class(url).shown_address(url) == "rediss://me:***@cache/1?ssl_password=***"
    assert engine_class("sqlite:jobs.db").shown_address("sqlite:jobs.db") == str(tmp_path / "jobs.db")


def test_the_switch_for_fast_paths_reaches_only_engines_that_have_it(shelf: None) -> None:
    assert open_engine("memory://", fast_paths=False).scheme == "memory"
    general, fast = open_engine("shelf://", fast_paths=False), open_engine("shelf://")
    assert isinstance(general, ShelfEngine)
    assert isinstance(fast, ShelfEngine)
    assert (general.fast_paths, fast.fast_paths) == (False, True)


def test_an_installed_engine_brings_its_own_table_of_settings(shelf: None, tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("[shelf]\nboards = 4", encoding="utf-8")
    tables = settings_tables()
    config = load(SystemRuntime(), engine_tables=tables, environ={}, folder=tmp_path)
    assert config.engine(ShelfSettings).boards == 4
    environ = {"HOLDFAST_SHELF_BOARDS": "5"}
    assert (
        load(SystemRuntime(), engine_tables=tables, environ=environ, folder=tmp_path).engine(ShelfSettings).boards == 5
    )
    (tmp_path / "holdfast.toml").write_text("[shelf]\nbooks = 4", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"shelf\.books"):
        load(SystemRuntime(), engine_tables=tables, environ={}, folder=tmp_path)


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("file:~/jobs", "jobs"),
        ("file:~", ""),
        ("sqlite:~/jobs.db", "jobs.db"),
        ("sqlite:///~/jobs.db", "jobs.db"),
    ],
)
def test_a_tilde_is_the_home_of_the_user(
    address: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shell sees an address in a file or in code: a folder named ~ would be made."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert engine_class(address).shown_address(address) == str(tmp_path / path)


@pytest.mark.parametrize("address", ["file:~nobody-has-this-name/jobs", "sqlite:~nobody-has-this-name/jobs.db"])
def test_the_home_of_a_user_who_does_not_exist_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="the home of ~nobody-has-this-name is not known"):
        open_engine(address)
