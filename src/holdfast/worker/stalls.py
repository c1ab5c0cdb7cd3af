"""Handlers whose C code holds the GIL so long that leases are lost.

No thread of the process runs meanwhile, so nothing can renew its leases. The worker notices it afterwards and names
the jobs that ran. If they are all of one task, that task stalls its neighbours: from then on this worker runs its jobs
alone (`Claims`). To cure it, release the GIL in the C code, or use `isolate="process"`: the code of
such a task does not run in this process.
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
    plans = {one.plan.name: one.plan for one in suspects}
    jobs = ", ".join(f"{shown(one.lease.id)} ({shown(one.plan.name)})" for one in suspects[:MAX_NAMED])
    text = "No thread of this worker could run for %.1f s: code that holds the GIL, such as a C extension. Jobs: %s."
    if len(plans) == 1:
        (plan,) = plans.values()
        plan.runs_alone = True
        text += " This worker runs jobs of that task alone from now on."
    elif plans:
        text += " One of them is the cause."
    _logger.error(text, stalled_us / SECOND, jobs or "none")
