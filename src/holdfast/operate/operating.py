"""Shared by handles and control: find jobs, cancel them, and turn refusals into errors."""

from collections.abc import Iterable, Sequence

from holdfast.core.connection import StoreConnection
from holdfast.engine import Engine
from holdfast.errors import AmbiguousId, JobNotFound, KeyTaken, QueueFull, WrongState
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.operate import CancelStatus, OperateResult, OperateStatus
from holdfast.model.produce import DepthLimit
from holdfast.model.states import JobState, Reason
from holdfast.model.text import check_name
from holdfast.telemetry.events import Cancelled
from holdfast.views import CancelAnswer

RECORDS_PER_READ = 200
"""A read brings the payloads, too."""


async def find_record(store: StoreConnection, job_id: str, queue: str | None) -> JobRecord:
    """The record of a job. Without a queue all queues are searched, and two matches are an error."""
    check_name(job_id, "id")
    engine = await store.engine()
    queues = await _queues(engine, queue)
    got = (await engine.get(*(JobKey(name, job_id) for name in queues))).jobs if queues else ()
    found = [record for record in got if record is not None]
    if not found:
        raise JobNotFound(job_id=job_id, queue=queue)
    if len(found) > 1:
        raise AmbiguousId(job_id=job_id, queues=[record.queue for record in found])
    return found[0]


async def _queues(engine: Engine, queue: str | None) -> list[str]:
    return [check_name(queue, "queue")] if queue is not None else [q.queue for q in (await engine.stats()).queues]


async def find_states(store: StoreConnection, job_ids: Iterable[str], queue: str | None) -> dict[str, JobState | None]:
    """The states of jobs by id; None: there is no such job. Two matches in different queues are an error."""
    states: dict[str, JobState | None] = {check_name(job_id, "id"): None for job_id in job_ids}
    places: dict[str, str] = {}
    engine = await store.engine()
    queues = await _queues(engine, queue)
    keys = [JobKey(name, job_id) for job_id in states for name in queues]
    for start in range(0, len(keys), RECORDS_PER_READ):
        for record in (await engine.get(*keys[start : start + RECORDS_PER_READ])).jobs:
            if record is None:
                continue
            if record.id in places:
                raise AmbiguousId(job_id=record.id, queues=[places[record.id], record.queue])
            places[record.id], states[record.id] = record.queue, record.state
    return states


async def find_key(store: StoreConnection, job_id: str, queue: str | None) -> JobKey:
    """Queue and id of a job. With a queue the store is not read."""
    if queue is not None:
        return JobKey(check_name(queue, "queue"), check_name(job_id, "id"))
    return (await find_record(store, job_id, None)).job_key


async def cancel_job(store: StoreConnection, key: JobKey, note: str) -> CancelAnswer:
    engine = await store.engine()
    answer = await engine.cancel(key.queue, key.id, note=note)
    (result,) = answer.jobs
    if result.status is CancelStatus.CANCELLED and store.bus.wants(Cancelled):
        (record,) = (await engine.get(key)).jobs
        task = "" if record is None else record.task
        event = Cancelled(at=answer.at.wall, queue=key.queue, job_id=key.id, task=task, reason=Reason.ASKED, note=note)
        store.bus.emit(event)
    return CancelAnswer.of(result)


async def check_done(
    store: StoreConnection,
    keys: Sequence[JobKey],
    answers: Sequence[OperateResult],
    verb: str,
    limits: Sequence[DepthLimit] = (),
) -> int:
    """The number of jobs changed. Raises for the first job that was not; the others were changed."""
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
                unique_key = "" if record is None else record.unique_key or ""
                raise KeyTaken(job_id=key.id, queue=key.queue, key=unique_key)
            case OperateStatus.QUEUE_FULL:
                raise await _full(store, key, [limit for limit in limits if limit.queue == key.queue])
    return len(keys)


async def _full(store: StoreConnection, key: JobKey, limits: Sequence[DepthLimit]) -> QueueFull:
    """The engine does not say which limit was reached: that of the queue if it is full, else that of the lane."""
    engine = await store.engine()
    depth = (await engine.stats(key.queue)).queues[0].depth
    for limit in limits:
        if limit.lane is None and not limit.each_lane and depth >= limit.limit:
            return QueueFull(queue=key.queue, depth=depth, limit=limit.limit)
    (record,) = (await engine.get(key)).jobs
    lane = None if record is None else record.lane
    bound = next((limit.limit for limit in limits if limit.each_lane or limit.lane is not None), depth)
    return QueueFull(queue=key.queue, lane=lane, depth=bound, limit=bound)
