"""The events of Holdfast, under the name users import: `from holdfast import events`.

@jobs.on(events.Failed)
def page_someone(event: events.Failed) -> None: ...
"""

from holdfast.telemetry.events import (
    Assigned,
    Cancelled,
    Event,
    Failed,
    JobEvent,
    LaneEmpty,
    LoopBlocked,
    OwnershipLost,
    QueueCleared,
    Queued,
    QueueEmpty,
    QueueEvent,
    QueuePaused,
    QueueResumed,
    Reaped,
    Retrying,
    SoftLimit,
    Started,
    Succeeded,
    UnknownTask,
    WorkerEvent,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)

__all__ = [
    "Assigned",
    "Cancelled",
    "Event",
    "Failed",
    "JobEvent",
    "LaneEmpty",
    "LoopBlocked",
    "OwnershipLost",
    "QueueCleared",
    "QueueEmpty",
    "QueueEvent",
    "QueuePaused",
    "QueueResumed",
    "Queued",
    "Reaped",
    "Retrying",
    "SoftLimit",
    "Started",
    "Succeeded",
    "UnknownTask",
    "WorkerEvent",
    "WorkerStarted",
    "WorkerStopped",
    "WorkerStopping",
]
