"""How much one call does, and how long silence lasts before it counts. The same for every engine.

Each of these is a number that the ledger and an engine with rules of its own have to agree on.
"""

from holdfast.model.instants import HOUR, SECOND

MOST_PROMOTED = 1_000
"""Jobs of one queue that a claim moves from waiting to ready; the next claim goes on."""
MOST_EXPIRED = 1_000
"""Jobs past their `expires` that a claim cancels in one queue before it gives up looking."""
MOST_RESOLVED = 1_000
"""Edges that one call resolves, so that the end of a parent of many children stays a short transaction."""
LANES_LOOKED_AT = 1_000
"""Lanes of a pool in which a group looks for room; more of them for more jobs. Other callers wait meanwhile."""

REAPED_BY_ALL_AFTER = 10
"""Lease lengths. An expired lease that is overdue for longer may be reaped by a worker without the job's task."""

ALIVE_FOR_INTERVALS = 3
"""Heartbeat intervals after its last heartbeat, for which a worker counts as alive."""
INTERVAL_IF_UNKNOWN = 10 * SECOND
"""Microseconds: the heartbeat interval of a record that names none."""
SILENT_AFTER_INTERVALS = 10
"""Heartbeat intervals without a heartbeat, after which a worker's record is removed."""
SILENT_AT_LEAST = HOUR
"""Microseconds. No worker's record is removed earlier, however short its interval is."""
