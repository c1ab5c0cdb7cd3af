"""In the child: the modules of the worker, the App that declares the task, and the task itself.

The child imports the module of the task's function and, if that does not declare the task, the module that does; then
the modules in which the App's middleware and lifespan are defined, and the App's `modules`. It does not import the
program that started the worker. So it checks that the App has the same generator middleware here: middleware that only
the main program registers would silently be left out.

A task of the main module is found by the path of that module, or by its name if it was started with `python -m`. The
module is then imported under another name than `__main__`, so its `if __name__ == "__main__"` block does not run.
"""

import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from holdfast.core import isolated
from holdfast.errors import UsageError
from holdfast.isolation.frames import ChildSetup, TaskPlace
from holdfast.isolation.surrounds import is_surround, surround_name

MAIN = "__holdfast_main__"
"""The name of the main module of the worker's program, in the child."""


class LoadedApp:
    """The App of the worker, in this process."""

    def __init__(self, setup: ChildSetup) -> None:
        self._setup = setup
        self._import_task(setup.task)
        for module in setup.modules:
            self._import(module)
        self.app = self._find_app(setup.task)
        self.app.import_modules()
        self._check_surrounds()
        self.app._store.limit_bytes(setup.max_payload_bytes, setup.max_result_bytes)

    def task(self, place: TaskPlace) -> Any:
        """The task of a call."""
        if place.name not in self.app.registry:
            self._import_task(place)
        return self.app.registry[place.name]

    def _import_task(self, place: TaskPlace) -> None:
        self._import(place.module)
        if place.declared_in and not any(place.name in app.registry for app in isolated.apps()):
            self._import(place.declared_in)  # the function is one of a library

    def _import(self, module: str) -> None:
        if module and module != "__main__":
            import_module(module)
        elif self._setup.main_module:
            import_module(self._setup.main_module)
        elif MAIN not in sys.modules:
            loader = SourceFileLoader(MAIN, self._setup.main_path)
            spec = spec_from_file_location(MAIN, self._setup.main_path, loader=loader)
            assert spec is not None, "A loader was given."
            main = sys.modules[MAIN] = module_from_spec(spec)
            loader.exec_module(main)

    def _find_app(self, place: TaskPlace) -> Any:
        found = [app for app in isolated.apps() if place.name in app.registry]
        if not found:
            raise UsageError(
                f"The process of the handler has imported {place.module or self._setup.main_path!r} and found no task "
                f"{place.name!r} there. Declare the task in this module, not in a function or an `if __name__` block."
            )
        same = [app for app in found if _surrounds_of(app) == self._setup.surrounds]
        return (same or found)[0]

    def _check_surrounds(self) -> None:
        here, there = _surrounds_of(self.app), self._setup.surrounds
        if here != there:
            raise UsageError(
                "The generator middleware of the App in the process of the handler is not that of its worker: "
                f"{', '.join(here) or 'none'} instead of {', '.join(there) or 'none'}. Register it in a module that "
                "the task's module imports, or name its module in App(modules=[...])."
            )


def _surrounds_of(app: Any) -> tuple[str, ...]:
    return tuple(surround_name(one) for one in app.middlewares if is_surround(one))
