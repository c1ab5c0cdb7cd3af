"""`holdfast worker --reload`: start anew when a source file changes. For development.

The files are looked at twice a second. When one has changed, the worker stops gently and the process becomes a new one
by the same command line: same terminal, same process id, nothing left over.
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from holdfast.runtime import Runtime

INTERVAL = 0.5
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
MOST = 20_000
"""Files. Whoever has more has started it in the wrong folder."""

Stamps = dict[str, int]


class Watch:
    """The Python files below a folder, and whether one of them has changed since."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._stamps = self._look()

    def changed(self) -> str | None:
        """The file that has changed, come or gone; None: all is as it was."""
        before, after = self._stamps, self._look()
        return next((file for file in sorted({*before, *after}) if before.get(file) != after.get(file)), None)

    def _look(self) -> Stamps:
        stamps: Stamps = {}
        for file in self._files():
            try:
                stamps[file] = os.stat(file).st_mtime_ns
            except OSError:
                continue
            if len(stamps) >= MOST:
                break
        return stamps

    def _files(self) -> Iterator[str]:
        for folder, inside, files in os.walk(self._folder):
            inside[:] = [name for name in sorted(inside) if not _is_foreign(folder, name)]
            yield from (os.path.join(folder, file) for file in files if file.endswith(".py"))

    def wait(self, runtime: Runtime) -> str:
        """Until one has changed."""
        pause = runtime.event()
        while (file := self.changed()) is None:
            pause.wait(INTERVAL)
        return file

    def then(self, runtime: Runtime, act: Callable[[str], object]) -> None:
        """Do something, once, when one has changed, without waiting for it here."""
        runtime.thread(lambda: act(self.wait(runtime)), name="holdfast-reload")


def _is_foreign(folder: str, name: str) -> bool:
    return name.startswith(".") or name in SKIPPED or os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))


def start_anew() -> NoReturn:
    """The same command line, from the beginning."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
