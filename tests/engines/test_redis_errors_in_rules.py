"""An error in the middle of a rule writes nothing: every question of every verb is made to fail once."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace
from redis_server import RedisServer
from redis_stores import Store

from holdfast.engines.redis.engine import RedisEngine
from holdfast.engines.redis.scripts import ServerScript, whole_script
from holdfast.errors import EngineError
from holdfast.model.command import Command
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Prune
from holdfast.model.operate import Amend, Cancel, Clear, Delete, Pause, RemoveQueue, Requeue, Resize, Trigger
from holdfast.model.produce import Enqueue, Group, NewJob, Parent, PoolPlace
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState
from holdfast.model.text import ErrorInfo
from holdfast.model.work import (
    Claim,
    Disown,
    Exchange,
    Heartbeat,
    Lease,
    QueueClaim,
    Renew,
    Renewal,
    Settlement,
    TaskClaim,
)
from holdfast.runtime import SystemRuntime

WRAPPED = """
do
  local asked, fails_at = 0, tonumber(redis.call("GET", "fails_at:" .. KEYS[1]) or 0)
  for name, question in pairs(S) do
    if type(question) == "function" and name ~= "flush" and name ~= "blob" then
      S[name] = function(...)
        asked = asked + 1
        if asked == fails_at then
          error("injected")
        end
        return question(...)
      end
    end
  end
end
"""
"""Makes one question fail: the one with the number that the test has written into a key."""

DIGEST = """
local digests = {}
for place, key in ipairs(redis.call("KEYS", ARGV[1])) do
  digests[place] = key .. " " .. redis.sha1hex(redis.call("DUMP", key))
end
table.sort(digests)
return digests
"""
SETTINGS = TaskClaim(task="t", lease_len=60 * SECOND)


def new(job_id: str, **fields: Any) -> NewJob:
    return NewJob(queue=fields.pop("queue", "q"), id=job_id, task="t", payload=b"p", **fields)


@asynccontextmanager
async def open_engine(store: Store) -> AsyncIterator[RedisEngine]:
    text = whole_script().text.decode()
    assert text.count("local A = {}\n") == 1
    script = ServerScript(text.replace("local A = {}\n", WRAPPED + "local A = {}\n"))
    engine = RedisEngine(
        store.url, SystemRuntime(), namespace=store.namespace, durability="none", fast_paths=False, script=script
    )
    await engine.open()
    yield engine
    await engine.close()


async def fill(engine: RedisEngine) -> tuple[Lease, ...]:
    """Jobs in every state, with all that may hold them. The answer is the leases."""
    jobs = [new(f"run{number}") for number in range(3)]
    jobs += [new(f"lane{number}", queue="lanes", lane="x") for number in range(3)]
    jobs += [new(f"pool{number}", queue="pool", pool=PoolPlace(2, f"key{number}")) for number in range(3)]
    jobs += [new("child", parents=(Parent(JobKey("q", "run0")),)), new("key", unique_key="k", due=0, priority=-1)]
    jobs += [new("late", delay=SECOND), new("large", delay=SECOND), new("expiring", expires=1, priority=-2)]
    await engine.perform(Enqueue(groups=(Group(tuple(jobs)),)))
    queues = tuple(QueueClaim(queue, (SETTINGS,)) for queue in ("q", "lanes", "pool"))
    claim = Claim(claim_id="first", worker="w", queues=queues, limit=3, prefetch=3)
    leases = (await engine.perform(Exchange(claim=claim))).leases
    assert len(leases) == 6
    await engine.perform(Cancel(queue="q", ids=("key",)))
    await engine.perform(Resize(name="pool", lanes=3))
    return leases


def commands(leases: tuple[Lease, ...]) -> list[Command[Any]]:
    def settle(lease: Lease, target: JobState) -> Settlement:
        return Settlement(queue=lease.queue, id=lease.id, token=lease.token, target=target)

    queues = tuple(QueueClaim(queue, (SETTINGS,)) for queue in ("q", "lanes", "pool"))
    claim = Claim(claim_id="second", worker="w2", queues=queues, limit=9)
    lane = next(lease for lease in leases if lease.lane is not None)
    return [
        Enqueue(groups=(Group((new("new", lane="z", unique_key="k2", parents=(Parent(JobKey("q", "run0")),)),)),)),
        Enqueue(groups=(Group((new("new2", queue="pool", pool=PoolPlace(2, "key1")), new("key", unique_key="k"))),)),
        Exchange(settlements=(settle(leases[0], JobState.SUCCEEDED), settle(leases[1], JobState.FAILED)), claim=claim),
        Exchange(settlements=(settle(lane, JobState.SUCCEEDED), settle(leases[2], JobState.RETRYING)), claim=claim),
        Renew(jobs=tuple(Renewal(lease.queue, lease.id, lease.token) for lease in leases)),
        Cancel(queue="q", ids=("run0", "late")),
        Requeue(queue="q", ids=("key",)),
        Trigger(queue="q", ids=("late",)),
        Delete(queue="q", ids=("key",)),
        Amend(queue="q", ids=("late",), priority=5),
        Pause(queue="lanes", lane="x"),
        Clear(queue="q"),
        Clear(queue="lanes", lane="x"),
        Clear(queue="pool"),
        Prune(),
        Disown(workers=("w",), error=ErrorInfo("Died", "of SIGKILL", "")),
        Heartbeat(worker=WorkerRecord(worker="w")),
        RemoveQueue(queue="none"),
    ]


async def test_an_error_at_any_question_of_a_rule_writes_nothing(
    redis_server: RedisServer, redis_store: Callable[[], Store]
) -> None:
    store = redis_store()
    async with open_engine(store) as engine:
        assert await fail_everywhere(redis_server, engine, f"{store.namespace}:") > 300
        assert await engine.audit() == ()


async def fail_everywhere(redis_server: RedisServer, engine: RedisEngine, root: str) -> int:
    """Let every question of every command fail; the answer is their number."""
    leases = await fill(engine)

    def stored() -> list[bytes]:
        return list(redis_server.execute("EVAL", DIGEST, 0, f"{root}*"))

    questions = 0
    for command in commands(leases):
        number = 0
        while True:
            number += 1
            redis_server.execute("SET", f"fails_at:{root}", number)
            before = stored()
            try:
                await engine.perform(command)
            except EngineError as error:
                text = str(error)
            else:
                break
            assert "injected" in text, f"{command}: {text}"
            assert stored() == before, f"question {number} of {command}"
        questions += number - 1
    redis_server.execute("DEL", f"fails_at:{root}")
    return questions


async def test_a_key_that_another_program_has_replaced_stops_a_call_before_it_writes(
    redis_server: RedisServer, redis_store: Callable[[], Store]
) -> None:
    """Each key of the store in turn becomes a text. A call that needs it fails and has written nothing."""
    failures = 0
    for is_fast in (False, True):
        number, left = 0, 1
        while number < left:
            failed, left = await replace_key(redis_server, redis_store(), number, is_fast)
            failures += failed
            number += 1
    assert failures > 100


async def replace_key(redis_server: RedisServer, store: Store, number: int, is_fast: bool) -> tuple[int, int]:
    """Replace the key with this number. The answer is how many calls have failed, and how many keys there are."""
    root, failures = f"{store.namespace}:", 0
    engine = RedisEngine(
        store.url, SystemRuntime(), namespace=store.namespace, durability="none", fast_paths=is_fast, notify=False
    )
    await engine.open()
    if is_fast:
        leases = await fill_plain(engine)
        calls = plain_commands(leases)
    else:
        leases = await fill(engine)
        calls = commands(leases)
    keys = sorted(key for key in redis_server.client.keys(f"{root}*") if redis_server.execute("TYPE", key) != b"string")
    key = keys[number]
    kept = redis_server.execute("DUMP", key)
    for command in calls:
        redis_server.execute("DEL", key)
        redis_server.execute("SET", key, "foreign")
        before = redis_server.execute("EVAL", DIGEST, 0, f"{root}*")
        text = ""
        try:
            await engine.perform(command)
        except EngineError as error:
            text = str(error)
        if text:
            assert "WRONGTYPE" in text, f"{command} with {key!r}: {text}"
            assert redis_server.execute("EVAL", DIGEST, 0, f"{root}*") == before, f"{command} with {key!r}"
            failures += 1
        redis_server.execute("RESTORE", key, 0, kept, "REPLACE")
    await engine.close()
    return failures, len(keys)


async def fill_plain(engine: RedisEngine) -> tuple[Lease, ...]:
    await engine.perform(Enqueue(groups=(Group(tuple(new(f"{number}") for number in range(9))),)))
    claim = Claim(claim_id="first", worker="w", queues=(QueueClaim("q", (SETTINGS,)),), limit=4)
    leases = (await engine.perform(Exchange(claim=claim))).leases
    ends = [Settlement(queue="q", id=leases[0].id, token=leases[0].token, target=JobState.SUCCEEDED)]
    await engine.perform(Exchange(settlements=tuple(ends)))
    return leases[1:]


def plain_commands(leases: tuple[Lease, ...]) -> list[Command[Any]]:
    ends = [Settlement(queue="q", id=one.id, token=one.token, target=JobState.SUCCEEDED) for one in leases]
    claim = Claim(claim_id="second", worker="w", queues=(QueueClaim("q", (SETTINGS,)),), limit=2)
    return [
        Enqueue(groups=(Group((new("one"), new("two"))),)),
        Exchange(settlements=(ends[0],)),
        Exchange(claim=claim),
        Exchange(settlements=tuple(ends[1:]), claim=replace(claim, claim_id="third")),
    ]
