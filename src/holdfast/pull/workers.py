"""The pull side of an App: in each process one pull_worker, made when somebody first claims."""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, finalize

from holdfast.blocking import move_to_loop
from holdfast.core.connection import StoreConnection
from holdfast.core.process import Process

if TYPE_CHECKING:
    from holdfast.pull.worker import PullWorker


class PullWorkers:
    """Finds the pull_worker of this process. A producer never needs one, so it is loaded when it is asked for."""

    def __init__(self, store: StoreConnection) -> None:
        self._store = store
        self._by_process: WeakKeyDictionary[Process, PullWorker] = WeakKeyDictionary()

    def current(self) -> "PullWorker":
        process = self._store.process
        found = self._by_process.get(process)
        if found is None:
            from holdfast.pull.worker import PullWorker

            made = PullWorker(self._store, process.engine)
            found = self._by_process.setdefault(process, made)
            if found is made:
                finalize(process, made.keeper.stop).atexit = False
        return found

    async def stop(self) -> None:
        """The App is about to close: leases are renewed no more, and those that nobody has seen are given back."""
        if self._by_process and (pull_worker := self._by_process.pop(self._store.process, None)) is not None:
            await move_to_loop()
            await pull_worker.stop()
