"""The switch of the engines' fast paths, as the contract suite and the differential machine set it.

Both suites run an engine with fast paths twice: as `NAME`, and in a short form as `NAME-general`, with the switch off.
`HOLDFAST_FAST_PATHS=0` turns the switch off for `NAME` too, so that the general path runs the whole of a suite:
`make long` does that.
"""

import os

FAST_PATHS = os.environ.get("HOLDFAST_FAST_PATHS", "1") != "0"

SHORT = frozenset(
    f"test_{verb}"
    for verb in ["claim", "claim_options", "clear", "dedupe", "enqueue", "exchange", "lanes", "settle", "transactions"]
)
"""The files of the contract suite that meet a fast path of some engine."""
