"""A job that is checked but not enqueued yet."""

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.model.produce import NewJob

if TYPE_CHECKING:
    from holdfast.task import Task

R = TypeVar("R")


class Draft(Generic[R]):
    """A checked call with its id, for `client.enqueue_many`. Enqueueing it twice makes one job."""

    __slots__ = ("job", "task", "wait_for_room_us")

    def __init__(self, job: NewJob, task: "Task[Any, R]", wait_for_room_us: int | None = None) -> None:
        self.job = job
        self.task = task
        self.wait_for_room_us = wait_for_room_us
        """How long to wait while the queue is full."""

    @property
    def id(self) -> str:
        """The id that the job will have."""
        return self.job.id

    @property
    def queue(self) -> str:
        """Where the job will go."""
        return self.job.queue

    def __repr__(self) -> str:
        return f"<Draft of job {self.id!r} ({self.job.task}) for queue {self.queue!r}>"
