"""What one worker is to do: its name, its queues, its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.config import MAX_SLOTS, WorkerSettings
from holdfast.durations import Duration
from holdfast.errors import InvalidOption, duration_us
from holdfast.model.instants import SECOND
from holdfast.readers import byte_size


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


def given_settings(
    *,
    concurrency: int | None,
    grace: Duration | None,
    prefetch: int | None,
    max_jobs: int | None,
    max_memory: int | str | None,
) -> dict[str, Any]:
    """The options that were given, checked: they replace settings of the same name."""
    given: dict[str, Any] = {}
    numbers = (
        ("concurrency", concurrency, 1, MAX_SLOTS),
        ("prefetch", prefetch, 0, MAX_SLOTS),
        ("max_jobs", max_jobs, 0, None),
    )
    for option, value, low, high in numbers:
        if value is not None:
            if type(value) is not int or value < low or (high is not None and value > high):
                to = "on" if high is None else f"to {high}"
                raise InvalidOption(f"`{option}` must be a whole number from {low} {to}.", option=option)
            given[option] = value
    if grace is not None:
        given["grace"] = duration_us(grace, "grace") / SECOND
    if max_memory is not None:
        try:
            given["max_memory"] = byte_size(max_memory)
        except ValueError as error:
            raise InvalidOption(f"`max_memory` {error}", option="max_memory") from error
    return given
