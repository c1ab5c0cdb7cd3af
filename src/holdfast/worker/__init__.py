"""Working: a worker process with its slots. Start with `worker.py` (its life) and `exchange.py` (its main loop).

An attempt's way, file by file: `claims` asks for work, `exchange` brings leases, `runner` gives them the loop,
`execute` runs a handler, `outcomes` says how it ended, `outbox` and `exchange` settle it, `reporter` tells of it.
"""

from holdfast.worker.worker import Worker

__all__ = ["Worker"]
