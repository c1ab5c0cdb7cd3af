"""For error trackers: they read the exception in `sys.exc_info()`, and group log records by the message template."""

from collections.abc import Callable
from typing import TypeVar

from holdfast.model.text import shown

R = TypeVar("R")


def call_with_active(error: BaseException | None, function: Callable[[], R]) -> R:
    """Call the function as an `except` block that has caught this error would. None: just call it."""
    if error is None:
        return function()
    try:
        raise error
    except BaseException:
        return function()
    finally:
        del error  # its traceback refers to this frame


def failure_template(task: str, kind: str) -> str:
    """The beginning of a log template. Failures of one task and kind form a group."""
    return f"{shown(task)}: {shown(kind)}: ".replace("%", "%%")
