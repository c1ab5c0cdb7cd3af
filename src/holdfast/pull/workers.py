"""The pull side of an App: in each process one pull_worker, made when somebody first claims."""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, finalize

from holdfast.blocking import away_from_here
from holdfast.core.link import Link
from holdfast.core.process import Process

if TYPE_CHECKING:
    from holdfast.pull.worker import PullWorker


class PullWorkers:
    """Finds the pull_worker of this process. A producer never needs one, so it is loaded when it is asked for."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._by_process: WeakKeyDictionary[Process, PullWorker] = WeakKeyDictionary()

    def current(self) -> "PullWorker":
        process = self._link.process
        found = self._by_process.get(process)
        if found is None:
            from holdfast.pull.worker import PullWorker

            made = PullWorker(self._link, process.engine)
            found = self._by_process.setdefault(process, made)
            if found is made:
                finalize(process, made.keeper.stop).atexit = False
        return found

    async def stop(self) -> None:
        """The App is about to close: leases are renewed no more, and those that nobody has seen are given back."""
        if self._by_process and (pull_worker := self._by_process.pop(self._link.process, None)) is not None:
            await away_from_here()
            await pull_worker.stop()
