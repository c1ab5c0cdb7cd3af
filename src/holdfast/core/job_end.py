"""Wait for the end of one job, and explain why it has not come."""

import asyncio
import logging
import sys
from pathlib import PurePath

from holdfast.core.connection import StoreConnection
from holdfast.core.ended_workers import read_ended_workers
from holdfast.core.obstacles import JobFacts
from holdfast.core.wait_reason import wait_reason, warning
from holdfast.core.waiting import EndedJob, EndListener
from holdfast.engine import Engine
from holdfast.errors import HoldfastError, InvalidOption, WaitTimeout
from holdfast.model.job import JobKey, JobRecord

WARN_AFTER_S = 3.0
"""Seconds of waiting after which to look whether any worker can take the job."""
EXPLAIN_WITHIN_S = 2.0
"""Seconds after which a timeout is raised without its reason: the caller must not wait much longer than it asked."""

_logger = logging.getLogger("holdfast")


async def wait_for_end(
    store: StoreConnection, key: JobKey, *, limit_s: float | None, origin: str, started_at_read: int | None = None
) -> EndedJob:
    """The job once it has ended; `WaitTimeout` after `limit_s` seconds.

    `origin` is the module of the task: the argument for `holdfast worker`. `started_at_read` is the answer of
    `EndListener.start` if the job carries the reply topic already.
    """
    listener = (await store.per_loop()).end_listener
    reminder = store.runtime.spawn(_warn_if_no_worker_can(store, listener, key, origin), name="holdfast hint")
    try:
        async with asyncio.timeout(limit_s):
            if started_at_read is None:
                started_at_read = listener.start()
                if (ended := await listener.request_notification(key)) is not None:
                    return ended
            ended = await listener.wait(key, started_at_read)
            if ended.record is not None:
                listener.warned_tasks.discard(ended.record.task)
            return ended
    except TimeoutError:
        reason = await _reason(store, key, origin)
        raise WaitTimeout(job_id=key.id, waited=limit_s or 0.0, why=reason) from None
    finally:
        reminder.cancel()


async def _warn_if_no_worker_can(store: StoreConnection, listener: EndListener, key: JobKey, origin: str) -> None:
    await store.runtime.sleep(WARN_AFTER_S)
    try:
        facts = await read_facts(store, key, origin)
        line = "" if facts is None else warning(facts)
    except HoldfastError:
        return  # the waiting caller gets the error
    if facts is not None and line and facts.job.task not in listener.warned_tasks:
        listener.warned_tasks.add(facts.job.task)
        _logger.warning("%s", line)


async def _reason(store: StoreConnection, key: JobKey, origin: str) -> str:
    try:
        async with asyncio.timeout(EXPLAIN_WITHIN_S):
            facts = await read_facts(store, key, origin)
            return "" if facts is None else wait_reason(facts)
    except (HoldfastError, TimeoutError):
        return ""


async def read_facts(store: StoreConnection, key: JobKey, origin: str = "") -> JobFacts | None:
    """The job with the records around it. None: it does not exist.

    Without `blocked_by`: to find it out, a process stands in line with the writers, which a caller that polls for a
    result must not do.
    """
    engine: Engine = await store.engine()
    answer = await engine.get(key)
    (record,) = answer.jobs
    if record is None:
        return None
    stats = (await engine.stats(key.queue)).queues
    lanes = (await engine.lanes(key.queue, record.lane)).lanes if record.lane is not None else ()
    lane = lanes[0] if lanes else None
    first = key.id if lane is None or lane.head is None else lane.head
    (head,) = (None,) if first == key.id else (await engine.get(JobKey(key.queue, first))).jobs
    pools = (await engine.pools(key.queue)).pools if record.epoch else ()
    ended = await read_ended_workers(engine)
    target = _target(origin)
    only_here = origin == "__main__" and not target  # a notebook or a shell: no other process can import the task
    return JobFacts(
        job=record,
        now=answer.at.wall,
        lease_now=answer.at.lease,
        queue=stats[0] if stats else None,
        lane=lane,
        head=head,
        pool=pools[0] if pools else None,
        workers=tuple(one for one in (await engine.workers()).workers if one.worker not in ended),
        undecodable=record.waiting and _undecodable(store, record),
        store="the store of this test" if store.is_swapped else store.address,
        target="" if store.config.app else target or "MODULE",
        shared=engine.capabilities.shared_between_processes and not only_here,
    )


def _undecodable(store: StoreConnection, record: JobRecord) -> bool:
    """True if its bytes are damaged. False if they are sound, or if their codec is not known here."""
    try:
        codec = store.codec_named(record.codec)
    except InvalidOption:
        return False
    try:
        codec.decode(record.payload)
    except (HoldfastError, TypeError, ValueError):
        return True
    return False


def _target(origin: str) -> str:
    """The argument for `holdfast worker`: the module, or the name of the script that runs."""
    if origin != "__main__":
        return origin
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return PurePath(file).stem if file else ""
