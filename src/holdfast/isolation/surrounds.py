"""Generator middleware: a surround, which runs where the handler runs: on the event loop, in a thread, or in a child.

It sets things up and cleans up, and cannot change the outcome: an error of the handler is raised even if the generator
catches it.
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from holdfast.context import Context, Middleware, Surround


def is_surround(middleware: Middleware) -> bool:
    """True if it is the generator form."""
    return inspect.isgeneratorfunction(middleware) or inspect.isgeneratorfunction(
        getattr(middleware, "__call__", None)  # noqa: B004 - an object that is called like a function
    )


def enter_all(surrounds: tuple[Surround, ...], context: Context[Any]) -> ExitStack:
    """Enter all surrounds, the first one outermost."""
    with ExitStack() as stack:
        for surround in surrounds:
            stack.enter_context(_SurroundContext(surround(context)))
        return stack.pop_all()


class _SurroundContext:
    """A surround as a context manager that never suppresses an error."""

    def __init__(self, generator: Iterator[None]) -> None:
        self._generator: Any = generator

    def __enter__(self) -> None:
        try:
            next(self._generator)
        except StopIteration:
            raise RuntimeError("A generator middleware must yield once; this one did not.") from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                next(self._generator)
            else:
                self._generator.throw(error)
        except StopIteration:
            return  # the handler's error, if any, is raised even if the generator caught it
        except BaseException as raised:
            if raised is error or (error is not None and raised.__cause__ is error):
                if error is not None:
                    error.__traceback__ = trace  # without the frames of the generator
                return
            raise
        self._generator.close()
        raise RuntimeError("A generator middleware must yield once; this one did so again.")


def surround_name(surround: Middleware) -> str:
    """The name of a surround, which is the same in another process, also if it is defined in the main module."""
    return str(getattr(surround, "__qualname__", None) or type(surround).__qualname__)
