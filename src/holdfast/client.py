"""What a producer needs besides its tasks: batches, tasks by name, jobs by id."""

from collections.abc import Iterable
from typing import Any, TypeVar

from holdfast.blocking import blocking
from holdfast.core.link import Link
from holdfast.core.producing import enqueue
from holdfast.draft import Draft
from holdfast.errors import InvalidOption, UsageError
from holdfast.handle import Handle
from holdfast.model.job import JobKey
from holdfast.model.text import check_name
from holdfast.task import Registry, Task, declare_elsewhere

R = TypeVar("R")


class Client:
    """`jobs.client`. It may be shared between threads."""

    def __init__(self, link: Link, registry: Registry) -> None:
        self._link = link
        self._registry = registry

    async def aenqueue_many(self, drafts: Iterable[Draft[R]], /, *, transaction: Any | None = None) -> list[Handle[R]]:
        """Enqueue many jobs in one round trip: all of them or none. The answers come in the order of the drafts.

        Where drafts say `wait_for_room`, the longest of these waits counts for all. `transaction`: inside your own.
        """
        listed = list(drafts)
        for draft in listed:
            _check_draft(draft)
            if draft.task._link is not self._link:
                raise UsageError(f"{draft!r} was made by a task of another App. Enqueue it with that one's client.")
            if draft.task.joins is not None and draft.task.joins is not transaction:
                said = f"{draft!r} was made for another transaction than this call."
                raise UsageError(f"{said} Give `transaction` to enqueue_many, not to `using`.")
        if not listed:
            return []
        room = max((draft.room for draft in listed if draft.room is not None), default=None)
        jobs = tuple(draft.job for draft in listed)
        accepted = await enqueue(self._link, jobs, room=room, transaction=transaction)
        joined = transaction is not None
        return [
            draft.task.handle_of(draft.job.queue, answer, joined=joined)
            for draft, answer in zip(listed, accepted, strict=True)
        ]

    enqueue_many = blocking(aenqueue_many)

    def task(self, name: str, /) -> Task[..., Any]:
        """A task by its name: the declared one, or one whose code lives elsewhere and whose arguments go unchecked."""
        known = self._registry.get(check_name(name, "task"))
        return declare_elsewhere(self._link, name) if known is None else known

    def handle(self, job_id: str, /, *, queue: str | None = None) -> Handle[Any]:
        """A handle on a job of whatever task; its result comes as plain data. Without a queue, all are searched."""
        key = JobKey("" if queue is None else check_name(queue, "queue"), check_name(job_id, "id"))
        return Handle(self._link, key, self._decode)

    def _decode(self, data: bytes, codec: str) -> Any:
        return self._link.result_codec(self._link.codec_named(codec)).decode(data)


def _check_draft(item: object) -> None:
    if not isinstance(item, Draft):
        said = f"enqueue_many() takes drafts, made by task.draft(...), not {type(item).__name__}."
        raise InvalidOption(said, option="drafts")
