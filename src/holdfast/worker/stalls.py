"""Handlers whose C code holds the GIL so long that leases are lost.

No thread of the process runs meanwhile, so nothing can renew its leases. The worker notices it afterwards and names
the jobs that ran, and the time. To cure it, release the GIL in the C code, or use `isolate="process"`: the code of such
a task does not run in this process.
"""

import logging
from collections.abc import Sequence

from holdfast.model.instants import SECOND, Micros
from holdfast.model.text import shown
from holdfast.worker.attempt import LeasedAttempt

MAX_NAMED = 10

_logger = logging.getLogger("holdfast.watcher")


def note_stall(attempts: Sequence[LeasedAttempt], stalled_us: Micros, now: Micros) -> None:
    """No thread has run for `stalled_us` until `now` (monotonic). Attempts that began before are the suspects."""
    suspects = [
        one
        for one in attempts
        if one.began_at is not None and one.began_at <= now - stalled_us + SECOND and not one.plan.is_isolated
    ]
    jobs = ", ".join(f"{shown(one.lease.id)} ({shown(one.plan.name)})" for one in suspects[:MAX_NAMED])
    advice = ' Give the task isolate="process", or release the GIL in that code.' if suspects else ""
    _logger.error(
        "No thread of this worker could run for %.1f s: code that holds the GIL, such as a C extension. Jobs: %s.%s",
        stalled_us / SECOND,
        jobs or "none",
        advice,
    )
