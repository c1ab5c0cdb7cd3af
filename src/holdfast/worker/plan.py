"""How one task's attempts are run. Worked out once per worker and task, so that an attempt only looks it up."""

from typing import TYPE_CHECKING, Any

from holdfast.worker.crew import Crew
from holdfast.worker.host import Handled
from holdfast.worker.middleware import Call, compose

if TYPE_CHECKING:
    from holdfast.worker.transaction import Means


class Plan:
    """A task as this worker runs it, and how many of its attempts are in hand."""

    __slots__ = (
        "call",
        "decode",
        "direct",
        "encode",
        "limit",
        "means",
        "name",
        "policy",
        "running",
        "state",
        "taken",
        "task",
        "timeout",
        "waits",
        "worker",
    )

    def __init__(
        self,
        task: Handled,
        *,
        worker: str,
        state: Any,
        middleware: Any,
        crew: Crew,
        means: "Means | None" = None,
    ) -> None:
        self.task = task
        self.policy = task.policy
        self.name = task.policy.name
        self.worker = worker
        self.state = state
        self.means = means
        """What transactions are made with. None: nobody runs a handler here."""
        self.decode = task.decode_arguments
        self.encode = task.encode_result
        around = (*middleware, *task.middleware)
        plain = task.is_async and not task.takes_context and not around
        self.direct = task.function if plain else None
        """The handler itself, where nothing stands around it: the shortest way."""
        self.call: Call = compose(task, around, crew)
        self.timeout = task.policy.timeout
        self.limit = task.policy.concurrency
        self.waits = not task.is_async
        """Whether the last handler waited for something. A thread is always waited for."""
        self.running = 0
        self.taken = 0
        """Running, or in hand and waiting for their turn."""

    @property
    def full(self) -> bool:
        return self.limit is not None and self.running >= self.limit

    @property
    def room(self) -> int | None:
        """How many more may be claimed. None: as many as there are slots."""
        return None if self.limit is None else max(0, self.limit - self.taken)
