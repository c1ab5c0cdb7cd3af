"""A clear in chunks: what others may do in between, and what is left if its client goes away."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from postgres_stock import Store
from postgres_stories import Stores, opened

from holdfast.engine import Engine
from holdfast.engines.postgres import encode_calls
from holdfast.engines.postgres.calls import Caller
from holdfast.model.instants import HOUR, SECOND
from holdfast.model.operate import Clear
from holdfast.model.produce import Group, NewJob
from holdfast.model.work import Claim, QueueClaim, TaskClaim

QUEUE = "q"
Interlude = Callable[[], Awaitable[None]]


class ClientDied(BaseException):
    """Ends a call between two chunks."""


@pytest.fixture
def store(postgres_store: Stores) -> Store:
    return postgres_store()


@pytest.fixture
def between_chunks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Interlude], None]:
    """Have a function called before the second chunk of a clear."""
    monkeypatch.setattr(encode_calls, "CHUNK_JOBS", 2)

    def install(interlude: Interlude) -> None:
        original, chunks = Caller._persist, 0

        async def persist(self: Caller, command: Any, *given: Any) -> Any:
            nonlocal chunks
            if isinstance(command, Clear):
                chunks += 1
                if chunks == 2:
                    await interlude()
            return await original(self, command, *given)

        monkeypatch.setattr(Caller, "_persist", persist)

    return install


async def put(engine: Engine, *ids: str, delay: int = 0) -> None:
    await engine.enqueue(Group(tuple(NewJob(queue=QUEUE, id=id, task="t", delay=delay) for id in ids)))


async def take(engine: Engine, name: str) -> list[str]:
    queues = (QueueClaim(QUEUE, (TaskClaim(task="t", lease_len=60 * SECOND),)),)
    return [lease.id for lease in (await engine.claim(Claim(claim_id=name, worker="w", queues=queues, limit=9))).leases]


async def test_no_job_of_a_queue_is_claimed_while_it_is_cleared_and_new_ones_stay(
    store: Store, between_chunks: Callable[[Interlude], None]
) -> None:
    claimed: list[str] = []
    async with opened(store, notify=False) as engine:

        async def interlude() -> None:
            claimed.extend(await take(engine, "during"))
            await put(engine, "new")

        await put(engine, "1", "2", "3", "4", "5")
        between_chunks(interlude)
        with engine.subscribe(f"queue:{QUEUE}") as subscription:
            await subscription.wait(0)
            assert (await engine.clear(QUEUE)).count == 5
            assert claimed == []
            assert await take(engine, "after") == ["new"]


async def test_the_end_of_a_clear_in_chunks_notifies_the_workers(
    store: Store, between_chunks: Callable[[Interlude], None]
) -> None:
    async with opened(store, notify=False) as engine:
        subscription = engine.subscribe(f"queue:{QUEUE}")

        async def interlude() -> None:
            await subscription.wait(0.001)  # what was notified up to now

        await put(engine, "1", "2", "3", delay=HOUR)  # of ready jobs each chunk notifies
        between_chunks(interlude)
        await engine.clear(QUEUE)
        assert await subscription.wait(30) == {f"queue:{QUEUE}"}
        subscription.close()


async def test_a_clear_whose_client_went_away_stops_the_claims_for_ten_seconds(
    store: Store, between_chunks: Callable[[Interlude], None]
) -> None:
    async def dies() -> None:
        raise ClientDied

    async with opened(store, notify=False) as engine:
        await put(engine, "1", "2", "3")
        between_chunks(dies)
        with pytest.raises(ClientDied):
            await engine.clear(QUEUE)
        assert await take(engine, "soon") == []
        assert (await engine.stats(QUEUE)).queues[0].clearing
        engine.clock_offset += 11 * SECOND
        assert not (await engine.stats(QUEUE)).queues[0].clearing
        assert await take(engine, "later") == ["1"]
