"""The backend for Django's tasks.

An enqueue inside `transaction.atomic()` is a part of that transaction: the job exists if, and only if, it commits.
Outside of one, the job is stored before the call returns. Reading a result uses the store's own connection, so a job of
a transaction that is still open is not found.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from asgiref.sync import AsyncToSync, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from holdfast.django.backend_apps import APPS, BackendApp
from holdfast.django.checks import check_backend
from holdfast.django.holdfast_task import HoldfastTask
from holdfast.django.results import HoldfastTaskResult, as_aware, enqueued, result_of
from holdfast.django.sync_code import refused_in_async_code
from holdfast.django.tasks_api import BaseTaskBackend, InvalidTask, TaskResultDoesNotExist, task_enqueued
from holdfast.draft import Draft
from holdfast.errors import InvalidOption, JobNotFound, ResultExpired, SchemaMismatch
from holdfast.handle import Handle
from holdfast.model.states import JobState
from holdfast.transactions.django import in_transaction
from holdfast.views import Job, moment


class Backend(BaseTaskBackend):
    """`TASKS = {"default": {"BACKEND": "holdfast.django.Backend"}}`. Django makes one per thread; see `BackendApps`."""

    task_class = HoldfastTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        if isinstance(params.get("QUEUES"), str):  # Django would take each letter as a queue
            raise ImproperlyConfigured(f'TASKS["{alias}"]["QUEUES"] must be a list of names, not text.')
        super().__init__(alias, params)

    @property
    def _backend_app(self) -> BackendApp:
        return APPS[self.alias]

    def check(self, **kwargs: Any) -> Iterable[Any]:
        return check_backend(self.alias)

    def validate_task(self, task: Any) -> None:
        """Called by Django for every task that is made: so this is where a task is declared. Called again for every
        enqueue: the task may have been made under other settings."""
        if self.queues and task.queue_name not in self.queues:
            known = ", ".join(sorted(self.queues))
            raise InvalidTask(
                f"Queue '{task.queue_name}' is not valid for backend. "
                f'TASKS["{self.alias}"]["QUEUES"] has: {known}. Add it there, or leave the list empty to allow every '
                "queue."
            )
        super().validate_task(task)
        self._backend_app.declare(task)

    # Enqueue

    @refused_in_async_code("enqueue", "task.aenqueue(...)")
    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> HoldfastTaskResult:
        draft = self._draft(task, args, kwargs)
        transaction = _chosen_transaction(task)
        if transaction is None:
            connection = connections[self._backend_app.database]
            transaction = connection if in_transaction(connection) else None
        with _advice():
            (handle,) = self._backend_app.app.client.enqueue_many([draft], transaction=transaction)
        result = self._enqueued(task, draft, handle)
        task_enqueued.send_robust(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> HoldfastTaskResult:
        if _may_have_sync_caller():
            result: HoldfastTaskResult = await sync_to_async(self.enqueue)(task, args, kwargs)
            return result
        draft = self._draft(task, args, kwargs)
        client = self._backend_app.app.client
        with _advice():
            (handle,) = await client.aenqueue_many([draft], transaction=_chosen_transaction(task))
        result = self._enqueued(task, draft, handle)
        await task_enqueued.asend_robust(type(self), task_result=result)
        return result

    def _draft(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Draft[Any]:
        self.validate_task(task)
        declared = self._backend_app.tasks[task.module_path]
        options: dict[str, Any] = {"queue": task.queue_name, "priority": task.priority}
        if task.run_after is not None:
            options["at"] = as_aware(task.run_after)
        if isinstance(task, HoldfastTask):
            options |= task.using_options
            options.pop("transaction", None)
        return declared.holdfast.using(**options).draft(*args, **kwargs)

    def _enqueued(self, task: Any, draft: Draft[Any], handle: Handle[Any]) -> HoldfastTaskResult:
        app, receipt = self._backend_app.app, handle.receipt
        assert receipt is not None
        arguments = app._store.codec_named(draft.job.codec).decode(draft.job.payload)
        at = moment(app.runtime.wall())
        return enqueued(task, self.alias, id=handle.id, state=receipt.state, at=at, arguments=arguments)

    # Results

    @refused_in_async_code("get_result", "task.aget_result(...)")
    def get_result(self, result_id: str, *, queue_name: str | None = None) -> HoldfastTaskResult:
        app = self._backend_app.app
        try:
            job = app.control.get(result_id, queue=queue_name)
            value = None
            if job.state is JobState.SUCCEEDED:
                value = app.client.handle(job.id, queue=job.queue).result(timeout=RESULT_TIMEOUT_S)
        except (JobNotFound, InvalidOption) as error:
            raise TaskResultDoesNotExist(result_id) from error
        except ResultExpired:
            value = None
        return self._result(job, value)

    async def aget_result(self, result_id: str, *, queue_name: str | None = None) -> HoldfastTaskResult:
        app = self._backend_app.app
        try:
            job = await app.control.aget(result_id, queue=queue_name)
            value = None
            if job.state is JobState.SUCCEEDED:
                value = await app.client.handle(job.id, queue=job.queue).aresult(timeout=RESULT_TIMEOUT_S)
        except (JobNotFound, InvalidOption) as error:
            raise TaskResultDoesNotExist(result_id) from error
        except ResultExpired:
            value = None
        return self._result(job, value)

    def _result(self, job: Job, value: Any) -> HoldfastTaskResult:
        declared = self._backend_app.find(job.task)
        if declared is None:
            raise TaskResultDoesNotExist(
                f"{job.id}: its task {job.task!r} is not declared in this process. Tasks belong into the `tasks` "
                "module of an installed app."
            )
        return result_of(declared.django, self.alias, job, value)


RESULT_TIMEOUT_S = 30.0
"""For reading the result of a job that has succeeded, which waits for nothing but the store."""


@contextmanager
def _advice() -> Iterator[None]:
    """In a Django project the tables of the jobs are made by Django's own command."""
    try:
        yield
    except SchemaMismatch as error:
        message = str(error).replace("holdfast migrate", "manage.py migrate")
        raise SchemaMismatch(message, found=error.found, wanted=error.wanted, engine=error.engine) from error


def _chosen_transaction(task: Any) -> Any:
    """The connection given to `using(transaction=...)`."""
    return task.using_options.get("transaction") if isinstance(task, HoldfastTask) else None


def _may_have_sync_caller() -> bool:
    """True if `async_to_sync` runs this event loop for a thread, whose `atomic()` block may be open.

    Then the job is enqueued in that thread, and is a part of its transaction. Async code itself has no `atomic()`.
    """
    try:
        return (
            getattr(AsyncToSync.executors, "current", None) is not None
            or asyncio.get_running_loop() in AsyncToSync.loop_thread_executors
        )
    except AttributeError:  # another version of asgiref: the other way is always right, and slower
        return True
