"""A job not yet enqueued."""

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.model.produce import NewJob

if TYPE_CHECKING:
    from holdfast.task import Task

R = TypeVar("R")


class Draft(Generic[R]):
    """A checked call with its id, for `client.enqueue_many`. Enqueueing it twice makes one job."""

    __slots__ = ("job", "room", "task")

    def __init__(self, job: NewJob, task: "Task[Any, R]", *, room: int | None = None) -> None:
        self.job = job
        self.task = task
        self.room = room
        """Microseconds to wait for room in a full queue."""

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def queue(self) -> str:
        return self.job.queue

    def __repr__(self) -> str:
        return f"<Draft of job {self.id!r} ({self.job.task}) for queue {self.queue!r}>"
