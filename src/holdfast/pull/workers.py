"""The pull workers of an App: one in each process, new at the first claim there."""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, finalize

from holdfast.blocking import move_to_loop
from holdfast.core.connection import StoreConnection
from holdfast.core.process import Process

if TYPE_CHECKING:
    from holdfast.pull.worker import PullWorker


class PullWorkers:
    """Finds the pull worker of this process. It is imported at the first claim: a producer never needs it."""

    def __init__(self, store: StoreConnection) -> None:
        self._store = store
        self._by_process: WeakKeyDictionary[Process, PullWorker] = WeakKeyDictionary()

    def current(self) -> "PullWorker":
        process = self._store.process
        pull_worker = self._by_process.get(process)
        if pull_worker is None:
            from holdfast.pull.worker import PullWorker

            new = PullWorker(self._store, process.engine)
            pull_worker = self._by_process.setdefault(process, new)
            if pull_worker is new:
                finalize(process, new.keeper.stop).atexit = False
        return pull_worker

    async def stop(self) -> None:
        """The App is about to close: stop renewing leases, and release those that no loop has handed out."""
        if self._by_process and (pull_worker := self._by_process.pop(self._store.process, None)) is not None:
            await move_to_loop()
            await pull_worker.stop()
