"""What an operator needs: look, cancel, bring back, pause, clear. CLI, dashboard and HTTP use only this and Client.

Four verbs, four meanings. A failed attempt is tried again: *retry*, which nobody has to ask for. *Requeue* brings a
failed or cancelled job back, its attempts reset. *Trigger* makes a scheduled or retrying job due now. *Resume* lets a
paused queue or lane run again.

A bare id is looked for in every queue; where two have it, `AmbiguousId` says which.
"""

from collections.abc import Mapping
from datetime import datetime

from holdfast.blocking import blocking
from holdfast.core.link import Link
from holdfast.core.producing import limits_of
from holdfast.errors import InvalidOption, JobNotFound, WrongState, duration_us
from holdfast.model.job import JobKey
from holdfast.model.retry import Duration
from holdfast.model.states import JobState
from holdfast.model.text import check_name
from holdfast.operate.operating import cancel_job, check_done, find_key, find_record
from holdfast.operate.report import Report, report_of
from holdfast.operate.searching import Page, Search
from holdfast.telemetry.events import QueueCleared, QueuePaused, QueueResumed
from holdfast.views import CancelAnswer, Job, LaneStatus, PoolSize, QueueStatus, WorkerStatus

CHUNK = 500


class Control:
    """`jobs.control`. It may be shared between threads."""

    def __init__(self, link: Link) -> None:
        self._link = link

    # Looking

    async def aget(self, job_id: str, /, *, queue: str | None = None) -> Job:
        """The job as it is now."""
        return Job.from_record(await find_record(self._link, job_id, queue), self._link.codec_named)

    get = blocking(aget)

    async def areport(self, job_id: str, /, *, queue: str | None = None) -> Report:
        """Its report, as far as it goes by now."""
        return report_of(await find_record(self._link, job_id, queue), self._link.codec_named)

    report = blocking(areport)

    async def afind(
        self,
        /,
        *,
        state: JobState | str | None = None,
        task: str | None = None,
        queue: str | None = None,
        lane: str | None = None,
        since: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """One page of jobs: queue by queue, state by state, and inside these the newest first.

        The page's cursor goes on where it ended; None: that was all.
        """
        search = Search.of(state=state, task=task, queue=queue, lane=lane, since=since, metadata=metadata)
        return await search.page(self._link, limit, cursor)

    find = blocking(afind)

    async def aqueues(self, /) -> list[QueueStatus]:
        """Every queue, by name."""
        return [QueueStatus.of(stats) for stats in (await (await self._link.engine()).stats()).queues]

    queues = blocking(aqueues)

    async def alanes(self, queue: str, /) -> list[LaneStatus]:
        """Every lane of a queue, by name."""
        engine = await self._link.engine()
        lanes = (await engine.lanes(check_name(queue, "queue"))).lanes
        heads = [JobKey(queue, lane.head) for lane in lanes if lane.head is not None]
        records = (await engine.get(*heads)).jobs if heads else ()
        arrivals = {record.id: record.arrival for record in records if record is not None}
        return [LaneStatus.of(lane, None if lane.head is None else arrivals.get(lane.head)) for lane in lanes]

    lanes = blocking(alanes)

    async def astatus(self, queue: str, /, *, lane: str | None = None) -> QueueStatus | LaneStatus:
        """A queue, or one lane of it, at a glance. One that nobody has used yet is empty."""
        if lane is None:
            (stats,) = (await (await self._link.engine()).stats(check_name(queue, "queue"))).queues
            return QueueStatus.of(stats)
        check_name(lane, "lane")
        known = {status.lane: status for status in await self.alanes(queue)}
        return known.get(lane) or LaneStatus.unused(queue, lane)

    status = blocking(astatus)

    async def aworkers(self, /) -> list[WorkerStatus]:
        """Every worker that has been heard of lately, by name."""
        said = await (await self._link.engine()).workers()
        return [WorkerStatus.of(worker, said.at.wall) for worker in said.workers]

    workers = blocking(aworkers)

    async def astats(self, /) -> QueueStatus:
        """All queues together. Its name is empty."""
        return QueueStatus.sum(await self.aqueues())

    stats = blocking(astats)

    async def astop_worker(self, name: str, /) -> bool:
        """Ask a worker to stop gently. False: there is none of that name."""
        return (await (await self._link.engine()).stop_worker(name)).found

    stop_worker = blocking(astop_worker)

    async def apools(self, /) -> list[PoolSize]:
        """Every pool, by name. A pool exists from its first job on."""
        return [PoolSize.of(pool) for pool in (await (await self._link.engine()).pools()).pools]

    pools = blocking(apools)

    async def aresize(self, pool: str, lanes: int, /) -> PoolSize:
        """Give a pool another number of lanes; every key stays in order. `WrongState` while it is changing already."""
        answer = await (await self._link.engine()).resize(pool, lanes)
        if answer.pool.lanes != lanes:
            raise WrongState(
                f"Pool {pool!r} is still changing to {answer.pool.lanes} lanes: {answer.pool.old_live} older jobs have "
                "not ended. Try again when they have.",
                job_id=pool,
                state="resizing",
                verb="resize",
            )
        return PoolSize.of(answer.pool)

    resize = blocking(aresize)

    # Jobs

    async def acancel(self, job_id: str, /, *, queue: str | None = None, reason: str = "") -> CancelAnswer:
        """Keep a job from running, or ask its worker to stop it."""
        try:
            key = await find_key(self._link, job_id, queue)
        except JobNotFound:
            return CancelAnswer("not_found")
        return await cancel_job(self._link, key, reason)

    cancel = blocking(acancel)

    async def arequeue(
        self, /, *job_ids: str, task: str | None = None, queue: str | None = None, all_failed: bool = False
    ) -> int:
        """Bring back these jobs, or every failed one (of a task, of a queue), the oldest first; answer how many.

        Of several ids each is brought back for itself. The first that cannot be raises, after the others were.
        """
        if bool(job_ids) == all_failed:
            raise InvalidOption("requeue() takes ids, or all_failed=True, and not both.", option="all_failed")
        if job_ids:
            if task is not None:
                raise InvalidOption("`task` goes with all_failed=True; ids say enough.", option="task")
            keys = [await find_key(self._link, job_id, queue) for job_id in job_ids]
            return await self._requeue(keys)
        return await self._requeue_all_failed(Search.of(state=JobState.FAILED, task=task, queue=queue))

    requeue = blocking(arequeue)

    async def _requeue_all_failed(self, search: Search) -> int:
        keys: list[JobKey] = []
        cursor: str | None = None
        while True:
            page = await search.page(self._link, CHUNK, cursor)
            keys += [JobKey(job.queue, job.id) for job in page]
            cursor = page.cursor
            if cursor is None:
                break
        keys.reverse()
        return sum([await self._requeue(keys[at : at + CHUNK], gone=True) for at in range(0, len(keys), CHUNK)])

    async def _requeue(self, keys: list[JobKey], *, gone: bool = False) -> int:
        """`gone`: one that has left meanwhile is no error."""
        engine = await self._link.engine()
        count = 0
        for queue in dict.fromkeys(key.queue for key in keys):
            limits = limits_of(self._link, [queue])
            mine = [key for key in keys if key.queue == queue]
            answers = (await engine.requeue(queue, *(key.id for key in mine), limits=limits)).jobs
            pairs = [(k, a) for k, a in zip(mine, answers, strict=True) if not (gone and a.status == "not_found")]
            count += await check_done(self._link, [k for k, _ in pairs], [a for _, a in pairs], "requeue", limits)
        return count

    async def atrigger(self, job_id: str, /, *, queue: str | None = None) -> None:
        """Make a scheduled or retrying job due now."""
        key = await find_key(self._link, job_id, queue)
        answers = (await (await self._link.engine()).trigger(key.queue, key.id)).jobs
        await check_done(self._link, [key], answers, "trigger")

    trigger = blocking(atrigger)

    async def adelete(self, job_id: str, /, *, queue: str | None = None) -> None:
        """Remove a finished job, with its result and its history."""
        key = await find_key(self._link, job_id, queue)
        answers = (await (await self._link.engine()).delete(key.queue, key.id)).jobs
        await check_done(self._link, [key], answers, "delete")

    delete = blocking(adelete)

    async def aset_result_ttl(self, job_id: str, ttl: Duration, /, *, queue: str | None = None) -> None:
        """Keep the result for this long after the job's end, whether it has ended or not."""
        length = duration_us(ttl, "ttl")
        key = await find_key(self._link, job_id, queue)
        answers = (await (await self._link.engine()).amend(key.queue, key.id, result_ttl=length)).jobs
        await check_done(self._link, [key], answers, "change")

    set_result_ttl = blocking(aset_result_ttl)

    # Queues and lanes

    async def apause(self, queue: str, /, *, lane: str | None = None) -> bool:
        """No job of it is taken any more; enqueueing goes on. False: it was paused before."""
        said = await (await self._link.engine()).pause(queue, lane)
        if said.changed and self._link.bus.wants(QueuePaused):
            self._link.bus.emit(QueuePaused(at=said.at.wall, queue=queue, lane=lane))
        return said.changed

    pause = blocking(apause)

    async def aresume(self, queue: str, /, *, lane: str | None = None) -> bool:
        """Undo `pause`. False: it was not paused."""
        said = await (await self._link.engine()).resume(queue, lane)
        if said.changed and self._link.bus.wants(QueueResumed):
            self._link.bus.emit(QueueResumed(at=said.at.wall, queue=queue, lane=lane))
        return said.changed

    resume = blocking(aresume)

    async def aclear(self, queue: str, /, *, lane: str | None = None) -> int:
        """Cancel everything in it that has not ended, running jobs included; answer how many that were."""
        said = await (await self._link.engine()).clear(queue, lane)
        if self._link.bus.wants(QueueCleared):
            self._link.bus.emit(QueueCleared(at=said.at.wall, queue=queue, lane=lane, count=said.count))
        return said.count

    clear = blocking(aclear)
