"""Commands in a cluster in which each queue has a root, and so a slot, of its own (`cluster=queues`).

A call reaches one root, so a command is divided by queue, and the answers are joined. Workers belong to
no queue and have a root of their own. A command about all queues first reads their names (`queue_names.py`).

What would have to change two queues in one step is refused by name: a group with jobs of several queues, and a parent
in another queue than its child. The capability `cross_queue_atomic` is false.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from zlib import crc32

from msgspec.structs import replace

from holdfast.engines.redis.calls_apart import PASSING, CallsApart, Parts, PerformOnRoot, in_parallel, latest
from holdfast.engines.redis.exchange_apart import ExchangesApart
from holdfast.engines.redis.queue_names import FAILURES, QueueNames
from holdfast.errors import EngineUnavailable, HistoryLost, OutcomeUnknown, Unsupported
from holdfast.model import observe, operate, produce, work
from holdfast.model.command import A, Answer, Command
from holdfast.model.instants import At, Seconds

S = TypeVar("S", bound=Answer)

HEARTBEAT_WAIT_S: Seconds = 2.0
"""For the server of the workers' records. Meanwhile the thread that sends the heartbeat renews no lease."""

_OF_ONE_QUEUE = (
    operate.Cancel,
    operate.Requeue,
    operate.Trigger,
    operate.Delete,
    operate.Amend,
    operate.Pause,
    operate.Resume,
    operate.Clear,
    operate.Emptied,
    observe.Find,
    observe.Lanes,
)


class QueuesApart:
    """Divides commands by queue. `scheme`: the engine's, for messages.

    `on_use` is called with each queue before a command of this process enqueues to it or claims from it.
    """

    def __init__(
        self,
        namespace: str,
        perform: PerformOnRoot,
        names: QueueNames,
        on_use: Callable[[str], object],
        scheme: str,
    ) -> None:
        self._perform_on_root = perform
        self._calls = CallsApart(namespace, self._on_root)
        self._exchanges = ExchangesApart(self._calls)
        self._names = names
        self._on_use = on_use
        self._scheme = scheme
        self._prune_after = ""
        """The queue at which the last prune ended: the next one begins behind it."""

    async def _on_root(self, root: str, command: Command[A], *, first_rank: int = 0) -> A:
        try:
            return await self._perform_on_root(root, command, first_rank=first_rank)
        except HistoryLost:
            self._names.forget()
            raise

    async def perform(self, command: Command[A]) -> A:
        answer: Any = await self._perform(command)
        return answer  # type: ignore[no-any-return]

    async def _perform(self, command: Command[Any]) -> Answer:
        match command:
            case work.Exchange():
                if command.claim is None:
                    return await self._exchanges.perform(command)
                return await self._use([one.queue for one in command.claim.queues], self._exchanges.perform(command))
            case produce.Enqueue():
                return await self._enqueue(command)
            case work.Heartbeat():
                return await self._heartbeat(command)
            case work.Renew():
                return await self._renew(command)
            case observe.Get():
                return await self._get(command)
            case operate.Pause():
                return await self._with_names([command.queue], self._calls.on_queue(command.queue, command))
            case operate.PutPool() | operate.Resize():
                return await self._with_names([command.name], self._calls.on_queue(command.name, command))
            case operate.RemoveQueue():
                return await self._remove_queue(command)
            case work.Expired():
                return await self._expired(command)
            case work.Disown():
                return await self._disown(command)
            case observe.Stats():
                return await self._stats(command)
            case operate.Pools(name=str() as name):
                return await self._calls.on_queue(name, command)
            case operate.Pools():
                return await self._pools(command)
            case observe.Prune():
                return await self._prune(command)
            case observe.Audit():
                return await self._audit(command)
        if isinstance(command, _OF_ONE_QUEUE):
            of_one_queue: Command[Any] = command
            return await self._calls.on_queue(command.queue, of_one_queue)
        return await self._calls.on_no_queue(command)

    async def _use(self, queues: Collection[str], call: Awaitable[S]) -> S:
        for queue in queues:
            self._on_use(queue)
        return await self._with_names(queues, call)

    async def _with_names(self, queues: Iterable[str], call: Awaitable[S]) -> S:
        """Make the call. The names of its queues are written beside it, if that is due."""
        names = self._names.due(queues)
        if not names:
            return await call
        answer, written = await in_parallel((call, self._names.write(names)))
        for outcome in (answer, written):
            if isinstance(outcome, Exception):
                raise outcome
        assert isinstance(answer, Answer)
        return answer

    # Divided by queue

    async def _enqueue(self, command: produce.Enqueue) -> produce.EnqueueAnswer:
        places: dict[str, list[int]] = {}
        for place, group in enumerate(command.groups):
            queue = self._queue_of(group)
            if queue is not None:
                places.setdefault(queue, []).append(place)
        if not places:
            return await self._calls.on_no_queue(command)
        return await self._use(places, self._enqueue_apart(command, places))

    async def _enqueue_apart(self, command: produce.Enqueue, places: Mapping[str, list[int]]) -> produce.EnqueueAnswer:
        if len(places) == 1:
            only, those = next(iter(places.items()))
            if len(those) == len(command.groups):
                return await self._calls.on_queue(only, command)
        parts = await self._calls.on_each(
            {
                queue: produce.Enqueue(groups=tuple(command.groups[place] for place in those))
                for queue, those in places.items()
            }
        )
        answers = parts.all_or_raise("enqueue")
        groups: list[produce.GroupAnswer] = [produce.GroupAccepted(())] * len(command.groups)
        for queue, those in places.items():
            for place, answer in zip(those, answers[queue].groups, strict=True):
                groups[place] = answer
        return produce.EnqueueAnswer(at=await self._at(answers), groups=tuple(groups))

    def _queue_of(self, group: produce.Group) -> str | None:
        # S4: what crosses queues is refused by name, before anything is written.
        queue: str | None = None
        for job in group.jobs:
            if queue is None:
                queue = job.queue
            elif job.queue != queue:
                raise self._unsupported(f"One group has jobs of the queues {queue!r} and {job.queue!r}")
            for parent in job.parents:
                if parent.job.queue != queue:
                    raise self._unsupported(
                        f"Job {job.id!r} of queue {queue!r} waits for job {parent.job.id!r} of queue "
                        f"{parent.job.queue!r}"
                    )
        return queue

    def _unsupported(self, what: str) -> Unsupported:
        return Unsupported(
            f"{what}. Nothing was written. In this cluster each queue is kept apart and two queues cannot change in "
            "one step: enqueue them in separate calls, or open the store with cluster=namespace.",
            capability="cross_queue_atomic",
            engine=self._scheme,
        )

    async def _renew(self, command: work.Renew) -> work.RenewAnswer:
        by_queue: dict[str, list[work.Renewal]] = {}
        for renewal in command.jobs:
            by_queue.setdefault(renewal.queue, []).append(renewal)
        if not by_queue:
            return await self._calls.on_no_queue(command)
        if len(by_queue) == 1:
            return await self._calls.on_queue(next(iter(by_queue)), command)
        parts = await self._calls.on_each({queue: work.Renew(jobs=tuple(jobs)) for queue, jobs in by_queue.items()})
        # A lease whose primary did not answer is renewed again soon, and counts as not renewed.
        answers = parts.some_or_raise("renew", passing=(*PASSING, OutcomeUnknown))
        results = {queue: iter(answer.jobs) for queue, answer in answers.items()}
        busy = work.RenewResult(work.RenewStatus.BUSY)
        return work.RenewAnswer(
            at=await self._at(answers),
            jobs=tuple(next(results[one.queue]) if one.queue in results else busy for one in command.jobs),
        )

    async def _heartbeat(self, command: work.Heartbeat) -> work.HeartbeatAnswer:
        """A worker that cannot write its record goes on, as long as it can renew leases in one of its queues."""
        try:
            async with asyncio.timeout(HEARTBEAT_WAIT_S):
                return await self._calls.on_no_queue(command)
        except (EngineUnavailable, TimeoutError):
            parts = await self._calls.on_each(dict.fromkeys(command.worker.queues, observe.Now()))
            return work.HeartbeatAnswer(at=await self._at(parts.some_or_raise("heartbeat")), stop=False)

    async def _get(self, command: observe.Get) -> observe.GetAnswer:
        by_queue: dict[str, list[Any]] = {}
        for key in command.jobs:
            by_queue.setdefault(key.queue, []).append(key)
        if not by_queue:
            return await self._calls.on_no_queue(command)
        if len(by_queue) == 1:
            return await self._calls.on_queue(next(iter(by_queue)), command)
        parts = await self._calls.on_each({queue: observe.Get(jobs=tuple(keys)) for queue, keys in by_queue.items()})
        answers = parts.all_or_raise("get", reads=True)
        jobs = {queue: iter(answer.jobs) for queue, answer in answers.items()}
        return observe.GetAnswer(at=await self._at(answers), jobs=tuple(next(jobs[key.queue]) for key in command.jobs))

    async def _remove_queue(self, command: operate.RemoveQueue) -> operate.RemoveQueueAnswer:
        # RM1: the workers are under another root. Those that start meanwhile create the queue anew (RM3).
        answer = await self._calls.on_no_queue(work.Workers())
        serving = [
            worker.worker
            for worker in answer.workers
            if command.queue in worker.queues and worker.is_alive(answer.at.wall)
        ]
        if not serving:
            return await self._calls.on_queue(command.queue, command)
        stats = await self._calls.on_queue(command.queue, observe.Stats())
        status, jobs = operate.RemoveStatus.SERVED, 0
        if not stats.queues:
            status = operate.RemoveStatus.NOT_FOUND
        elif jobs := sum(stats.queues[0].counts.values()):
            status = operate.RemoveStatus.HAS_JOBS
        elif stats.queues[0].paused or await self._has_paused_lane(command.queue):
            status = operate.RemoveStatus.PAUSED
        workers = tuple(serving) if status is operate.RemoveStatus.SERVED else ()
        return operate.RemoveQueueAnswer(at=stats.at, status=status, jobs=jobs, workers=workers)

    async def _has_paused_lane(self, queue: str) -> bool:
        answer = await self._calls.on_queue(queue, observe.Lanes(queue=queue))
        return any(lane.paused for lane in answer.lanes)

    # About all queues

    async def _on_all(self, command: Command[S]) -> Parts[S]:
        return await self._calls.on_each(dict.fromkeys(await self._names.all(), command))

    async def _expired(self, command: work.Expired) -> work.ExpiredAnswer:
        # T7: reapers begin at different queues, and inside a queue at different places.
        parts = await self._calls.on_each(dict.fromkeys(await self._names.all_or_last_read(), command))
        answers = parts.some_or_raise("expired")
        lists = [answers[queue].leases for queue in sorted(answers)]
        start = crc32(command.worker.encode()) % len(lists) if lists else 0
        leases = [lease for some in (*lists[start:], *lists[:start]) for lease in some]
        return work.ExpiredAnswer(at=await self._at(answers), leases=tuple(leases[: command.limit]))

    async def _disown(self, command: work.Disown) -> work.DisownAnswer:
        answers = (await self._on_all(command)).all_or_raise("disown")
        leases = sorted(key for answer in answers.values() for key in answer.leases)
        return work.DisownAnswer(at=await self._at(answers), leases=tuple(leases))

    async def _stats(self, command: observe.Stats) -> observe.StatsAnswer:
        if command.queues is None:
            found = (await self._on_all(command)).all_or_raise("stats", reads=True)
            stats = [one for queue in sorted(found) for one in found[queue].queues]
            return observe.StatsAnswer(at=await self._at(found), queues=tuple(stats))
        parts = await self._calls.on_each({queue: observe.Stats(queues=(queue,)) for queue in command.queues})
        answers = parts.all_or_raise("stats", reads=True)
        return observe.StatsAnswer(
            at=await self._at(answers), queues=tuple(answers[queue].queues[0] for queue in command.queues)
        )

    async def _pools(self, command: operate.Pools) -> operate.PoolsAnswer:
        answers = (await self._on_all(command)).all_or_raise("pools", reads=True)
        pools = [pool for queue in sorted(answers) for pool in answers[queue].pools]
        return operate.PoolsAnswer(at=await self._at(answers), pools=tuple(pools))

    async def _prune(self, command: observe.Prune) -> observe.PruneAnswer:
        """One queue after the other, until the limit is reached. The next prune goes on behind the last queue."""
        names = await self._names.all_or_last_read()
        behind = [name for name in names if name > self._prune_after]
        answers: dict[str, observe.PruneAnswer] = {}
        errors: dict[str, Exception] = {}
        left = command.limit
        for queue in ("", *behind, *names[: len(names) - len(behind)]):  # "": what belongs to no queue
            if left == 0:
                break
            prune = observe.Prune(limit=left)
            try:
                part = await (self._calls.on_queue(queue, prune) if queue else self._calls.on_no_queue(prune))
            except PASSING as error:  # it has jobs of its own to prune later, and delays no other queue
                errors[queue] = error
                continue
            self._prune_after = queue or self._prune_after
            answers[queue] = part
            left -= max(len(part.deleted), len(part.expired))
        parts = Parts(answers, errors).some_or_raise("prune").values()
        more = left == 0 or bool(errors) or any(part.more for part in parts)
        if not more:
            await self._drop_unused_names()
        return observe.PruneAnswer(
            at=latest(part.at for part in parts),
            deleted=tuple(key for part in parts for key in part.deleted),
            expired=tuple(key for part in parts for key in part.expired),
            workers=tuple(name for part in parts for name in part.workers),
            more=more,
        )

    async def _drop_unused_names(self) -> None:
        with suppress(*FAILURES):  # the next prune tries again
            unused = await self._names.unused()
            found = await self._calls.on_each({queue: observe.Stats() for queue in unused})
            await self._names.drop(queue for queue, answer in found.answers.items() if not answer.queues)

    async def _audit(self, command: observe.Audit) -> observe.AuditAnswer:
        own = await self._calls.on_no_queue(command)
        answers = (await self._on_all(command)).all_or_raise("audit", reads=True)
        problems = [problem for queue in sorted(answers) for problem in answers[queue].problems]
        return replace(
            own, at=latest([own.at, *(answer.at for answer in answers.values())]), problems=(*own.problems, *problems)
        )

    async def _at(self, answers: Mapping[str, Answer]) -> At:
        """The time of a joined answer. Without any queue it is that of the root of no queue."""
        if not answers:
            return (await self._calls.on_no_queue(observe.Now())).at
        return latest(answer.at for answer in answers.values())
