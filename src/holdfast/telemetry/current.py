"""The attempt that this code runs in. Log lines and `Context.current()` look here."""

from contextvars import ContextVar
from typing import Protocol

from holdfast.model.work import Lease


class Current(Protocol):
    """What can be told of it. `holdfast.context` knows more."""

    @property
    def lease(self) -> Lease: ...
    @property
    def worker(self) -> str: ...


CURRENT: ContextVar[Current] = ContextVar("holdfast attempt")
