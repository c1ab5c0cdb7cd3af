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
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn
from weakref import WeakMethod

_logger = logging.getLogger("holdfast")

Lock = threading.Lock
now_s = time.monotonic

OPENING_LIMIT_S = 5.0
"""A fork waits this long for a thread that opens a file."""

no_fork = threading.RLock()
"""While a thread holds it, no other thread forks. Held from the opening of a file until its object is registered."""

_forking = threading.RLock()
"""One thread forks at a time."""

_without_turn: set[int] = set()
"""Threads that fork while another one does: they waited for too long. Participants are left to the other thread."""

depth = 0
"""How many forks are between the process that loaded this module and this one. Code that calls a function of the user
compares it before and after, to notice that it has returned in a child."""


class AtFork:
    """An object that lives as long as the process and takes part in every fork."""

    def before_fork(self) -> None:
        """Take what no thread may hold at a fork. May be called again, for what is new since then."""

    def is_ready(self) -> bool:
        """True if nothing is new since `before_fork`."""
        return True

    def after_fork_in_parent(self) -> None: ...
    def after_fork_in_child(self) -> None: ...


_in_child: set[WeakMethod[Callable[[], Any]]] = set()
_around: list[AtFork] = []


def call_in_child(method: Callable[[], object]) -> None:
    """Call this bound method in every child that this process forks, before `os.fork` returns there.

    Only a weak reference is kept. The method runs in a copy of the process with one thread: it must not wait for a lock
    that another thread may have held, or use a connection of the parent.
    """
    with no_fork:
        _in_child.difference_update([reference for reference in _in_child.copy() if reference() is None])
        _in_child.add(WeakMethod(method))


class ChildCopy:
    """The copy of a socket that a forked child gets. The child drops it at once.

    Its number stays in use, for /dev/null: the copy of the parent's object may close that number later. `fileno`
    answers it; below 0: the socket is closed.
    """

    def __init__(self, fileno: Callable[[], int]) -> None:
        self._fileno = fileno
        call_in_child(self._drop)

    def _drop(self) -> None:
        fd = self._fileno()
        if fd >= 0:
            with open(os.devnull, "r+b", buffering=0) as nothing:
                os.dup2(nothing.fileno(), fd, inheritable=False)


def keep_for_ever(of_parent: object) -> None:
    """In a child: never finalize this object of the parent, not even when the interpreter ends."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(of_parent))


def call_around(participant: AtFork) -> None:
    """Call the methods of this object before and after every fork."""
    _around.append(participant)


def _before_fork() -> None:
    """A thread that uses something of a participant may open a file: `no_fork` is the second lock that it takes.

    So it is the second one here, too. What another thread has opened between the two is new to its participant.
    """
    deadline_s = now_s() + OPENING_LIMIT_S
    if not _forking.acquire(timeout=OPENING_LIMIT_S):
        # The other thread may wait for one that waits for this thread, so no limit is right. What it has taken for its
        # own child is right for this child, too. What it has not taken counts as in use there.
        _without_turn.add(threading.get_ident())
        no_fork.acquire(timeout=0)
        return
    while True:
        for participant in _around:
            _call(participant.before_fork)
        acquired = no_fork.acquire(timeout=max(0.0, deadline_s - now_s()))
        if not acquired or now_s() >= deadline_s or all(participant.is_ready() for participant in _around):
            return
        no_fork.release()


def _after_fork_in_parent() -> None:
    thread = threading.get_ident()
    if thread not in _without_turn:
        for participant in _around:
            _call(participant.after_fork_in_parent)
    _without_turn.discard(thread)
    for lock in (no_fork, _forking):
        with suppress(RuntimeError):  # it was not acquired in time
            lock.release()


def end_child(error: BaseException | None = None) -> NoReturn:
    """End this child: a function of the user has returned, or raised, in the child that it has forked.

    What follows belongs to the parent: the worker's event loop, its leases, its connections. Buffered output is not
    written, because the parent writes it, too.
    """
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        code = 1
        _logger.error("A process that a handler has forked ends with this error.", exc_info=error)
    os._exit(code)


def _after_fork_in_child() -> None:
    global depth  # noqa: PLW0603 - there is one process
    depth += 1
    _without_turn.clear()
    for lock in (no_fork, _forking):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # the standard library's own way: a dead thread may hold it
    methods = [reference() for reference in _in_child.copy()]  # all: one method may drop the object of another
    for participant in _around:
        _call(participant.after_fork_in_child)
    for method in methods:
        if method is not None:
            _call(method)


def _call(method: Callable[[], object]) -> None:
    try:
        method()
    except Exception:
        _logger.exception("%r failed at a fork.", method)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
