"""The end of a process whose worker does not stop in time.

A worker stops on its event loop, so code that blocks the loop also blocks the stop. A request to stop therefore has a
limit that does not depend on the loop: this thread ends the process when the limit has passed. The leases of the worker
are then found by its process record, as after any other death of a process.

The thread cannot run while C code holds the GIL: then the process ends when that code releases it.
"""

import faulthandler
import logging
from queue import Empty, SimpleQueue

from holdfast.model.instants import SECOND, Micros, Seconds
from holdfast.runtime import Runtime, end_process

MARGIN_S: Seconds = 10.0
"""After its grace a worker gets this long to release its jobs and to end."""
EXIT_CODE = 1
"""Of a process that is ended so: a supervisor restarts it."""

_logger = logging.getLogger("holdfast.worker")


class ForcedExit:
    """Ends the process by `os._exit`, unless `stop` is called within the limit."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._graces: SimpleQueue[Seconds | None] = SimpleQueue()

    def start(self) -> None:
        self._runtime.thread(self._work, name="holdfast forced exit")

    def after(self, grace_s: Seconds) -> None:
        """The worker must have stopped `MARGIN_S` after this grace. A later call can only shorten the time.

        Call it from any thread. A signal handler may call it too: `SimpleQueue.put` can be entered again.
        """
        self._graces.put(grace_s)

    def stop(self) -> None:
        """The worker has stopped: there is no limit any more."""
        self._graces.put(None)

    def _work(self) -> None:
        end_at: Micros | None = None
        while True:
            left_s = None if end_at is None else max(0.0, (end_at - self._runtime.monotonic()) / SECOND)
            try:
                grace_s = self._graces.get(timeout=left_s)  # no limit: `stop` ends the wait
            except Empty:
                self._end_process()
                return
            if grace_s is None:
                return
            at = self._runtime.monotonic() + round((grace_s + MARGIN_S) * SECOND)
            if end_at is None or at < end_at:
                end_at = at

    def _end_process(self) -> None:
        try:
            _logger.critical("The process has not stopped in time, so it ends now. Its threads:")
            faulthandler.dump_traceback(2)
        finally:
            end_process(EXIT_CODE)
