"""What handles and the control do to jobs in the same way: find them, cancel them, and turn refusals into errors."""

from collections.abc import Sequence

from holdfast.core.connection import StoreConnection
from holdfast.errors import AmbiguousId, JobNotFound, KeyTaken, QueueFull, WrongState
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.operate import CancelStatus, OperateResult, OperateStatus
from holdfast.model.produce import DepthLimit
from holdfast.model.states import Reason
from holdfast.model.text import check_name
from holdfast.telemetry.events import Cancelled
from holdfast.views import CancelAnswer


async def find_record(store: StoreConnection, job_id: str, queue: str | None) -> JobRecord:
    """The record of a job. Without a queue all of them are looked through, and two matches are an error."""
    check_name(job_id, "id")
    engine = await store.engine()
    queues = [check_name(queue, "queue")] if queue is not None else [q.queue for q in (await engine.stats()).queues]
    got = (await engine.get(*(JobKey(name, job_id) for name in queues))).jobs if queues else ()
    found = [record for record in got if record is not None]
    if not found:
        raise JobNotFound(job_id=job_id, queue=queue)
    if len(found) > 1:
        raise AmbiguousId(job_id=job_id, queues=[record.queue for record in found])
    return found[0]


async def find_key(store: StoreConnection, job_id: str, queue: str | None) -> JobKey:
    """The full name of a job; with a queue nobody has to be asked."""
    if queue is not None:
        return JobKey(check_name(queue, "queue"), check_name(job_id, "id"))
    return (await find_record(store, job_id, None)).job_key


async def cancel_job(store: StoreConnection, key: JobKey, note: str) -> CancelAnswer:
    engine = await store.engine()
    said = await engine.cancel(key.queue, key.id, note=note)
    (answer,) = said.jobs
    if answer.status is CancelStatus.CANCELLED and store.bus.wants(Cancelled):
        (record,) = (await engine.get(key)).jobs
        task = "" if record is None else record.task
        told = Cancelled(at=said.at.wall, queue=key.queue, job_id=key.id, task=task, reason=Reason.ASKED, note=note)
        store.bus.emit(told)
    return CancelAnswer.of(answer)


async def check_done(
    store: StoreConnection,
    keys: Sequence[JobKey],
    answers: Sequence[OperateResult],
    verb: str,
    limits: Sequence[DepthLimit] = (),
) -> int:
    """How many jobs it was done to. Raises for the first to which it was not; to the others it was."""
    for key, answer in zip(keys, answers, strict=True):
        match answer.status:
            case OperateStatus.DONE:
                continue
            case OperateStatus.NOT_FOUND:
                raise JobNotFound(job_id=key.id, queue=key.queue)
            case OperateStatus.WRONG_STATE:
                raise WrongState(job_id=key.id, state=str(answer.state), verb=verb)
            case OperateStatus.KEY_TAKEN:
                (record,) = (await (await store.engine()).get(key)).jobs
                taken = "" if record is None else record.unique_key or ""
                raise KeyTaken(job_id=key.id, queue=key.queue, key=taken)
            case OperateStatus.QUEUE_FULL:
                raise await _full(store, key, [limit for limit in limits if limit.queue == key.queue])
    return len(keys)


async def _full(store: StoreConnection, key: JobKey, limits: Sequence[DepthLimit]) -> QueueFull:
    """Which of the limits it was, the engine does not say: the queue's, if it is full, else the lane's."""
    engine = await store.engine()
    depth = (await engine.stats(key.queue)).queues[0].depth
    for limit in limits:
        if limit.lane is None and not limit.each_lane and depth >= limit.limit:
            return QueueFull(queue=key.queue, depth=depth, limit=limit.limit)
    (record,) = (await engine.get(key)).jobs
    lane = None if record is None else record.lane
    bound = next((limit.limit for limit in limits if limit.each_lane or limit.lane is not None), depth)
    return QueueFull(queue=key.queue, lane=lane, depth=bound, limit=bound)
