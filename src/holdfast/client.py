"""For producers: batches, tasks by name, jobs by id."""

from collections.abc import Iterable
from typing import Any, TypeVar

from holdfast.blocking import blocking
from holdfast.core.connection import StoreConnection
from holdfast.core.enqueue import enqueue
from holdfast.declare.registry import Registry
from holdfast.draft import Draft
from holdfast.errors import InvalidOption, UsageError
from holdfast.handle import Handle
from holdfast.model.job import JobKey
from holdfast.model.states import JobState
from holdfast.model.text import check_name
from holdfast.operate.operating import find_states
from holdfast.task import Task, declare_elsewhere

R = TypeVar("R")


class Client:
    """`jobs.client`. It may be shared between threads."""

    def __init__(self, store: StoreConnection, registry: Registry) -> None:
        self._store = store
        self._registry = registry

    async def aenqueue_many(self, drafts: Iterable[Draft[R]], /, *, transaction: Any | None = None) -> list[Handle[R]]:
        """Enqueue many jobs in one round trip: all of them or none. The answers come in the order of the drafts.

        The longest `wait_for_room` of the drafts counts for all. `transaction`: inside your own transaction.
        """
        listed = list(drafts)
        checked: Task[Any, R] | None = None
        for draft in listed:
            _check_draft(draft)
            if draft.task is checked:
                continue
            checked = draft.task
            if draft.task._store is not self._store:
                raise UsageError(f"{draft!r} was made by a task of another App. Use the client of that App.")
            if draft.task.transaction is not None and draft.task.transaction is not transaction:
                raise UsageError(
                    f"{draft!r} was made for another transaction than this call. Pass `transaction` to enqueue_many, "
                    "not to `using`."
                )
        if not listed:
            return []
        waits_us = [draft.wait_for_room_us for draft in listed if draft.wait_for_room_us is not None]
        jobs = tuple(draft.job for draft in listed)
        accepted = await enqueue(
            self._store, jobs, wait_for_room_us=max(waits_us, default=None), transaction=transaction
        )
        return [
            draft.task.handle_of(draft.job.queue, answer, in_transaction=transaction is not None)
            for draft, answer in zip(listed, accepted, strict=True)
        ]

    enqueue_many = blocking(aenqueue_many)

    def task(self, name: str, /) -> Task[..., Any]:
        """A task by its name or alias: the declared one, or one whose code lives elsewhere (arguments go unchecked).

        The jobs of a task found by an alias are stored under its own name.
        """
        task = self._registry.find(check_name(name, "task"))
        return declare_elsewhere(self._store, name) if task is None else task

    def handle(self, job_id: str, /, *, queue: str | None = None) -> Handle[Any]:
        """A handle on a job of any task; its result is plain data. Without `queue`, all queues are searched."""
        key = JobKey("" if queue is None else check_name(queue, "queue"), check_name(job_id, "id"))
        return Handle(self._store, key, self._decode)

    async def astates(self, job_ids: Iterable[str], /, *, queue: str | None = None) -> dict[str, JobState | None]:
        """The states of many jobs, by id; None for one that is not in the store.

        Without `queue`, all queues are searched.
        """
        if isinstance(job_ids, str):
            raise InvalidOption("states() takes a list of ids.", option="job_ids")
        return await find_states(self._store, job_ids, queue)

    states = blocking(astates)

    def _decode(self, data: bytes, codec: str) -> Any:
        return self._store.result_codec(self._store.codec_named(codec)).decode(data)


def _check_draft(item: object) -> None:
    if not isinstance(item, Draft):
        raise InvalidOption(
            f"enqueue_many() takes drafts, made by task.draft(...), not {type(item).__name__}.", option="drafts"
        )
