"""The state with all fast paths.

A fast path gives the same answers as `SqliteState` with fewer or smaller statements. Each is a file of its own,
`fast_*.py`, and one switch turns all of them off: `open_engine(…, fast_paths=False)`. The contract suite and the
differential machine run with the switch in both positions.

Not behind the switch: the cache inside one transaction, the batches that `flush` writes, and the numbers of names. They
are how `SqliteState` answers; without them it would be another implementation.
"""

from holdfast.engines.sqlite.fast_cache import CacheBetweenTransactions
from holdfast.engines.sqlite.fast_enqueue import PlainEnqueues
from holdfast.engines.sqlite.fast_fresh_ids import FreshIds
from holdfast.engines.sqlite.fast_updates import NarrowUpdates


class FastState(PlainEnqueues, FreshIds, NarrowUpdates, CacheBetweenTransactions):
    """Used by the writer and the renewal connections, if the switch is on."""
