"""What a call reads: no more of a large lane than of a small one."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from redis_server import RedisServer
from redis_stores import Store

from holdfast.engines.redis.engine import RedisEngine
from holdfast.engines.redis.scripts import ServerScript, whole_script
from holdfast.model.instants import HOUR, SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Lanes, Prune
from holdfast.model.operate import Clear, PutPool
from holdfast.model.produce import Enqueue, Group, NewJob, Parent
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Exchange, Expired, QueueClaim, Settlement, TaskClaim
from holdfast.runtime import SystemRuntime

TASKS = (TaskClaim(task="t", lease_len=30 * SECOND),)
MOST_READ = "cost:most"
"""The largest number of entries that a call has read from the server."""

COUNTING = b"""
local server, entries = redis, 0
local redis = setmetatable({}, { __index = server })
function redis.call(...)
  local reply = server.call(...)
  entries = entries + 1 + (type(reply) == "table" and #reply or 0)
  return reply
end
local function run()
%s
end
local reply = run()
local most = tonumber(server.call("GET", "%s:" .. KEYS[1]) or 0)
server.call("SET", "%s:" .. KEYS[1], math.max(most, entries))
return reply
"""


class ReadCounter:
    """Opens an engine on an empty store, and says how much the largest call has read."""

    def __init__(self, server: RedisServer, store: Callable[[], Store]) -> None:
        self._server, self._store = server, store
        self._key = ""

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[RedisEngine]:
        store = self._store()
        self._key = f"{MOST_READ}:{store.namespace}:"
        script = ServerScript((COUNTING % (whole_script().text, MOST_READ.encode(), MOST_READ.encode())).decode())
        engine = RedisEngine(store.url, SystemRuntime(), namespace=store.namespace, durability="none", script=script)
        await engine.open()
        yield engine
        assert await engine.audit() == ()
        await engine.close()
        self._server.execute("DEL", self._key)

    def begin(self) -> None:
        self._server.execute("DEL", self._key)

    def most_entries(self) -> int:
        """Commands and values of their replies, in the largest call since `begin`."""
        return int(self._server.execute("GET", self._key))


@pytest.fixture
def reads(redis_server: RedisServer, redis_store: Callable[[], Store]) -> ReadCounter:
    return ReadCounter(redis_server, redis_store)


async def put_lane(engine: RedisEngine, count: int) -> None:
    """A head, jobs of three priorities, and one of the highest priority that waits for a parent, too."""
    jobs = [NewJob(queue="q", id="parent", task="other"), NewJob(queue="q", id="head", task="t", lane="x")]
    jobs += [NewJob(queue="q", id=f"{n}", task="t", lane="x", priority=n % 3) for n in range(count)]
    jobs.append(NewJob(queue="q", id="best", task="t", lane="x", priority=9, parents=(Parent(JobKey("q", "parent")),)))
    for first in range(0, len(jobs), 1000):
        await engine.perform(Enqueue(groups=(Group(tuple(jobs[first : first + 1000])),)))


async def test_the_end_of_a_head_reads_no_more_of_a_long_lane(reads: ReadCounter) -> None:
    read = []
    for count in (10, 2_000):
        async with reads.engine() as engine:
            await put_lane(engine, count)
            claim = Claim(claim_id="c", worker="w", queues=(QueueClaim("q", TASKS),), limit=9)
            (lease,) = (await engine.perform(Exchange(claim=claim))).leases
            end = Settlement(queue="q", id="head", token=lease.token, target=JobState.SUCCEEDED)
            reads.begin()
            await engine.perform(Exchange(settlements=(end,)))
            read.append(reads.most_entries())
            (lease,) = (await engine.perform(Exchange(claim=replace(claim, claim_id="d")))).leases
            assert lease.id == "0"

    assert read[1] <= 1.3 * read[0]


async def test_a_piece_of_a_clear_reads_no_more_of_a_long_lane(reads: ReadCounter) -> None:
    read = []
    for count in (1_500, 4_500):
        async with reads.engine() as engine:
            await put_lane(engine, count)
            reads.begin()
            assert (await engine.perform(Clear(queue="q", lane="x"))).count == count + 2
            read.append(reads.most_entries())

    assert read[1] <= 1.3 * read[0]


async def test_a_lane_that_is_named_is_read_without_the_others(reads: ReadCounter) -> None:
    async with reads.engine() as engine:
        jobs = [NewJob(queue="q", id=f"{n}", lane=f"{n}") for n in range(1_000)]
        await engine.perform(Enqueue(groups=(Group(tuple(jobs)),)))
        reads.begin()
        (lane,) = (await engine.perform(Lanes(queue="q", lanes=("7",)))).lanes

        assert lane.head == "7"
        assert reads.most_entries() < 20


async def test_a_reaper_reads_a_part_of_many_expired_leases(reads: ReadCounter) -> None:
    async with reads.engine() as engine:
        for part in range(3):
            jobs = [NewJob(queue="q", id=f"{part}-{n}", task="t") for n in range(1_000)]
            await engine.perform(Enqueue(groups=(Group(tuple(jobs)),)))
            claim = Claim(claim_id=f"c{part}", worker="w", queues=(QueueClaim("q", TASKS),), limit=1_000)
            await engine.perform(Exchange(claim=claim))
        engine.clock_offset += HOUR
        reads.begin()
        found = {lease.id for lease in (await engine.perform(Expired(worker="w"))).leases}
        assert len(found) == 500
        assert reads.most_entries() < 2_500
        for _ in range(200):  # each call begins at one of three places
            found |= {lease.id for lease in (await engine.perform(Expired(worker="w", limit=1_000))).leases}
            if len(found) == 3_000:
                break
        assert len(found) == 3_000


async def test_a_prune_takes_a_part_of_many_idle_lanes(reads: ReadCounter) -> None:
    async with reads.engine() as engine:
        jobs = [NewJob(queue="q", id=f"{n}", lane=f"{n}") for n in range(3_000)]
        await engine.perform(Enqueue(groups=(Group(tuple(jobs)),)))
        await engine.perform(PutPool(name="q", lanes=10))
        await engine.perform(Clear(queue="q"))
        engine.clock_offset += 25 * HOUR
        reads.begin()
        await engine.perform(Prune(limit=10))
        assert reads.most_entries() < 3_000
        for _ in range(100):
            await engine.perform(Prune(limit=10))
            lanes = (await engine.perform(Lanes(queue="q"))).lanes
            if len(lanes) == 10:
                break
        assert {lane.lane for lane in lanes} == {f"{n}" for n in range(10)}


async def test_the_end_of_a_parent_reads_each_of_its_edges_a_few_times(reads: ReadCounter) -> None:
    """As many edges as one call resolves."""
    async with reads.engine() as engine:
        parent = Parent(JobKey("q", "parent"))
        await engine.perform(Enqueue(groups=(Group((NewJob(queue="q", id="parent", task="t"),)),)))
        children = tuple(NewJob(queue="q", id=f"{n}", task="other", parents=(parent,)) for n in range(1_500))
        await engine.perform(Enqueue(groups=(Group(children),)))
        claim = Claim(claim_id="c", worker="w", queues=(QueueClaim("q", TASKS),), limit=9)
        (lease,) = (await engine.perform(Exchange(claim=claim))).leases
        end = Settlement(queue="q", id="parent", token=lease.token, target=JobState.SUCCEEDED)
        reads.begin()
        await engine.perform(Exchange(settlements=(end,)))

        assert reads.most_entries() < 20 * 1_000
