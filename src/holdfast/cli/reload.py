"""`holdfast worker --reload`: restart when a source file changes. For development.

The files are checked twice a second. When one has changed, the worker stops gently and the process executes its own
command line again: same terminal, same process id.
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from holdfast.runtime import Runtime

INTERVAL_S = 0.5
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
MAX_FILES = 20_000
"""More files than this mean that the command was started in the wrong folder."""

Stamps = dict[str, int]


class FileWatch:
    """Notices when a Python file below a folder changes."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._stamps = self._read_stamps()

    def changed(self) -> str | None:
        """A file that was changed, added or removed; None if there is none."""
        before, after = self._stamps, self._read_stamps()
        return next((file for file in sorted({*before, *after}) if before.get(file) != after.get(file)), None)

    def _read_stamps(self) -> Stamps:
        stamps: Stamps = {}
        for file in self._files():
            try:
                stamps[file] = os.stat(file).st_mtime_ns
            except OSError:
                continue
            if len(stamps) >= MAX_FILES:
                break
        return stamps

    def _files(self) -> Iterator[str]:
        for folder, subfolders, files in os.walk(self._folder):
            subfolders[:] = [name for name in sorted(subfolders) if not _is_skipped(folder, name)]
            yield from (os.path.join(folder, file) for file in files if file.endswith(".py"))

    def wait(self, runtime: Runtime) -> str:
        """Block until a file has changed, and return it."""
        pause = runtime.event()
        while (file := self.changed()) is None:
            pause.wait(INTERVAL_S)
        return file

    def on_change(self, runtime: Runtime, callback: Callable[[str], object]) -> None:
        """Call back once, from a thread, when a file has changed."""
        runtime.thread(lambda: callback(self.wait(runtime)), name="holdfast-reload")


def _is_skipped(folder: str, name: str) -> bool:
    return name.startswith(".") or name in SKIPPED_FOLDERS or os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))


def restart() -> NoReturn:
    """Replace this process by a new one with the same command line."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
