"""Describes the exceptions of handlers without blocking the event loop.

The text of an exception may come from the user's code (`__str__`), and a long chain of causes takes seconds to format.
A plain exception is described at once. Any other is described in a thread, within a time limit. After the limit only
its type is stored. A KeyboardInterrupt or SystemExit that such code raises stays in that thread.
"""

import asyncio
from types import WrapperDescriptorType

from holdfast.model.instants import Seconds
from holdfast.model.text import ErrorInfo, describe, describe_type
from holdfast.runtime import Runtime

TIMEOUT_S: Seconds = 2.0
"""A description may take this long. The slot of the attempt is taken meanwhile."""
MAX_THREADS = 8
"""If this many descriptions do not end, no further one is begun: each would keep a thread for ever."""
MAX_PLAIN_LINKS = 10
MAX_PLAIN_CHARACTERS = 10_000
_PLAIN_VALUES = (str, int, float, bool, bytes, type(None))
_INSPECTED = (AttributeError, NameError, ImportError)
"""For these the standard library looks at the user's objects to suggest another name."""


class ErrorDescriber:
    """Used from one event loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._in_flight = 0

    def describe_plain(self, error: BaseException) -> ErrorInfo | None:
        """The description of an exception that runs no code of users and is short. None: use `describe`."""
        return describe(error) if _is_plain(error) else None

    async def describe(self, error: BaseException) -> ErrorInfo:
        """Describe it in a thread. Never raises, and lasts no longer than the limit."""
        if self._in_flight >= MAX_THREADS:
            return ErrorInfo(describe_type(error), "<not formatted: earlier errors are still being formatted>", "")
        self._in_flight += 1
        work = self._runtime.spawn(self._runtime.run_blocking(describe, error), name="holdfast error description")
        work.add_done_callback(self._on_end)
        done, _ = await asyncio.wait({work}, timeout=TIMEOUT_S)
        if done and not work.cancelled() and work.exception() is None:
            return work.result()
        return ErrorInfo(describe_type(error), f"<not formatted within {TIMEOUT_S:g} s>", "")

    def _on_end(self, work: "asyncio.Task[ErrorInfo]") -> None:
        """Also if other code has cancelled it before it began."""
        self._in_flight -= 1


def _is_plain(error: BaseException) -> bool:
    characters = 0
    current: BaseException | None = error
    for _ in range(MAX_PLAIN_LINKS):
        if current is None:
            return True
        kind = type(current)
        if kind.__getattribute__ is not BaseException.__getattribute__ or issubclass(
            kind, (BaseExceptionGroup, *_INSPECTED)
        ):
            return False
        if type(kind.__str__) is not WrapperDescriptorType or type(kind.__repr__) is not WrapperDescriptorType:
            return False
        texts = (*current.args, *getattr(current, "__notes__", ()))
        if not all(type(text) in _PLAIN_VALUES for text in texts):
            return False
        characters += sum(len(text) for text in texts if isinstance(text, str | bytes))
        if characters > MAX_PLAIN_CHARACTERS:
            return False
        current = current.__cause__ or current.__context__
    return False
