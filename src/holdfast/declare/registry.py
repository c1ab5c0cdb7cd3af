"""The tasks of an App. A name, also an alias, belongs to one task."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakSet

from holdfast.declare.function import is_redefinition
from holdfast.errors import DuplicateTask
from holdfast.task import Task

_logger = logging.getLogger("holdfast")


class Registry(Mapping[str, Task[..., Any]]):
    """The tasks of one App, by name. `find` also takes an alias."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}
        self._by_alias: dict[str, Task[..., Any]] = {}
        self.payloads: dict[str, Task[..., Any]] = {}
        """How bare payloads are decoded, by queue: those of `jobs.queue`."""
        self.workers: WeakSet[Any] = WeakSet()
        """The App's workers in this process. Each has the tasks that were there when it started."""

    def add(self, task: Task[..., Any]) -> None:
        """Refuse a second task of this name, unless a cell of a notebook, or a line of a shell, is run again."""
        self._refuse_taken_names(task)
        earlier = self._tasks.setdefault(task.name, task)
        if earlier is not task:
            if not is_redefinition(earlier._definition.function, task._definition.function):
                raise DuplicateTask(task=task.name)
            self.replace(task)
            for worker in [worker for worker in self.workers if worker.has_started]:
                if worker.redefine(task):
                    message = "uses the new function from the next job on, with the earlier options of the task"
                else:
                    message = "goes on with the earlier definition"
                _logger.warning(
                    "Task %r was defined again, and a worker of this process %s. For a change of options, stop the "
                    "worker and start another.",
                    task.name,
                    message,
                )
        else:
            self._by_alias.update(dict.fromkeys(task.aliases, task))

    def replace(self, task: Task[..., Any]) -> None:
        """Add a task in place of an earlier one of its name: its module was loaded again."""
        self._refuse_taken_names(task)
        self._tasks[task.name] = task
        for alias in [alias for alias, other in self._by_alias.items() if other.name == task.name]:
            del self._by_alias[alias]
        self._by_alias.update(dict.fromkeys(task.aliases, task))

    def _refuse_taken_names(self, task: Task[..., Any]) -> None:
        """A name belongs to one task: as its own name or as an alias."""
        for name in (task.name, *task.aliases):
            other = self.find(name)
            if other is not None and other.name != task.name:
                raise DuplicateTask(
                    f"{name!r} is a name of task {task.name!r} and of task {other.name!r}. A name, also one in "
                    "`aliases`, can belong to one task only.",
                    task=name,
                )

    def find(self, name: str) -> Task[..., Any] | None:
        """The task that runs jobs of this name: by its own name or by an alias."""
        found = self._tasks.get(name)
        return self._by_alias.get(name) if found is None else found

    @property
    def aliases(self) -> frozenset[str]:
        """The aliases of all tasks."""
        return frozenset(self._by_alias)

    def __getitem__(self, name: str) -> Task[..., Any]:
        return self._tasks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)
