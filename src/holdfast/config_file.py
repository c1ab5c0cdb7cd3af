"""The configuration file: `holdfast.toml`, or the table `[tool.holdfast]` of `pyproject.toml`.

tomllib reports no line numbers for values. `ConfigFile.line_of` finds the line of a key by parsing beginnings of the
text: the key is set by the first statement that adds it. This takes some milliseconds and is done for errors and for
`holdfast config` only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.runtime import Runtime

FILE = "holdfast.toml"
PYPROJECT = "pyproject.toml"
PYPROJECT_TABLE = ("tool", "holdfast")


class ConfigFile:
    """A file and its settings. `table`: the path of the table that has them; empty: the whole file."""

    def __init__(self, name: str, text: str, table: tuple[str, ...] = ()) -> None:
        self.name = name
        self._lines = text.split("\n")
        self._table = table
        self._beginnings: dict[int, Mapping[str, Any] | None] = {}
        self.values = self._values(text)

    def _values(self, text: str) -> Mapping[str, object]:
        import tomllib

        try:
            found: Any = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{self.name} cannot be read: {error}.", key="", source=self.name) from error
        for part in self._table:
            found = found.get(part, {})
            if not isinstance(found, Mapping):
                key = ".".join(self._table)
                raise ConfigError(f"{self.name}: `{key}` must be a table.", key=key, source=self.name)
        values: Mapping[str, object] = found
        return values

    def place_of(self, *path: str) -> str:
        """The file and the line of a key, for people: `holdfast.toml, line 3`."""
        return f"{self.name}, line {self.line_of(*path)}"

    def line_of(self, *path: str) -> int:
        """The line, counted from 1, on which the statement begins that sets the key. The key must be in the file."""
        low, high = 1, len(self._lines)
        while low < high:
            middle = (low + high) // 2
            if self._has_key(middle, (*self._table, *path)):
                high = middle
            else:
                low = middle + 1
        return low

    def _has_key(self, count: int, path: tuple[str, ...]) -> bool:
        """True if the first `count` lines, with the rest of their last statement, set the key."""
        while (found := self._beginning(count)) is None:
            count += 1
        value: Any = found
        for part in path:
            if not isinstance(value, Mapping) or part not in value:
                return False
            value = value[part]
        return True

    def _beginning(self, count: int) -> Mapping[str, Any] | None:
        """The values of the first `count` lines; None if a statement goes on after them."""
        import tomllib

        if count not in self._beginnings:
            try:
                self._beginnings[count] = tomllib.loads("\n".join(self._lines[:count]))
            except tomllib.TOMLDecodeError:
                self._beginnings[count] = None
        return self._beginnings[count]


def read_config_file(runtime: Runtime, folder: Path) -> ConfigFile | None:
    """The file of a folder. If there is `holdfast.toml`, `pyproject.toml` is not read."""
    if (folder / FILE).is_file():
        return ConfigFile(FILE, _text(runtime, folder / FILE))
    if (folder / PYPROJECT).is_file():
        return ConfigFile(PYPROJECT, _text(runtime, folder / PYPROJECT), PYPROJECT_TABLE)
    return None


def has_unread_table(runtime: Runtime, folder: Path) -> bool:
    """True if `pyproject.toml` has settings too, which are not read because there is `holdfast.toml`."""
    if not (folder / FILE).is_file() or not (folder / PYPROJECT).is_file():
        return False
    try:
        return bool(ConfigFile(PYPROJECT, _text(runtime, folder / PYPROJECT), PYPROJECT_TABLE).values)
    except ConfigError:  # it is not read, so its errors are nothing to report
        return False


def _text(runtime: Runtime, path: Path) -> str:
    try:
        # Links are followed: a mounted configuration is often a link, and a user who can replace the link can also
        # replace the file.
        return runtime.fs.read_bytes(path.resolve()).decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} cannot be read: {error}.", key="", source=path.name) from error
    except OSError as error:
        raise ConfigError(f"{path.name} cannot be read: {error.strerror}.", key="", source=path.name) from error
