"""Which App, and so which store, a command is about.

TARGET is `module`, which then has exactly one App in it, or `module:name`. The current directory is importable. Where a
store is enough, an address will do: `--url`, which never takes a password, since every user of the machine can read
the arguments of a process.
"""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from holdfast.app import App
from holdfast.errors import ConfigError, EngineUnavailable, HoldfastError, Unsupported


@dataclass(frozen=True, slots=True)
class Found:
    """An App, and what people call it; without a name it is just a way to a store."""

    app: App[Any]
    name: str = ""
    target: str = ""
    """What to give to `holdfast worker`; empty where nothing has to be given."""

    @property
    def start_a_worker(self) -> str:
        """The command that starts a worker for it."""
        if self.name:
            return f"holdfast worker {self.target}".rstrip()
        return "holdfast worker MODULE"


def find(target: str | None, url: str | None) -> Found:
    """By what was typed; else by the environment and the file; else the default store."""
    if target is not None and url is not None:
        raise ConfigError("Give --app or --url, not both: an App has its own address.", key="app", source="--app")
    if url is not None:
        return Found(App(read_url(url)))
    if target is not None:
        return load(target)
    configured = App[Any]().config.app
    return Found(App()) if configured is None else load(configured, configured=True)


def find_app(target: str | None) -> Found:
    """The same where tasks are needed, not only a store."""
    found = find(target, None)
    if not found.name:
        said = "Which App? Name its module (holdfast worker shop.jobs), set HOLDFAST_APP, or `app` in holdfast.toml."
        raise ConfigError(said, key="app", source="TARGET")
    return found


# --- An App by its module ---


def load(target: str, *, configured: bool = False) -> Found:
    """Import a TARGET and what its App names as `modules`."""
    module_name, _, attribute = target.partition(":")
    if not module_name or (":" in target and not attribute):
        raise _wrong(f"{target!r} is no target. Write module, or module:name.")
    module = _import(module_name)
    app, name = _named(module, attribute) if attribute else _only(module)
    with _importing(", ".join(app.modules)):
        app.import_modules()
    return Found(app, f"{module_name}:{name}", "" if configured else target)


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    if name.endswith(".py") or os.sep in name:
        said = name.removesuffix(".py").strip("./").replace(os.sep, ".")
        raise _wrong(f"{name!r} is a file. Name the module: {said}")
    try:
        with _importing(name):
            return import_module(name)
    except ModuleNotFoundError as error:
        raise _wrong(f"There is no module {name!r} in {here} or among what is installed.{_near(name, here)}") from error


def _near(name: str, here: str) -> str:
    modules = [file.removesuffix(".py") for file in os.listdir(here) if file.endswith(".py")]
    near = get_close_matches(name, modules, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


@contextmanager
def _importing(name: str) -> Iterator[None]:
    """What goes wrong in somebody's module is told with its place. That the module itself is missing goes on."""
    try:
        yield
    except HoldfastError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise _failed(name, error) from error
    except Exception as error:
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> ConfigError:
    if isinstance(error, SyntaxError):
        place = f"{os.path.basename(error.filename or '')}, line {error.lineno}"
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(frame.filename)}, line {frame.lineno}"
    return _wrong(f"Importing {name} failed at {place}: {type(error).__name__}: {error}")


def _named(module: ModuleType, name: str) -> tuple[App[Any], str]:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        known = ", ".join(_apps(module)) or "none"
        raise _wrong(f"{module.__name__}:{name} is no App. Apps in {module.__name__}: {known}.")
    return found, name


def _only(module: ModuleType) -> tuple[App[Any], str]:
    apps = _apps(module)
    if len({id(app) for app in apps.values()}) == 1:
        name, app = next(iter(apps.items()))
        return app, name
    if not apps:
        raise _wrong(f"There is no App in {module.__name__}. It needs one, such as jobs = App(...).")
    raise _wrong(f"There are several Apps in {module.__name__}. Name one: {module.__name__}:{next(iter(apps))}")


def _apps(module: ModuleType) -> dict[str, App[Any]]:
    return {name: value for name, value in vars(module).items() if isinstance(value, App)}


def _wrong(said: str) -> ConfigError:
    return ConfigError(said, key="app", source="TARGET")


# --- A store by its address ---


def read_url(given: str) -> str:
    """The address that `--url` names: itself, or the content of a variable."""
    if given.startswith("env:"):
        variable = given.removeprefix("env:")
        if not (address := os.environ.get(variable)):
            raise ConfigError(f"--url {given}: the variable {variable} is not set.", key="url", source="--url")
        return address
    parts = urlsplit(given)
    if parts.password or any("password" in key.lower() for key in parse_qs(parts.query)):
        said = (
            "--url has a password in it, and everybody on this machine can read the arguments of a process. "
            "Put the address into a variable and give its name: --url env:NAME"
        )
        raise ConfigError(said, key="url", source="--url")
    return given


@contextmanager
def opened(found: Found, *, create: bool = False) -> Iterator[App[Any]]:
    """The App with its store open. Only what writes may `create` a store: looking at one must not make it."""
    app = found.app
    can = app.engine.capabilities
    if not can.shared_between_processes:
        said = f"{app.address} lives inside one process, so no command can see its jobs. Use SQLite to look at them."
        raise Unsupported(said, capability="shared_between_processes", engine=app.engine.scheme)
    if not create and not can.shared_between_hosts and not app.runtime.fs.exists(app.address):
        said = f"There is no store at {app.address} yet. The first enqueue or worker makes it: {found.start_a_worker}"
        raise EngineUnavailable(said, engine=app.engine.scheme)
    with app:
        yield app
