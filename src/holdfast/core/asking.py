"""Waiting for one job's end, and what to say when it does not come."""

import asyncio
import logging
import sys
from pathlib import PurePath

from holdfast.core.link import Link
from holdfast.core.waiting import Ended, Waiting
from holdfast.core.why import Scene, hint, why
from holdfast.engine import Engine
from holdfast.errors import HoldfastError, WaitTimeout
from holdfast.model.job import JobKey

HINT_AFTER = 3.0
"""Seconds of waiting after which it is worth looking whether anybody can take the job."""
MOST_FOR_WHY = 2.0

_logger = logging.getLogger("holdfast")


async def ended(link: Link, key: JobKey, *, limit: float | None, origin: str, since: int | None = None) -> Ended:
    """The job once it has ended; `WaitTimeout` after `limit` seconds. With `since` it knows already whom to tell.

    `origin` is the module of the task: what to start a worker with.
    """
    desk = await link.desk()
    waiting = desk.waiting
    reminder = link.runtime.spawn(_say_if_nobody_can(link, waiting, key, origin), name="holdfast hint")
    try:
        async with asyncio.timeout(limit):
            if since is None:
                since = waiting.begin()
                if (already := await waiting.join(key)) is not None:
                    return already
            over = await waiting.ended(key, since)
            if over.record is not None:
                waiting.told.discard(over.record.task)
            return over
    except TimeoutError:
        reason = await _why(link, key, origin)
        raise WaitTimeout(job_id=key.id, waited=limit or 0.0, why=reason) from None
    finally:
        reminder.cancel()


async def _say_if_nobody_can(link: Link, waiting: Waiting, key: JobKey, origin: str) -> None:
    await link.runtime.sleep(HINT_AFTER)
    try:
        scene = await _scene(link, key, origin)
        line = "" if scene is None else hint(scene)
    except HoldfastError:
        return  # whoever waits will hear of it
    if scene is not None and line and scene.job.task not in waiting.told:
        waiting.told.add(scene.job.task)
        _logger.warning("%s", line)


async def _why(link: Link, key: JobKey, origin: str) -> str:
    """The reason, if it can be had soon: a wait that ran out must end."""
    try:
        async with asyncio.timeout(MOST_FOR_WHY):
            scene = await _scene(link, key, origin)
            return "" if scene is None or scene.job.terminal else why(scene)
    except (HoldfastError, TimeoutError):
        return ""


async def _scene(link: Link, key: JobKey, origin: str) -> Scene | None:
    engine: Engine = await link.engine()
    got = await engine.get(key)
    (record,) = got.jobs
    if record is None:
        return None
    stats = (await engine.stats(key.queue)).queues
    lanes = (await engine.lanes(key.queue)).lanes if record.lane is not None else ()
    return Scene(
        job=record,
        now=got.at.wall,
        queue=stats[0] if stats else None,
        lane=next((lane for lane in lanes if lane.lane == record.lane), None),
        workers=(await engine.workers()).workers,
        place=link.place,
        target="" if link.config.app else _target(origin),
        shared=engine.capabilities.shared_between_processes,
    )


def _target(origin: str) -> str:
    """What to give to `holdfast worker`: the module, or of a script that is run its name."""
    if origin != "__main__":
        return origin
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return PurePath(file).stem if file else ""
