"""What happens when this process forks: the only place that registers with `os.register_at_fork`.

A forked child has copies of its parent's descriptors and memory, and none of its threads. A file lock of the kind that
we use belongs to the opening, which parent and child share: it stays locked until both have closed it, and `LOCK_UN` in
the child would release the parent's lock. So the child closes its copies at once and unlocks nothing (PF2).

A child made by `subprocess`, `posix_spawn` or the spawn method of `multiprocessing` runs another program, which
inherits no descriptor of ours: all are opened with O_CLOEXEC.
"""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

_logger = logging.getLogger("holdfast")

no_fork = threading.RLock()
"""While a thread holds it, no other thread forks. Held from the opening of a file until its object is registered."""

_in_child: set[WeakMethod[Callable[[], Any]]] = set()


def call_in_child(method: Callable[[], object]) -> None:
    """Call this bound method in every child that this process forks, before `os.fork` returns there.

    Only a weak reference is kept. The method runs in a copy of the process with one thread: it must not wait for a lock
    that another thread may have held, or use a connection of the parent.
    """
    with no_fork:
        _in_child.difference_update([reference for reference in _in_child.copy() if reference() is None])
        _in_child.add(WeakMethod(method))


def _after_fork_in_child() -> None:
    no_fork.release()
    methods = [reference() for reference in _in_child.copy()]  # all: one method may drop the object of another
    for method in methods:
        if method is not None:
            try:
                method()
            except Exception:
                _logger.exception("After a fork, %r failed in the child process.", method)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=_after_fork_in_child)
