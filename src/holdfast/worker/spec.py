"""What one worker is to do: its name, its queues, its settings."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.config import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """The name, queues and settings of one worker."""

    worker: str
    queues: tuple[str, ...]
    queue_limits: Mapping[str, int]
    settings: WorkerSettings
    strict: bool = False
    isolation: bool = True
    """False: isolated tasks run like others, in this process. The test kit needs that."""
