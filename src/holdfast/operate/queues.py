"""Queues and pools by name: remove one, and similar names for a name that does not exist."""

from collections.abc import Iterable
from difflib import get_close_matches

from holdfast.core.connection import StoreConnection
from holdfast.errors import WrongState
from holdfast.model.operate import RemoveQueueAnswer, RemoveStatus


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A question with the most similar names, with a blank before it; empty if none is similar."""
    near = " or ".join(map(repr, get_close_matches(name, names)))
    return f" Did you mean {near}?" if near else ""


async def remove_queue(store: StoreConnection, queue: str) -> bool:
    """Remove a queue. False: there is none of this name. `WrongState`: it is in use."""
    answer = await (await store.engine()).remove_queue(queue)
    if answer.status in (RemoveStatus.REMOVED, RemoveStatus.NOT_FOUND):
        return answer.status is RemoveStatus.REMOVED
    raise WrongState(
        f"Queue {queue!r} is not removed: {_why_refused(answer)}",
        job_id=queue,
        state=answer.status.value,
        verb="remove",
    )


def _why_refused(answer: RemoveQueueAnswer) -> str:
    if answer.status is RemoveStatus.HAS_JOBS:
        jobs = "1 job" if answer.jobs == 1 else f"{answer.jobs:,} jobs"
        return (
            f"it has {jobs}, ended ones included. Clear it to end the live ones; delete ended ones, or wait until they "
            "are pruned."
        )
    if answer.status is RemoveStatus.PAUSED:
        return "it, or a lane of it, is paused, and the pause would be lost. Resume it first."
    return f"live workers take from it: {', '.join(answer.workers)}. Stop them first."
