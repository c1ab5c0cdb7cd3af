"""Holdfast: a durable job queue for Python.

    from holdfast import App

    jobs = App("sqlite:///jobs.db")

    @jobs.task
    def resize(image: str, width: int = 800) -> str: ...

    resize.enqueue("cat.png", width=320)

Here are the public names and nothing else. Further ones are in `holdfast.events`, `holdfast.presets`,
`holdfast.testing` and, for authors of engines, `holdfast.engine`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.client import Client
    from holdfast.codec import Codec
    from holdfast.context import AbortReason, Context, Middleware, Next
    from holdfast.control import Control
    from holdfast.core.obstacles import Obstacle
    from holdfast.core.wait_reason import Why
    from holdfast.declare.envelope import content_id
    from holdfast.draft import Draft
    from holdfast.errors import (
        Aborted,
        AmbiguousId,
        BlockingCall,
        Busy,
        Cancel,
        ConfigError,
        CorruptRecord,
        DuplicateTask,
        EngineError,
        EngineUnavailable,
        GiveUp,
        HistoryLost,
        HoldfastError,
        IdConflict,
        Interrupt,
        InvalidArguments,
        InvalidOption,
        JobCancelled,
        JobError,
        JobFailed,
        JobNotFound,
        KeyTaken,
        LeaseLost,
        OutcomeUnknown,
        PayloadTooLarge,
        QueueFull,
        Refused,
        ResultExpired,
        Retry,
        SchemaMismatch,
        Snooze,
        StorageFull,
        UnknownTask,
        Unsupported,
        UsageError,
        WaitTimeout,
        WrongDatabase,
        WrongState,
    )
    from holdfast.handle import Handle
    from holdfast.lanes import Lane
    from holdfast.lease import Lease
    from holdfast.model.retry import exponential, fixed, linear
    from holdfast.model.states import JobState
    from holdfast.model.text import ErrorInfo
    from holdfast.operate.checking import CheckProblem, CheckReport, Misfit
    from holdfast.operate.report import Report
    from holdfast.pool import Pool
    from holdfast.queue import Queue
    from holdfast.task import Task
    from holdfast.views import Attempt, CancelAnswer, Job, Receipt
    from holdfast.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AbortReason",
    "Aborted",
    "AmbiguousId",
    "App",
    "Attempt",
    "BlockingCall",
    "Busy",
    "Cancel",
    "CancelAnswer",
    "CheckProblem",
    "CheckReport",
    "Client",
    "Codec",
    "ConfigError",
    "Context",
    "Control",
    "CorruptRecord",
    "Draft",
    "DuplicateTask",
    "EngineError",
    "EngineUnavailable",
    "ErrorInfo",
    "GiveUp",
    "Handle",
    "HistoryLost",
    "HoldfastError",
    "IdConflict",
    "Interrupt",
    "InvalidArguments",
    "InvalidOption",
    "Job",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobNotFound",
    "JobState",
    "KeyTaken",
    "Lane",
    "Lease",
    "LeaseLost",
    "Middleware",
    "Misfit",
    "Next",
    "Obstacle",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "Pool",
    "Queue",
    "QueueFull",
    "Receipt",
    "Refused",
    "Report",
    "ResultExpired",
    "Retry",
    "SchemaMismatch",
    "Snooze",
    "StorageFull",
    "Task",
    "UnknownTask",
    "Unsupported",
    "UsageError",
    "WaitTimeout",
    "Why",
    "Worker",
    "WrongDatabase",
    "WrongState",
    "content_id",
    "exponential",
    "fixed",
    "linear",
]


if not TYPE_CHECKING:
    _MODULES = {
        "AbortReason": "context",
        "App": "app",
        "Attempt": "views",
        "CancelAnswer": "views",
        "CheckProblem": "operate.checking",
        "CheckReport": "operate.checking",
        "Client": "client",
        "Codec": "codec",
        "Context": "context",
        "Control": "control",
        "Draft": "draft",
        "ErrorInfo": "model.text",
        "Handle": "handle",
        "Job": "views",
        "JobState": "model.states",
        "Lane": "lanes",
        "Lease": "lease",
        "Middleware": "context",
        "Misfit": "operate.checking",
        "Next": "context",
        "Obstacle": "core.obstacles",
        "Pool": "pool",
        "Queue": "queue",
        "Receipt": "views",
        "Report": "operate.report",
        "Task": "task",
        "Why": "core.wait_reason",
        "Worker": "worker",
        "content_id": "declare.envelope",
        "exponential": "model.retry",
        "fixed": "model.retry",
        "linear": "model.retry",
    }
    """The module of each public name; those that are not here are in `errors`."""
    _PUBLIC_MODULES = ("engine", "errors", "events", "presets", "testing")

    def __getattr__(name: str) -> Any:
        """Load a name when it is first used.

        A producer never loads the worker. A command loads only what it needs, and it answers a Ctrl-C that comes while
        it loads it.
        """
        if name in _PUBLIC_MODULES:
            return import_module(f"holdfast.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        value = getattr(import_module(f"holdfast.{_MODULES.get(name, 'errors')}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_PUBLIC_MODULES})
