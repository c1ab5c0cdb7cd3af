"""`task_finished`: sent when the store has the end of a job, so it follows the worker's events.

Whether an attempt was the last one, and whether its success was stored, is known only then. The result of a success is
the one that its attempt has made; that of any other end is read from the store, which has the errors of all attempts.
The exception of a failure is active while the receivers run, as with Django's own backends.

Plain receivers run in a thread of their own, one after the other, and can use the ORM there.
"""

import logging
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core import mail
from django.db import close_old_connections, connections

from holdfast import events
from holdfast.context import Context
from holdfast.django.results import RunningResult
from holdfast.django.sync_code import sync_code_in
from holdfast.django.tasks_api import TaskResultDoesNotExist, task_backends, task_finished
from holdfast.model.text import shown
from holdfast.telemetry.active_error import call_with_active
from holdfast.views import moment

if TYPE_CHECKING:
    from holdfast.django.backend_apps import BackendApp

_logger = logging.getLogger("holdfast.worker")

AttemptKey = tuple[str, str, int, str]
"""Queue, id of the job, attempt, worker."""


class Ends:
    """The attempts that run in this process, and the signals for the jobs that they end."""

    def __init__(self, backend_app: "BackendApp") -> None:
        self._backend_app = backend_app
        self._running: dict[AttemptKey, RunningResult] = {}
        self._thread = ThreadSensitiveContext()
        app = backend_app.app
        app.on(events.Succeeded)(self._succeeded)
        app.on(events.Failed)(self._ended)
        app.on(events.Cancelled)(self._ended)
        app.on(events.Retrying)(self._forget)
        app.on(events.OwnershipLost)(self._forget)

    def begin(self, ctx: Context[Any], running: RunningResult) -> None:
        """An attempt begins. Any thread."""
        self._running[ctx.job.queue, ctx.job.id, ctx.attempt, ctx.worker] = running

    def forget(self, ctx: Context[Any]) -> None:
        """The attempt has ended without a success, or its success will not be stored. Any thread."""
        self._running.pop((ctx.job.queue, ctx.job.id, ctx.attempt, ctx.worker), None)

    def _forget(self, event: events.JobEvent) -> None:
        self._pop(event)

    def _pop(self, event: events.JobEvent) -> RunningResult | None:
        return self._running.pop((event.queue, event.job_id, event.attempt, event.worker), None)

    async def _succeeded(self, event: events.Succeeded) -> None:
        running = self._pop(event)
        if running is None:  # its handler raised an error after it had completed the job
            await self._read_and_send(event, None)
        else:
            await self._send(lambda: running.succeeded(moment(event.at)))

    def _ended(self, event: events.JobEvent) -> Awaitable[None]:
        self._pop(event)
        return self._read_and_send(event, sys.exception())

    async def _read_and_send(self, event: events.JobEvent, error: BaseException | None) -> None:
        if not event.worker:
            return  # cancelled by another process, before it ran
        backend = task_backends[self._backend_app.alias]
        try:
            result = await backend.aget_result(event.job_id, queue_name=event.queue)
        except TaskResultDoesNotExist:  # its record is kept for no time, or its task is not declared any more
            _logger.info("Job %s: no task_finished signal, because the job cannot be read.", shown(event.job_id))
            return
        await self._send(lambda: result, error)

    async def _send(self, make_result: Callable[[], Any], error: BaseException | None = None) -> None:
        with sync_code_in(self._thread):
            await sync_to_async(call_with_active)(error, lambda: self._send_here(make_result))

    def _send_here(self, make_result: Callable[[], Any]) -> None:
        close_old_connections()
        try:
            sender = type(task_backends[self._backend_app.alias])
            task_finished.send_robust(sender, task_result=make_result())
        finally:
            close_connections()


def close_connections() -> None:
    """After an attempt or a receiver: close the old connections of this thread. In a test, close all of them.

    With CONN_MAX_AGE an idle thread keeps its connection, and PostgreSQL cannot drop a database that has one.
    """
    close_old_connections()
    if hasattr(mail, "outbox"):  # set by Django's `setup_test_environment`
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()
