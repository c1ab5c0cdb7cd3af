"""Names of queues, lanes and pools on the command line: an unknown one is most often a typing error."""

from collections.abc import Iterable

from holdfast.cli.exits import NothingMatched
from holdfast.cli.options import Store
from holdfast.operate.queues import did_you_mean


def check_queue(store: Store, name: str, lane: str | None = None, *, advice: str = "") -> None:
    """Exit with code 4 if there is no such queue, or no such lane of it."""
    hint = unknown_queue(store, name)
    if hint:
        raise NothingMatched(hint + advice)
    if lane is not None and lane not in (lanes := _lanes(store, name)):
        raise NothingMatched(f"Queue {name!r} has no lane {lane!r}.{did_you_mean(lane, lanes)}{advice}")


def check_pool(store: Store, name: str) -> None:
    """Exit with code 4 if there is no such pool."""
    names = [pool.name for pool in store.control.pools()]
    if name not in names:
        hint = did_you_mean(name, names)
        raise NothingMatched(f"There is no pool {name!r}. A pool exists from its first job on.{hint}")


def unknown_queue(store: Store, name: str | None) -> str:
    """A sentence if there is no queue of this name, neither stored nor of a live worker nor of a task of the App."""
    names = () if name is None else _queues(store)
    if name is None or name in names:
        return ""
    return f"There is no queue {name!r}.{did_you_mean(name, names)}"


def _queues(store: Store) -> set[str]:
    stored = {queue.queue for queue in store.control.queues()}
    served = {queue for worker in store.control.workers() if worker.alive for queue in worker.queues}
    return stored | served | {task.queue for task in store.app.registry.values()}


def _lanes(store: Store, queue: str) -> Iterable[str]:
    sizes = [pool.lanes for pool in store.control.pools() if pool.name == queue]
    return {lane.lane for lane in store.control.lanes(queue)} | {str(n) for lanes in sizes for n in range(lanes)}
