"""One App for each entry of TASKS that uses this backend, with the Django tasks that were declared on it.

Django makes a backend object per thread, so neither tasks nor connections can belong to it. They belong to the App of
its alias, one per process. Tests may change the settings: an entry with other OPTIONS has another App, and the earlier
App is taken again with its OPTIONS. A task is declared when Django validates it, which is when it is made. No name that
comes from the store is ever imported: a job whose task was not declared here is not run here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from holdfast.app import App
from holdfast.declare.policy import read_task_options
from holdfast.django.address import address_of
from holdfast.django.ends import Ends
from holdfast.django.handler import handler_of
from holdfast.django.holdfast_task import OPTIONS as TASK_OPTIONS
from holdfast.django.holdfast_task import HoldfastTask
from holdfast.django.results import unvalidated_copy
from holdfast.django.tasks_api import InvalidTask
from holdfast.errors import DuplicateTask, InvalidOption
from holdfast.task import Task, declare

BACKEND_OPTIONS = ("database", "namespace", "durability", "TASKS")
"""What OPTIONS may contain. TASKS: options of tasks by their path, for decorators that cannot take them."""

TASKS_MODULE = "tasks"
"""The module of each installed app that a worker imports."""


@dataclass(frozen=True, slots=True)
class DeclaredTask:
    """A task as Django has it, and as the App has it."""

    django: Any
    holdfast: Task[..., Any]


class BackendApp:
    """The App of one alias of TASKS, with the OPTIONS of now. Making one does no I/O."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.options = options = backend_options(alias)
        try:
            self.app: App[Any] = App(
                lambda: address_of(self.database),
                namespace=options.get("namespace"),
                durability=options.get("durability"),
            )
        except InvalidOption as error:
            raise ImproperlyConfigured(f'TASKS["{alias}"]["OPTIONS"]: {error}') from error
        self.tasks: dict[str, DeclaredTask] = {}
        self.ends = Ends(self)

    @property
    def database(self) -> str:
        """The alias of the database that has the jobs."""
        database: str = self.options.get("database", "default")
        return database

    def declare(self, task: Any) -> DeclaredTask:
        """The task as the App has it. A task that is seen for the first time is declared."""
        name: str = task.module_path
        found = self.tasks.get(name)
        if found is not None and found.django.func is task.func:
            if given_options(task) != given_options(found.django):
                raise InvalidTask(f"Task {name} is declared twice on backend {self.alias!r}, with different options.")
            return found
        options = options_of(task, self.alias)
        try:
            declared = self._declare(task, name, options)
            self.app.registry.replace(declared)  # a module that is loaded again replaces it
        except (InvalidOption, DuplicateTask) as error:
            raise InvalidTask(f"Task {name}: {error}") from error
        found = self.tasks[name] = DeclaredTask(task, declared)
        return found

    def _declare(self, task: Any, name: str, options: Mapping[str, Any]) -> Task[..., Any]:
        function, added = handler_of(task, self, in_transaction=options.get("transaction", False))
        middleware = (*added.pop("middleware"), *options.get("middleware", ()))
        return declare(
            self.app._store,
            function,
            {**options, "name": name, "queue": task.queue_name, "priority": task.priority, "middleware": middleware}
            | added,
        )

    def declare_all(self) -> None:
        """Import the apps' `tasks` modules, and declare here the tasks of all backends, earlier OPTIONS included.

        `using(backend=...)` may enqueue any of them here. Their queue may be none of this backend: the caller can name
        another one. A task that has a name of another task here is left out: `using` refuses it.
        """
        autodiscover_modules(TASKS_MODULE)
        for other in APPS.made():
            for name, declared in list(other.tasks.items()):
                if name not in self.tasks:
                    self._declare_copy(declared.django)

    def _declare_copy(self, task: Any) -> None:
        try:
            self.declare(unvalidated_copy(task, {"backend": self.alias}))
        except InvalidTask as error:
            if not isinstance(error.__cause__, DuplicateTask):
                raise

    def find(self, name: str) -> DeclaredTask | None:
        """A task by its path or an alias. If it is not declared yet, all tasks are declared first."""
        if self.app.registry.find(name) is None:
            self.declare_all()
        declared = self.app.registry.find(name)
        return None if declared is None else self.tasks.get(declared.name)


def backend_options(alias: str) -> Mapping[str, Any]:
    """OPTIONS of an entry of TASKS."""
    options: Mapping[str, Any] = settings.TASKS[alias].get("OPTIONS", {})
    if not isinstance(options, Mapping):
        raise ImproperlyConfigured(f'TASKS["{alias}"]["OPTIONS"] must be a dictionary.')
    for name in options:
        if name not in BACKEND_OPTIONS:
            known = ", ".join(BACKEND_OPTIONS)
            raise ImproperlyConfigured(f'TASKS["{alias}"]["OPTIONS"] has no option {name!r}; there is: {known}.')
    return options


def database_of(alias: str) -> str:
    database: str = backend_options(alias).get("database", "default")
    return database


def task_settings(alias: str) -> Mapping[str, Mapping[str, Any]]:
    """OPTIONS["TASKS"] of an entry of TASKS: options of tasks by their path."""
    found: Any = backend_options(alias).get("TASKS", {})
    if not isinstance(found, Mapping) or not all(isinstance(options, Mapping) for options in found.values()):
        raise ImproperlyConfigured(
            f'TASKS["{alias}"]["OPTIONS"]["TASKS"] must be a dictionary of dictionaries: '
            '{"shop.tasks.ship": {"max_attempts": 10}}.'
        )
    return found


def options_of(task: Any, alias: str) -> dict[str, Any]:
    """The options of a task: those of its decorator; for what it leaves out, those of the settings."""
    configured = task_settings(alias).get(task.module_path, {})
    for name in configured:
        if name not in TASK_OPTIONS:
            message = f'TASKS["{alias}"]["OPTIONS"]["TASKS"]["{task.module_path}"] has no option {name!r}.'
            raise ImproperlyConfigured(message)
    options = {**configured, **given_options(task)}
    if not isinstance(options.get("transaction", False), bool):
        raise InvalidTask(f"Task {task.module_path}: `transaction` must be True or False.")
    try:
        read_task_options(options)
    except InvalidOption as error:
        raise InvalidTask(f"Task {task.module_path}: {error}") from error
    return options


def given_options(task: Any) -> dict[str, Any]:
    """The options of its decorator. A task that was made for another backend has none."""
    return task.declared_options if isinstance(task, HoldfastTask) else {}


class BackendApps:
    """The Apps of this process, by their alias in TASKS."""

    def __init__(self, make: Callable[[str], BackendApp]) -> None:
        self._make = make
        self._by_alias: dict[str, BackendApp] = {}
        self._made: list[BackendApp] = []
        """Those of earlier OPTIONS included."""

    def __getitem__(self, alias: str) -> BackendApp:
        found = self._by_alias.get(alias)
        if found is None:  # `setdefault` keeps the first of two threads; a lock could be held during a fork
            found = self._by_alias.setdefault(alias, self._with_options(alias))
            if found not in self._made:
                self._made.append(found)
        return found

    def _with_options(self, alias: str) -> BackendApp:
        options = backend_options(alias)
        same = (made for made in self._made if made.alias == alias and made.options == options)
        return next(same, None) or self._make(alias)

    def settings_changed(self, *, setting: str, **_: Any) -> None:
        """Receives `setting_changed`. No App is closed: it may run a worker."""
        if setting == "TASKS":
            self._by_alias.clear()

    def made(self) -> list[BackendApp]:
        """The Apps of all OPTIONS that this process has had."""
        return list(self._made)

    def using_database(self, database: str) -> list[BackendApp]:
        """Those whose jobs are in this database. An entry of TASKS with another backend has no App."""
        return [self[alias] for alias in holdfast_aliases() if database_of(alias) == database]


APPS = BackendApps(BackendApp)
"""Like Django's own `connections` and `task_backends`: the settings of a process are global, and so is this."""


def holdfast_aliases() -> list[str]:
    """The entries of TASKS that use this backend, or a subclass of it."""
    from holdfast.django.backend import Backend
    from holdfast.django.tasks_api import task_backends

    return [alias for alias in task_backends if isinstance(task_backends[alias], Backend)]


def get_app(backend: str = "default") -> App[Any]:
    """The App of an entry of TASKS: for `control`, events, middleware, or a worker in code."""
    from holdfast.django.backend import Backend
    from holdfast.django.tasks_api import task_backends

    if backend not in list(task_backends) or not isinstance(task_backends[backend], Backend):
        known = ", ".join(holdfast_aliases()) or "none"
        raise ImproperlyConfigured(
            f'TASKS["{backend}"] does not use holdfast.django.Backend. Entries that do: {known}.'
        )
    return APPS[backend].app
