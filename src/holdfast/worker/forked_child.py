"""A forked child of a worker process: the event loop, its sockets and the leases belong to the parent.

A handler may fork. In the child its code goes on, and may use the App, which opens the store anew there. When the
handler returns or raises, the child ends (`forks.end_child`). If the handler waits for something instead, the worker's
event loop would go on in the child. So the child's loop is emptied when it is forked, and ends the child instead.
"""

import asyncio
from collections.abc import Iterable

from holdfast import forks
from holdfast.context import CURRENT
from holdfast.service import Service


class ForkGuard:
    """Keeps a worker from going on in a forked child. Made on the worker's event loop."""

    def __init__(self, worker: str, services: Iterable[Service]) -> None:
        self._worker = worker
        self._services = tuple(services)
        self._loop = asyncio.get_running_loop()
        forks.call_in_child(self._do_nothing_in_child)

    def _do_nothing_in_child(self) -> None:
        for service in self._services:
            service.stopping = True
        attempt = CURRENT.get(None)
        if attempt is not None and attempt.worker == self._worker:  # one of its handlers has forked
            for callbacks in (getattr(self._loop, "_ready", None), getattr(self._loop, "_scheduled", None)):
                if callbacks is not None:
                    callbacks.clear()
            self._loop.call_soon(forks.end_child)
