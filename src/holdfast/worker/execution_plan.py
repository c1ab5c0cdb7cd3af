"""How one task's attempts are run. Worked out once per worker and task, so that an attempt only looks it up."""

from typing import TYPE_CHECKING, Any

from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.middleware import Call, compose
from holdfast.worker.protocols import HandledTask

if TYPE_CHECKING:
    from holdfast.worker.transaction import TransactionSupport


class ExecutionPlan:
    """A task as this worker runs it, and how many of its attempts are in hand."""

    __slots__ = (
        "bare_handler",
        "call",
        "decode",
        "encode",
        "held_count",
        "limit",
        "name",
        "policy",
        "running_count",
        "state",
        "suspends",
        "task",
        "timeout",
        "transaction_support",
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
        transaction_support: "TransactionSupport | None" = None,
    ) -> None:
        self.task = task
        self.policy = task.policy
        self.name = task.policy.name
        self.worker = worker
        self.state = state
        self.transaction_support = transaction_support
        """What transactions are made with. None: nobody runs a handler here."""
        self.decode = task.decode_arguments
        self.encode = task.encode_result
        around = (*middleware, *task.middleware)
        plain = task.is_async and not task.takes_context and not around
        self.bare_handler = task.function if plain else None
        """The handler itself, where nothing stands around it: the shortest way."""
        self.call: Call = compose(task, around, handler_threads)
        self.timeout = task.policy.timeout
        self.limit = task.policy.concurrency
        self.suspends = not task.is_async
        """Whether the last handler waited for something. A thread is always waited for."""
        self.running_count = 0
        self.held_count = 0
        """Running, or in hand and waiting for their turn."""

    @property
    def full(self) -> bool:
        return self.limit is not None and self.running_count >= self.limit

    @property
    def free_slots(self) -> int | None:
        """How many more may be claimed. None: as many as there are slots."""
        return None if self.limit is None else max(0, self.limit - self.held_count)
