"""How the attempts of one task are run. It is built once per worker and task; each attempt only looks it up."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.engine import Engine
from holdfast.errors import Unsupported
from holdfast.model.instants import Micros
from holdfast.model.text import shown
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.middleware import Call, compose
from holdfast.worker.protocols import HandledTask

if TYPE_CHECKING:
    from holdfast.worker.isolated import IsolatedHandler
    from holdfast.worker.transaction import TransactionEnvironment

_logger = logging.getLogger("holdfast.worker")


class ExecutionPlan:
    """A task as this worker runs it, and how many of its attempts the worker holds."""

    __slots__ = (
        "bare_handler",
        "call",
        "decode",
        "encode",
        "held_count",
        "is_isolated",
        "limit",
        "name",
        "names",
        "policy",
        "running_count",
        "state",
        "suspends",
        "task",
        "timeout_us",
        "transaction_environment",
        "worker",
    )

    def __init__(
        self,
        task: HandledTask,
        *,
        worker: str,
        state: Any,
        middleware: Any,
        handler_threads: HandlerThreads,
        transaction_environment: "TransactionEnvironment | None" = None,
        isolated: "IsolatedHandler | None" = None,
    ) -> None:
        self.policy = task.policy
        self.name = task.policy.name
        self.names = (self.name, *task.policy.aliases)
        """The names under which jobs of the task are stored: its own, then its aliases."""
        self.worker = worker
        self.state = state
        self.transaction_environment = transaction_environment
        """What transactions are made with. None: no handler runs here (bare payloads)."""
        self.is_isolated = isolated is not None
        """True: its handlers run in child processes, so they cannot block this one, and can be killed."""
        self._use_function_of(task, middleware, handler_threads, isolated)
        self.timeout_us: Micros | None = task.policy.timeout
        self.limit = task.policy.concurrency
        self.running_count = 0
        self.held_count = 0
        """Attempts that run, and those that are leased and wait to start."""

    def _use_function_of(
        self, task: HandledTask, middleware: Any, handler_threads: HandlerThreads, isolated: "IsolatedHandler | None"
    ) -> None:
        self.task = task
        self.decode = task.decode_arguments if isolated is None else isolated.decode
        self.encode = task.encode_result if isolated is None else isolated.encode
        all_middleware = (*middleware, *task.middleware)
        is_bare = isolated is None and task.is_async and not task.takes_context and not all_middleware
        self.bare_handler = task.function if is_bare else None
        """The handler itself, if it has no middleware and takes no context: it is called directly, the fastest way."""
        self.call: Call = compose(task, all_middleware, handler_threads, None if isolated is None else isolated.call)
        self.suspends = not task.is_async or self.is_isolated
        """True if the last handler suspended (awaited something that was not ready). A thread always does."""

    def redefine(self, task: HandledTask, middleware: Any, handler_threads: HandlerThreads) -> bool:
        """Run another function from the next job on, with the options of the first. False: not possible."""
        if self.is_isolated or task.policy.isolate is not None:
            return False
        self._use_function_of(task, middleware, handler_threads, None)
        return True

    @property
    def full(self) -> bool:
        return self.limit is not None and self.running_count >= self.limit

    @property
    def free_slots(self) -> int | None:
        """How many more may be claimed. None: the task has no limit of its own."""
        return None if self.limit is None else max(0, self.limit - self.held_count)


def refuse_transactions(engine: Engine, tasks: Iterable[HandledTask]) -> None:
    """Refuse tasks with `transaction` before the worker starts, if the store has none: each attempt would fail."""
    names = [task.policy.name for task in tasks if task.policy.transaction and not task.policy.remote]
    if names and not engine.capabilities.user_transactions:
        raise Unsupported(
            f"These tasks have the option `transaction`, and the {engine.scheme} engine has no transactions: "
            f"{', '.join(map(shown, sorted(names)))}. Leave out the option, or use SQLite or PostgreSQL.",
            capability="user_transactions",
            engine=engine.scheme,
        )


def warn_about_timeouts(plans: Iterable[ExecutionPlan]) -> None:
    """Log once which tasks of this worker have a timeout that cannot stop them."""
    names = sorted(
        plan.name
        for plan in plans
        if plan.policy.timeout is not None and not plan.task.is_async and not plan.is_isolated
    )
    if names:
        _logger.warning(
            "These tasks have a timeout and are plain functions, whose threads cannot be stopped: %s. After the "
            "timeout `ctx.aborted` is true; the function keeps its slot until it returns. With "
            'isolate="process" it can be stopped.',
            ", ".join(map(shown, names)),
        )
