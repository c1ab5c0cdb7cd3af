"""A clear and the end of a resize are done in pieces. Others call in between; the outcome is the same."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis_server import RedisServer
from redis_stores import Store

from holdfast.engines.redis.engine import RedisEngine
from holdfast.engines.redis.script_caller import ScriptCaller
from holdfast.engines.redis.scripts import ServerScript, whole_script
from holdfast.engines.redis.unfinished import ContinueWork
from holdfast.errors import EngineUnavailable, OutcomeUnknown
from holdfast.model.command import A, Command
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Get, Prune, Stats
from holdfast.model.operate import Clear, Resize
from holdfast.model.produce import Enqueue, Group, NewJob, PoolPlace
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.work import Claim, Exchange, QueueClaim, Settlement, TaskClaim
from holdfast.runtime import SystemRuntime

QUEUE = "q"
IDS = tuple(f"job-{number}" for number in range(10))
CLEARED = (JobState.CANCELLED, Reason.CLEARED)
TASKS = (TaskClaim(task="t", lease_len=30 * SECOND),)


class PiecesCaller(ScriptCaller):
    before_piece: Callable[[], Awaitable[object]] | None = None

    async def perform(self, primary: Any, root: str, command: Command[A], *, first_rank: int = 0) -> A:
        if isinstance(command, ContinueWork) and self.before_piece is not None:
            await self.before_piece()
        return await super().perform(primary, root, command, first_rank=first_rank)


class PiecesEngine(RedisEngine):
    """An engine with pieces of three jobs. `before_piece` is awaited before every piece but the first."""

    claims = 0
    caller_type = PiecesCaller
    _caller: PiecesCaller

    @property
    def before_piece(self) -> Callable[[], Awaitable[object]] | None:
        return self._caller.before_piece

    @before_piece.setter
    def before_piece(self, value: Callable[[], Awaitable[object]] | None) -> None:
        self._caller.before_piece = value

    async def put(self, *ids: str, **fields: Any) -> None:
        jobs = tuple(NewJob(queue=QUEUE, id=id, task="t", **fields) for id in ids)
        await self.perform(Enqueue(groups=(Group(jobs),)))

    async def take(self, limit: int = 100) -> dict[str, str]:
        """Claim: id → token."""
        self.claims += 1
        claim_id = f"{id(self)}-{self.claims}"
        claim = Claim(claim_id=claim_id, worker="w", queues=(QueueClaim(QUEUE, TASKS),), limit=limit)
        return {lease.id: lease.token for lease in (await self.perform(Exchange(claim=claim))).leases}

    async def reasons(self, *ids: str) -> list[tuple[JobState, Reason | None]]:
        found = (await self.perform(Get(jobs=tuple(JobKey(QUEUE, id) for id in ids)))).jobs
        return [(job.state, job.reason) for job in found if job is not None]

    async def is_clearing(self) -> bool:
        return (await self.perform(Stats(queues=(QUEUE,)))).queues[0].clearing


class Stores:
    """Opens engines on one store, and checks it at the end."""

    def __init__(self, server: RedisServer, store: Store) -> None:
        self._server, self._store = server, store

    @asynccontextmanager
    async def engines(self) -> AsyncIterator[tuple[PiecesEngine, PiecesEngine]]:
        text = whole_script().text
        assert text.count(b"local PIECE_JOBS = 1000 ") == 1
        script = ServerScript(text.replace(b"local PIECE_JOBS = 1000 ", b"local PIECE_JOBS = 3 ").decode())
        opened = [
            PiecesEngine(
                self._store.url, SystemRuntime(), namespace=self._store.namespace, durability="none", script=script
            )
            for _ in range(2)
        ]
        for engine in opened:
            await engine.open()
        yield opened[0], opened[1]
        assert await opened[0].audit() == ()
        for engine in opened:
            await engine.close()

    def unfinished(self) -> int:
        return int(self._server.execute("HLEN", f"{self._store.namespace}:unfinished"))


@pytest.fixture
def stores(redis_server: RedisServer, redis_store: Callable[[], Store]) -> Stores:
    return Stores(redis_server, redis_store())


async def test_a_clear_in_pieces_ends_every_job_and_counts_them(stores: Stores) -> None:
    async with stores.engines() as (engine, _):
        await engine.put(*IDS[:5])
        await engine.put(*IDS[5:], lane="L")
        await engine.take(2)

        answer = await engine.perform(Clear(queue=QUEUE))

        assert answer.count == len(IDS)
        assert await engine.reasons(*IDS) == [CLEARED] * len(IDS)
        assert stores.unfinished() == 0
        jobs = (await engine.perform(Get(jobs=tuple(JobKey(QUEUE, id) for id in IDS)))).jobs
        assert max(job.finished for job in jobs if job is not None and job.finished) == answer.at.wall


async def test_nothing_of_a_queue_is_claimed_while_it_is_cleared_and_stats_show_it(stores: Stores) -> None:
    async with stores.engines() as (engine, other):
        await engine.put(*IDS)
        seen: list[tuple[dict[str, str], bool]] = []

        async def look() -> None:
            seen.append((await other.take(), await other.is_clearing()))

        engine.before_piece = look
        assert (await engine.perform(Clear(queue=QUEUE))).count == len(IDS)

        assert seen == [({}, True)] * 3
        assert not await engine.is_clearing()


async def test_jobs_that_arrive_while_a_queue_is_cleared_stay(stores: Stores) -> None:
    async with stores.engines() as (engine, other):
        await engine.put(*IDS)
        new = iter(["new-1", "new-2", "new-3"])
        engine.before_piece = lambda: other.put(next(new))

        assert (await engine.perform(Clear(queue=QUEUE))).count == len(IDS)

        assert list(await other.take()) == ["new-1", "new-2", "new-3"]


@pytest.mark.parametrize("priorities", [(0, 0), (0, 5)], ids=["one-priority", "two-priorities"])
async def test_the_other_lanes_go_on_while_one_is_cleared(stores: Stores, priorities: tuple[int, int]) -> None:
    async with stores.engines() as (engine, other):
        await engine.put(*IDS[::2], lane="L", priority=priorities[0])
        await engine.put(*IDS[1::2], lane="L", priority=priorities[1])
        await engine.put("elsewhere", lane="M")
        claimed: list[list[str]] = []

        async def claim() -> None:
            claimed.append(list(await other.take()))

        engine.before_piece = claim
        assert (await engine.perform(Clear(queue=QUEUE, lane="L"))).count == len(IDS)

        assert claimed == [["elsewhere"], [], []]
        assert await engine.reasons(*IDS) == [CLEARED] * len(IDS)


async def test_a_clear_that_stops_half_way_is_an_error_and_another_process_continues_it(stores: Stores) -> None:
    async with stores.engines() as (engine, other):
        await engine.put(*IDS)

        async def fail() -> None:
            raise EngineUnavailable("The server is gone.", engine="redis")

        engine.before_piece = fail
        with pytest.raises(OutcomeUnknown, match="has begun"):
            await engine.perform(Clear(queue=QUEUE))
        assert stores.unfinished() == 1
        assert await other.take() == {}
        assert (await engine.reasons(*IDS)).count(CLEARED) == 3  # not yet: the first process may still work on it

        other.clock_offset += 11 * SECOND
        for _ in range(2):
            assert await other.take() == {}
        await other.perform(Prune())

        assert await engine.reasons(*IDS) == [CLEARED] * len(IDS)
        assert stores.unfinished() == 0
        await other.put("new")
        assert list(await other.take()) == ["new"]


async def test_jobs_that_waited_for_a_resize_are_released_in_pieces(stores: Stores) -> None:
    async with stores.engines() as (engine, other):
        await engine.put("old", pool=PoolPlace(2, "k"))
        await engine.perform(Resize(name=QUEUE, lanes=50))
        for number, id in enumerate(IDS):
            await engine.put(id, pool=PoolPlace(2, f"key-{number}"))
        tokens = await engine.take()
        newest = iter(["newest"])

        async def resize_again() -> None:
            for id in newest:
                await other.perform(Resize(name=QUEUE, lanes=60))
                await other.put(id, pool=PoolPlace(60, "k"))

        engine.before_piece = resize_again
        end = Settlement(queue=QUEUE, id="old", token=tokens["old"], target=JobState.SUCCEEDED)
        await engine.perform(Exchange(settlements=(end,)))

        names = tuple(JobKey(QUEUE, id) for id in (*IDS, "newest"))
        *released, last = (await engine.perform(Get(jobs=names))).jobs
        assert not any(job is None or job.hold & Hold.EPOCH for job in released)
        assert last is not None
        assert last.hold & Hold.EPOCH
        assert stores.unfinished() == 0
