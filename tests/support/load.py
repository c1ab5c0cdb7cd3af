"""Producers and a worker that run while a test disturbs the server, and the check that no job was lost."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from holdfast import App, Context
from holdfast.engines import open_engine
from holdfast.errors import EngineUnavailable, OutcomeUnknown, StorageFull
from holdfast.model.job import JobKey
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState

QUEUE = "load"
TIMEOUT_S = 60.0  # generous: the machine may be slow


class Store(Protocol):
    """Of any engine."""

    @property
    def url(self) -> str: ...
    @property
    def namespace(self) -> str: ...


class Load:
    """An async context manager. Each producer repeats the enqueue of a job, under the same id, until it succeeds."""

    def __init__(
        self,
        store: Store,
        *,
        producers: int = 3,
        concurrency: int = 10,
        durability: Literal["none"] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        chosen: dict[str, Any] = {} if durability is None else {"durability": durability}
        self.acknowledged: list[str] = []
        self.unknown = self.refused = self.full = 0
        self.runs: Counter[str] = Counter()
        self._ran = asyncio.Event()
        self._stopping = False
        self._engine = open_engine(store.url, namespace=store.namespace, **chosen, **(options or {}))
        self._app: App[Any] = App(store.url, namespace=store.namespace, durability=durability)
        self._app.task(name="work", queue=QUEUE)(self._work)
        self._producers = producers
        self._concurrency = concurrency
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    async def _work(self, ctx: Context, number: int) -> int:
        self.runs[ctx.job.id] += 1
        self._ran.set()
        return number

    async def _produce(self, name: str) -> None:
        number = 0
        while not self._stopping:
            number += 1
            job = NewJob(queue=QUEUE, id=f"{name}-{number}", task="work", payload=b"[[1],{}]", fresh_id=number % 2 == 0)
            while True:
                if await self._try_to_enqueue(job):
                    break
                await asyncio.sleep(0.02)
            self.acknowledged.append(job.id)
            await asyncio.sleep(0.002)

    async def _try_to_enqueue(self, job: NewJob) -> bool:
        try:
            await self._engine.enqueue(Group((job,)))
        except EngineUnavailable:
            self.refused += 1
        except OutcomeUnknown:
            self.unknown += 1
        except StorageFull:
            self.full += 1
        else:
            return True
        return False

    async def consumes(self) -> None:
        """Wait until a job has run that was not acknowledged before this call."""
        before = set(self.acknowledged)
        async with asyncio.timeout(TIMEOUT_S):
            while not self.runs.keys() - before:
                self._ran.clear()
                await self._ran.wait()

    async def __aenter__(self) -> Self:
        await self._engine.open()
        self._stack.push_async_callback(self._engine.close)
        await self._stack.enter_async_context(self._app)
        await self._stack.enter_async_context(self._app.worker(concurrency=self._concurrency))
        self._tasks = [asyncio.ensure_future(self._produce(f"p{index}")) for index in range(self._producers)]
        await self.consumes()
        return self

    async def finish(self) -> None:
        """Stop the producers. Check that every acknowledged job has succeeded once, and that the store is sound."""
        self._stopping = True
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*self._tasks)
            ended = 0
            with self._engine.subscribe(f"room:{QUEUE}") as room:
                while ended < len(self.acknowledged):
                    await room.wait(0.2)
                    ended = (await self._engine.stats(QUEUE)).queues[0].totals.finished
        keys = [JobKey(QUEUE, name) for name in self.acknowledged]
        assert len(set(keys)) == len(keys)
        records = [
            record for start in range(0, len(keys), 500) for record in await self._records(keys[start : start + 500])
        ]
        for record in records:
            assert record is not None, "an acknowledged job is lost"
            assert record.state is JobState.SUCCEEDED
            assert 1 <= self.runs[record.id] <= record.attempt
        assert (await self._engine.stats(QUEUE)).queues[0].totals.finished == len(keys)
        assert await self._engine.audit() == ()

    async def _records(self, keys: list[JobKey]) -> Any:
        return (await self._engine.get(*keys)).jobs

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.finish()
        for task in self._tasks:
            task.cancel()
        await self._stack.aclose()

    def __str__(self) -> str:
        repeated = sum(self.runs.values()) - len(self.runs)
        return (
            f"{len(self.acknowledged)} jobs, {self.unknown} enqueues with unknown outcome, {self.refused} refused, "
            f"{repeated} repeated runs"
        )
