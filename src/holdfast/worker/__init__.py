"""A worker process and its slots. Start with `worker.py` (start and stop) and `exchange.py` (the main call).

The way of an attempt through the files: `claims` builds a claim, `exchange` gets leases, `runner` starts
them on the event loop, `execute` runs the handler, `outcomes` makes an outcome of its end, `unsettled` and `exchange`
settle it, `reporting` emits the events.
"""

from holdfast.worker.worker import Worker

__all__ = ["Worker"]
