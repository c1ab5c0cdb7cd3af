"""The attempt that the current code belongs to, as a context variable. Log lines and `Context.current()` read it."""

from contextvars import ContextVar
from typing import Protocol

from holdfast.model.work import Lease


class Current(Protocol):
    """What log lines need of an attempt. `holdfast.context` adds the rest."""

    @property
    def lease(self) -> Lease: ...
    @property
    def worker(self) -> str: ...


CURRENT: ContextVar[Current] = ContextVar("holdfast attempt")
