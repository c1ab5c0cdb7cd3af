"""For operators: look at jobs, cancel, requeue, pause, clear. The command line uses only this and the client.

Four verbs, four meanings. *Retry*: the worker runs a failed attempt again by itself. *Requeue* brings a failed or
cancelled job back, with its attempts reset. *Trigger* makes a scheduled or retrying job due now. *Resume* lets a paused
queue or lane run again.

A bare id is searched in every queue; if two have it, `AmbiguousId` says which.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.blocking import blocking, move_to_loop
from holdfast.core.connection import StoreConnection
from holdfast.core.ended_workers import read_ended_workers
from holdfast.core.job_end import read_facts
from holdfast.core.wait_reason import Why, explain
from holdfast.durations import Duration
from holdfast.errors import InvalidOption, JobNotFound, WrongState, duration_us
from holdfast.model.findings import Finding
from holdfast.model.job import JobKey
from holdfast.model.records import LaneRecord
from holdfast.model.states import JobState
from holdfast.model.text import check_name
from holdfast.operate.operating import cancel_job, check_done, find_key, find_record
from holdfast.operate.overview import StoreOverview, read_overview, sum_of
from holdfast.operate.queues import did_you_mean, remove_queue
from holdfast.operate.report import Report, report_of
from holdfast.operate.searching import Page, Search
from holdfast.telemetry.events import QueueCleared, QueuePaused, QueueResumed
from holdfast.views import CancelAnswer, Job, LaneStatus, PoolSize, QueueStatus, WorkerStatus

if TYPE_CHECKING:
    from holdfast.doctor.examine import PolicyHolder

CHUNK = 500
"""Jobs requeued in one call to the engine."""


class Control:
    """`jobs.control`. It may be shared between threads."""

    def __init__(self, store: StoreConnection, tasks: "Mapping[str, PolicyHolder]" = MappingProxyType({})) -> None:
        self._store = store
        self._tasks = tasks

    # Observing

    async def aget(self, job_id: str, /, *, queue: str | None = None) -> Job:
        """The job as it is now."""
        return Job.from_record(await find_record(self._store, job_id, queue), self._store.codec_named)

    get = blocking(aget)

    async def awhy(self, job_id: str, /, *, queue: str | None = None) -> Why:
        """Why the job has not ended: everything that keeps it from running, who holds it, and when it ends."""
        await move_to_loop()
        key = await find_key(self._store, job_id, queue)
        facts = await read_facts(self._store, key)
        if facts is None:
            raise JobNotFound(job_id=job_id, queue=queue)
        blocked_by = await (await self._store.engine()).blocked_by()
        return explain(replace(facts, blocked_by=blocked_by), self._store.codec_named)

    why = blocking(awhy)

    async def areport(self, job_id: str, /, *, queue: str | None = None) -> Report:
        """The report of the job up to now."""
        return report_of(await find_record(self._store, job_id, queue), self._store.codec_named)

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

        The cursor of a page continues after its last job; None: this is the last page.
        """
        search = Search.of(state=state, task=task, queue=queue, lane=lane, since=since, metadata=metadata)
        return await search.page(self._store, limit, cursor)

    find = blocking(afind)

    async def aqueues(self, /) -> list[QueueStatus]:
        """Every queue, by name."""
        return [QueueStatus.of(stats) for stats in (await (await self._store.engine()).stats()).queues]

    queues = blocking(aqueues)

    async def alanes(self, queue: str, /) -> list[LaneStatus]:
        """Every lane of a queue, by name."""
        return await self._lanes(check_name(queue, "queue"))

    async def _lanes(self, queue: str, *names: str) -> list[LaneStatus]:
        engine = await self._store.engine()
        lanes = (await engine.lanes(queue, *names)).lanes
        heads = [JobKey(queue, lane.head) for lane in lanes if lane.head is not None]
        records = (await engine.get(*heads)).jobs if heads else ()
        stored = {record.id: record for record in records if record is not None}
        return [LaneStatus.of(lane, None if lane.head is None else stored.get(lane.head)) for lane in lanes]

    lanes = blocking(alanes)

    async def astatus(self, queue: str, /, *, lane: str | None = None) -> QueueStatus | LaneStatus:
        """The depth and the counters of a queue, or of one lane of it. An unused one is empty."""
        if lane is None:
            (stats,) = (await (await self._store.engine()).stats(check_name(queue, "queue"))).queues
            return QueueStatus.of(stats)
        stored = await self._lanes(check_name(queue, "queue"), check_name(lane, "lane"))
        return stored[0] if stored else LaneStatus.of(LaneRecord(queue=queue, lane=lane), None)

    status = blocking(astatus)

    async def aworkers(self, /) -> list[WorkerStatus]:
        """Every worker and manager with a recent record, by name."""
        engine = await self._store.engine()
        answer, ended = await engine.workers(), await read_ended_workers(engine)
        managers = {child: one.worker for one in answer.workers for child in one.children}
        return [
            WorkerStatus.of(one, answer.at.wall, ended=one.worker in ended, manager=managers.get(one.worker, ""))
            for one in answer.workers
        ]

    workers = blocking(aworkers)

    async def aoverview(self, /) -> StoreOverview:
        """All queues and workers, and what is wrong with them: what `holdfast status` shows."""
        return await read_overview(await self._store.engine())

    overview = blocking(aoverview)

    async def ablocked_by(self, /) -> str:
        """What keeps every write waiting, such as a stopped process inside SQLite's gate. Empty: nothing known."""
        await move_to_loop()
        return await (await self._store.engine()).blocked_by()

    blocked_by = blocking(ablocked_by)

    async def aexamine(self, /) -> list[Finding]:
        """What `holdfast doctor` prints: what is right and wrong with the settings, the tasks and the store.

        Raises no error for a store that cannot be opened: that is a finding, too.
        """
        from holdfast.doctor.examine import examine

        return await examine(self._store, self._tasks)

    examine = blocking(aexamine)

    async def astats(self, /) -> QueueStatus:
        """All queues together. Its name is empty."""
        return sum_of(await self.aqueues())

    stats = blocking(astats)

    async def astop_worker(self, name: str, /) -> bool:
        """Request a worker, or a manager with its workers, to stop gently. False: there is none with this name."""
        return (await (await self._store.engine()).stop_worker(name)).found

    stop_worker = blocking(astop_worker)

    async def apools(self, /) -> list[PoolSize]:
        """Every pool, by name. A pool exists from its first job on."""
        return [PoolSize.of(pool) for pool in (await (await self._store.engine()).pools()).pools]

    pools = blocking(apools)

    async def aresize(self, pool: str, lanes: int, /) -> PoolSize:
        """Change the number of lanes of a pool; every key keeps its order. `WrongState` during an earlier change."""
        engine = await self._store.engine()
        names = [record.name for record in (await engine.pools()).pools]
        if pool not in names:
            hint = did_you_mean(pool, names)
            raise InvalidOption(f"There is no pool {pool!r}. A pool exists from its first job on.{hint}", option="pool")
        answer = await engine.resize(pool, lanes)
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
        """Cancel a job before it runs, or request its worker to stop it."""
        try:
            key = await find_key(self._store, job_id, queue)
        except JobNotFound:
            return CancelAnswer("not_found")
        return await cancel_job(self._store, key, reason)

    cancel = blocking(acancel)

    async def arequeue(
        self, /, *job_ids: str, task: str | None = None, queue: str | None = None, all_failed: bool = False
    ) -> int:
        """Requeue these jobs, or all failed ones (of a task, of a queue), the oldest first; return their number.

        Each id is requeued by itself. If one cannot be, the others still are; then the first error is raised.
        """
        if bool(job_ids) == all_failed:
            raise InvalidOption("requeue() takes ids, or all_failed=True, and not both.", option="all_failed")
        if job_ids:
            if task is not None:
                raise InvalidOption("`task` works with all_failed=True only; leave it out with ids.", option="task")
            keys = [await find_key(self._store, job_id, queue) for job_id in job_ids]
            return await self._requeue(keys)
        return await self._requeue_all_failed(Search.of(state=JobState.FAILED, task=task, queue=queue))

    requeue = blocking(arequeue)

    async def _requeue_all_failed(self, search: Search) -> int:
        keys: list[JobKey] = []
        cursor: str | None = None
        while True:
            page = await search.page(self._store, CHUNK, cursor)
            keys += [JobKey(job.queue, job.id) for job in page]
            cursor = page.cursor
            if cursor is None:
                break
        keys.reverse()
        return sum([await self._requeue(keys[at : at + CHUNK], skip_missing=True) for at in range(0, len(keys), CHUNK)])

    async def _requeue(self, keys: list[JobKey], *, skip_missing: bool = False) -> int:
        """`skip_missing`: a job that was pruned meanwhile is not an error."""
        engine = await self._store.engine()
        count = 0
        for queue in dict.fromkeys(key.queue for key in keys):
            limits = self._store.depth_limits([queue])
            mine = [key for key in keys if key.queue == queue]
            answers = (await engine.requeue(queue, *(key.id for key in mine), limits=limits)).jobs
            pairs = [
                (k, a) for k, a in zip(mine, answers, strict=True) if not (skip_missing and a.status == "not_found")
            ]
            count += await check_done(self._store, [k for k, _ in pairs], [a for _, a in pairs], "requeue", limits)
        return count

    async def atrigger(self, job_id: str, /, *, queue: str | None = None) -> None:
        """Make a scheduled or retrying job due now."""
        key = await find_key(self._store, job_id, queue)
        answers = (await (await self._store.engine()).trigger(key.queue, key.id)).jobs
        await check_done(self._store, [key], answers, "trigger")

    trigger = blocking(atrigger)

    async def adelete(self, job_id: str, /, *, queue: str | None = None) -> None:
        """Remove a finished job, with its result and its history."""
        key = await find_key(self._store, job_id, queue)
        answers = (await (await self._store.engine()).delete(key.queue, key.id)).jobs
        await check_done(self._store, [key], answers, "delete")

    delete = blocking(adelete)

    async def aset_result_ttl(self, job_id: str, ttl: Duration, /, *, queue: str | None = None) -> None:
        """Keep the result for this long after the job's end, whether it has ended or not."""
        ttl_us = duration_us(ttl, "ttl")
        key = await find_key(self._store, job_id, queue)
        answers = (await (await self._store.engine()).amend(key.queue, key.id, result_ttl=ttl_us)).jobs
        await check_done(self._store, [key], answers, "change")

    set_result_ttl = blocking(aset_result_ttl)

    # Queues and lanes

    async def apause(self, queue: str, /, *, lane: str | None = None) -> bool:
        """No more jobs are claimed; jobs can still be enqueued. False: it was paused before.

        An unknown queue or lane is created, so that it is paused before its first job.
        """
        answer = await (await self._store.engine()).pause(queue, lane)
        if answer.changed and self._store.bus.wants(QueuePaused):
            self._store.bus.emit(QueuePaused(at=answer.at.wall, queue=queue, lane=lane))
        return answer.changed

    pause = blocking(apause)

    async def aresume(self, queue: str, /, *, lane: str | None = None) -> bool:
        """Undo `pause`. False: it was not paused."""
        answer = await (await self._store.engine()).resume(queue, lane)
        if answer.changed and self._store.bus.wants(QueueResumed):
            self._store.bus.emit(QueueResumed(at=answer.at.wall, queue=queue, lane=lane))
        return answer.changed

    resume = blocking(aresume)

    async def aclear(self, queue: str, /, *, lane: str | None = None) -> int:
        """Cancel all jobs that have not ended, running ones included; return their number."""
        answer = await (await self._store.engine()).clear(queue, lane)
        if self._store.bus.wants(QueueCleared):
            self._store.bus.emit(QueueCleared(at=answer.at.wall, queue=queue, lane=lane, count=answer.count))
        return answer.count

    clear = blocking(aclear)

    async def aremove_queue(self, queue: str, /) -> bool:
        """Remove a queue in which nothing is, with its counters, its lanes and the stored size of its pool.

        False: there is none of this name. `WrongState`: it has jobs, ended ones included, or is paused, or a live
        worker takes from it.
        """
        return await remove_queue(self._store, queue)

    remove_queue = blocking(aremove_queue)
