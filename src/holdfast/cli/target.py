"""Which App, and which store, a command works on.

TARGET is `module`, with exactly one App in it, or `module:name`. The current directory is importable. A command that
needs only a store also takes an address, `--url`. It refuses an address with a password, because every user of the
machine can read the arguments of a process.
"""

import os
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any

import click

import holdfast
from holdfast.app import App
from holdfast.cli.exits import Invocation
from holdfast.cli.options import NAMESPACE
from holdfast.errors import ConfigError, EngineUnavailable, HoldfastError, Unsupported, UsageError
from holdfast.model.address import mask_password
from holdfast.model.findings import START_WORKER
from holdfast.runtime import Runtime

VARIABLE = "env:"
"""`--url env:NAME` is the address in the variable NAME."""


@dataclass(frozen=True, slots=True)
class TargetApp:
    """An App and its `module:name`. Without a name it only gives access to a store and has no tasks."""

    app: App[Any]
    name: str = ""
    target: str = ""
    """The argument for `holdfast worker`; empty if it needs none, because the configuration names the App."""
    command: str = "holdfast worker"
    """Starts a worker, with the target as its argument."""
    queues: tuple[str, ...] = ()
    """The queues of a worker for which none are named. Empty: those of the App's tasks."""

    @property
    def worker_command(self) -> str:
        """The command that starts a worker for it."""
        if self.name:
            return f"{self.command} {self.target}".rstrip()
        return START_WORKER


def find(target: str | None, url: str | None) -> TargetApp:
    """From the command line; else from the program that embeds it, such as Django's `manage.py`; else from the
    environment or the configuration file; else the default store."""
    if target is not None and url is not None:
        raise ConfigError("Give --app or --url, not both: an App has its own address.", key="app", source="--app")
    context = click.get_current_context(silent=True)
    invocation = None if context is None else context.find_object(Invocation)
    found = _find(target, url, context, invocation)
    if invocation is not None:
        invocation.worker_command = found.worker_command
        options = {"--app": found.target or target, "--url": url, "--namespace": _namespace(context)}
        invocation.store_options = "".join(f" {name} {shlex.quote(value)}" for name, value in options.items() if value)
    return found


def _namespace(context: click.Context | None) -> str | None:
    namespace: str | None = None if context is None else context.meta.get(NAMESPACE)
    return namespace


def _find(
    target: str | None, url: str | None, context: click.Context | None, invocation: Invocation | None
) -> TargetApp:
    namespace = _namespace(context)
    if url is not None:
        app = _store_app(read_url(url), namespace)
        app.flags["url"] = f"--url {url}" if url.startswith(VARIABLE) else "--url"
        return TargetApp(app)
    embedded = None if invocation is None else invocation.default
    if namespace is not None and (target is not None or embedded is not None):
        raise _namespace_of_app(target or (embedded.name if embedded is not None else ""))
    if target is not None:
        return load(target) if embedded is None else _load_beside(embedded, target)
    if embedded is not None:
        return embedded
    configured = App[Any]().config.app
    if configured is not None and namespace is not None:
        raise _namespace_of_app(configured)
    return TargetApp(_store_app(None, namespace)) if configured is None else load(configured, configured=True)


def _store_app(url: str | None, namespace: str | None) -> App[Any]:
    """An App without tasks, for its store only."""
    app = App[Any](url, namespace=namespace)
    if namespace is not None:
        app.flags["namespace"] = "--namespace"
    return app


def _namespace_of_app(name: str) -> ConfigError:
    message = f"--namespace goes with --url: the App {name} has its own namespace, which its workers use."
    return ConfigError(message, key="namespace", source="--namespace")


def find_app(target: str | None) -> TargetApp:
    """The same for a command that needs the tasks, not only the store."""
    result = find(target, None)
    if not result.name:
        message = "Which App? Name its module (holdfast worker shop.jobs), set HOLDFAST_APP, or `app` in holdfast.toml."
        raise ConfigError(message, key="app", source="TARGET")
    return result


def only_target(where: str | None, target: str | None) -> str | None:
    """The App of a command that takes it as TARGET or as `--app TARGET`."""
    if where is not None and target is not None and where != target:
        raise click.UsageError(f"Which App: {where}, or --app {target}?")
    return where or target


# --- An App by its module ---


def load(target: str, *, configured: bool = False) -> TargetApp:
    """Import a TARGET and the `modules` of its App."""
    module_name, _, attribute = target.partition(":")
    if not module_name or (":" in target and not attribute):
        raise _target_error(f"{target!r} is not a target. Write module, or module:name.")
    module = _import(module_name)
    app, name = _app_by_name(module, attribute) if attribute else _only_app(module)
    with _import_errors(", ".join(app.modules)):
        app.import_modules()
    return TargetApp(app, f"{module_name}:{name}", "" if configured else target)


def _load_beside(embedded: TargetApp, target: str) -> TargetApp:
    """Import a TARGET in a program that has an App of its own."""
    try:
        return load(target)
    except ConfigError as error:
        message = f"{error} You can also leave out {target!r}: then the App is {embedded.name}."
        raise _target_error(message) from error


def _import(name: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    if name.endswith(".py") or os.sep in name:
        module = name.removesuffix(".py").strip("./").replace(os.sep, ".")
        raise _target_error(f"{name!r} is a file. Name the module: {module}")
    try:
        with _import_errors(name):
            return import_module(name)
    except ModuleNotFoundError as error:
        hint = _similar_module(name, folder)
        raise _target_error(
            f"There is no module {name!r} in {folder} or among the installed packages.{hint}"
        ) from error


def _similar_module(name: str, folder: str) -> str:
    modules = [file.removesuffix(".py") for file in os.listdir(folder) if file.endswith(".py")]
    similar = get_close_matches(name, modules, n=1)
    return f" Did you mean {similar[0]!r}?" if similar else ""


@contextmanager
def _import_errors(name: str) -> Iterator[None]:
    """Turn an error in the user's module into a `ConfigError` with its place.

    If the module itself does not exist, `ModuleNotFoundError` is raised as it is.
    """
    try:
        yield
    except ConfigError:
        raise  # it names its source
    except UsageError as error:  # such as an option that a task cannot have
        raise _import_failed(name, error) from error
    except HoldfastError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise _import_failed(name, error) from error
    except Exception as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: Exception) -> ConfigError:
    if isinstance(error, SyntaxError):
        place = f"{_shown_path(error.filename or '')}, line {error.lineno}"
    else:
        frame = _user_frame(traceback.extract_tb(error.__traceback__))
        place = f"{_shown_path(frame.filename)}, line {frame.lineno}"
    return _target_error(f"Importing {name} failed at {place}: {type(error).__name__}: {error}")


def _user_frame(frames: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary:
    """The innermost line of the user's own code: libraries that it calls, Holdfast too, are left out."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    libraries = tuple(os.path.join(folder, "") for folder in (*folders, os.path.dirname(holdfast.__file__)))
    own = [frame for frame in frames if not frame.filename.startswith((*libraries, "<frozen "))]
    return (own or frames)[-1]


def _shown_path(path: str) -> str:
    """Relative to the current folder if it is below it."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return os.path.basename(path) if relative.startswith(os.pardir) else relative


def _app_by_name(module: ModuleType, name: str) -> tuple[App[Any], str]:
    value: object = module
    for part in name.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, App):
        names = ", ".join(_apps(module)) or "none"
        raise _target_error(f"{module.__name__}:{name} is not an App. Apps in {module.__name__}: {names}.")
    return value, name


def _only_app(module: ModuleType) -> tuple[App[Any], str]:
    apps = _apps(module)
    if len({id(app) for app in apps.values()}) == 1:
        name, app = next(iter(apps.items()))
        return app, name
    if not apps:
        raise _target_error(f"There is no App in {module.__name__}. It needs one, such as jobs = App(...).")
    raise _target_error(f"There are several Apps in {module.__name__}. Name one: {module.__name__}:{next(iter(apps))}")


def _apps(module: ModuleType) -> dict[str, App[Any]]:
    return {name: value for name, value in vars(module).items() if isinstance(value, App)}


def _target_error(message: str) -> ConfigError:
    return ConfigError(message, key="app", source="TARGET")


# --- A store ---


def read_url(url: str) -> str:
    """The address in `--url`: itself, or the content of the variable in `env:NAME`."""
    if url.startswith(VARIABLE):
        variable = url.removeprefix(VARIABLE)
        if not (address := os.environ.get(variable)):
            raise ConfigError(f"--url {url}: the variable {variable} is not set.", key="url", source="--url")
        return address
    if mask_password(url) != url:
        message = (
            "--url contains a password, and every user of this machine can read the arguments of a process. "
            "Put the address into a variable and give its name: --url env:NAME"
        )
        raise ConfigError(message, key="url", source="--url")
    return url


def _is_missing(store_file: str, runtime: Runtime) -> bool:
    try:
        return not runtime.fs.size(store_file)
    except OSError:  # no permission, or not a folder: the engine refuses the store, and says why
        return False


def refuse_unshared(app: App[Any]) -> None:
    """Refuse a store that only the process has that made it."""
    if not app.engine.capabilities.shared_between_processes:
        message = f"{app.address} exists in one process only, so no command can see its jobs. Use SQLite instead."
        raise Unsupported(message, capability="shared_between_processes", engine=app.engine.scheme)


@contextmanager
def opened(target: TargetApp, *, create: bool = False) -> Iterator[App[Any]]:
    """The App with its store open. Only a command that writes may `create` the store."""
    app = target.app
    store_file = app.engine.store_file
    refuse_unshared(app)
    if not create and store_file and _is_missing(store_file, app.runtime):
        message = (
            f"There is no store at {app.address}: none was made yet, or its file was moved or removed. The first "
            f"enqueue or worker makes one: {target.worker_command}"
        )
        raise EngineUnavailable(message, engine=app.engine.scheme)
    with app:
        yield app


DURABILITY = {
    "durable": "durable (every commit synced)",
    "fast": "fast (commits survive a crash of the process, not of the machine)",
    "none": "none (nothing is synced)",
}


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Where the jobs are, and what a commit survives."""

    engine: str
    place: str
    durability: str
    promise: str
    """The durability class in words."""


def store_facts(app: App[Any]) -> StoreFacts:
    found = app.engine.found_durability
    promise = DURABILITY[app.durability] if found is None else found[1]
    return StoreFacts(app.engine.scheme, app.address, app.durability, promise)
