"""A task of Django's with Holdfast's options.

    @task(queue_name="billing", max_attempts=10, transaction=True)
    def ship(order_id: int) -> None: ...

    ship.using(lane="customer-7", run_after=tomorrow).enqueue(42)

Newer versions of Django pass the options of `@task` on to `HoldfastTask`. `task` of this module takes them on all
versions, and also while another backend is configured, as in test settings; that one ignores them.

The class has no `slots=True`: zero-argument `super()` would fail in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any, overload

from holdfast.declare.policy import read_using_options
from holdfast.django.tasks_api import Task, task_backends
from holdfast.errors import InvalidOption


class Unset(Enum):
    """The value of an option that was not given. None is a value: no limit."""

    UNSET = "unset"


UNSET: Any = Unset.UNSET

OPTIONS = (
    "aliases",
    "max_attempts",
    "backoff",
    "retry_on",
    "give_up_on",
    "retry_for",
    "max_losses",
    "timeout",
    "lease",
    "concurrency",
    "lane",
    "unique_key",
    "unique_for",
    "result_ttl",
    "retention",
    "failed_retention",
    "middleware",
    "transaction",
)
"""The options of `@jobs.task` that a Django task can have. Django has its own words for the others."""

ELSEWHERE = {"queue": "queue_name", "at": "run_after", "wait": "get_result"}
"""Options of Holdfast's `using` for which Django has its own word."""


@dataclass(frozen=True, kw_only=True, repr=False)
class HoldfastTask(Task):
    """The options mean what they mean for `@jobs.task`. `transaction=True`: the handler runs in `atomic()`."""

    run_after: datetime | None = None  # in Django 6.0 it has no default
    aliases: Any = UNSET
    max_attempts: Any = UNSET
    backoff: Any = UNSET
    retry_on: Any = UNSET
    give_up_on: Any = UNSET
    retry_for: Any = UNSET
    max_losses: Any = UNSET
    timeout: Any = UNSET
    lease: Any = UNSET
    concurrency: Any = UNSET
    lane: Any = UNSET
    unique_key: Any = UNSET
    unique_for: Any = UNSET
    result_ttl: Any = UNSET
    retention: Any = UNSET
    failed_retention: Any = UNSET
    middleware: Any = UNSET
    transaction: Any = UNSET
    using_options: Mapping[str, Any] = field(default_factory=dict)
    """The options of `using` that Django does not have."""

    def __hash__(self) -> int:  # the options may be lists
        return hash((self.func, self.backend, self.queue_name, self.priority, self.run_after, self.takes_context))

    @property
    def declared_options(self) -> dict[str, Any]:
        """The options of the decorator."""
        return {name: value for name in OPTIONS if (value := getattr(self, name)) is not UNSET}

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        **options: Any,
    ) -> "HoldfastTask":
        """A new task with these options for its jobs; this one stays as it is.

        Besides Django's: `id`, `delay`, `expires`, `lane`, `unique_key`, `unique_for`, `max_attempts`, `timeout`,
        `result_ttl`, `retention`, `metadata`, `wait_for_room`, `transaction` (a connection).
        """
        for name in options:
            if name in ELSEWHERE:
                raise InvalidOption(f"A Django task has no option `{name}`: use `{ELSEWHERE[name]}`.", option=name)
        read_using_options(options)
        if "delay" in options and run_after is not None:
            raise InvalidOption("Give `delay` or `run_after`, not both.", option="delay")
        chosen = {**self.using_options, **options}
        if run_after is not None:
            chosen.pop("delay", None)
        changes: dict[str, Any] = {"using_options": chosen}
        for name, value in (("priority", priority), ("queue_name", queue_name), ("backend", backend)):
            if value is not None:
                changes[name] = value
        if run_after is not None or "delay" in options:
            changes["run_after"] = run_after
        return replace(self, **changes)


@overload
def task(function: Callable[..., Any], /) -> HoldfastTask: ...
@overload
def task(
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: bool = False,
    **options: Any,
) -> Callable[[Callable[..., Any]], HoldfastTask]: ...
def task(
    function: Callable[..., Any] | None = None,
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: bool = False,
    **options: Any,
) -> Any:
    """Django's `@task` with Holdfast's options, on every version of Django and with every backend."""

    def wrap(f: Callable[..., Any]) -> Any:
        of_backend = task_backends[backend].task_class
        task_class = of_backend if issubclass(of_backend, HoldfastTask) else HoldfastTask
        return task_class(
            func=f, priority=priority, queue_name=queue_name, backend=backend, takes_context=takes_context, **options
        )

    return wrap if function is None else wrap(function)
