"""`task_finished` for jobs that end without success. (`handler.py` sends it for those that succeed.)

Whether a failed attempt is the last one is decided by the worker, so its events are used. The result is read from the
store: it has the errors of all attempts.
"""

import logging
from typing import TYPE_CHECKING

from holdfast import events
from holdfast.django.handler import old_connections_closed
from holdfast.django.tasks_api import TaskResultDoesNotExist, task_backends, task_finished
from holdfast.model.text import shown

if TYPE_CHECKING:
    from holdfast.django.backend_apps import BackendApp

_logger = logging.getLogger("holdfast.worker")


def send_when_ended(backend_app: "BackendApp") -> None:
    """Send the signal in this process for jobs of its workers."""

    async def ended(event: events.JobEvent) -> None:
        if not event.worker:
            return  # cancelled by another process, before it ran
        backend = task_backends[backend_app.alias]
        try:
            result = await backend.aget_result(event.job_id, queue_name=event.queue)
        except TaskResultDoesNotExist:  # its record is kept for no time, or its task is not declared any more
            _logger.info("Job %s: no task_finished signal, because the job cannot be read.", shown(event.job_id))
            return
        async with old_connections_closed():
            await task_finished.asend_robust(type(backend), task_result=result)

    for kind in (events.Failed, events.Cancelled):
        backend_app.app.on(kind)(ended)
