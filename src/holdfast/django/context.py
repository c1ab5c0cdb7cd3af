"""What a Django task with `takes_context=True` gets as its first argument."""

from dataclasses import dataclass, field
from typing import Any

from holdfast.context import AbortReason, Context
from holdfast.django.tasks_api import TaskContext
from holdfast.views import Job


@dataclass(frozen=True, kw_only=True)
class HoldfastTaskContext(TaskContext):
    """Django's context (`task_result`, `attempt`) with a part of Holdfast's."""

    holdfast: Context[Any] = field(repr=False)
    """The Context of the attempt: everything else."""

    @property
    def attempt(self) -> int:
        return self.holdfast.attempt

    @property
    def job(self) -> Job:
        return self.holdfast.job

    @property
    def fence(self) -> int:
        """Grows with every lease of this job and this lane: give it to systems that can refuse a smaller one."""
        return self.holdfast.fence

    @property
    def aborted(self) -> bool:
        """True if this attempt has to stop. A plain function checks it in its loops."""
        return self.holdfast.aborted

    @property
    def abort_reason(self) -> AbortReason | None:
        return self.holdfast.abort_reason

    def progress(self, fraction: float, note: str = "") -> None:
        """Report progress from 0 to 1."""
        self.holdfast.progress(fraction, note)
