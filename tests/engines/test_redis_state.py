"""The state in Redis: its answers in the middle of a call are those of a plain model."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from redis_server import RedisServer
from redis_stores import Store

import holdfast.engines.redis
from holdfast.engines.ledger.state import claim_of
from holdfast.engines.redis.audit import Stored
from holdfast.engines.redis.audit_keys import InPages
from holdfast.model.job import Given, JobRecord
from holdfast.model.states import BY_DUE, LEASED, TERMINAL, Hold, JobState

LUA = Path(holdfast.engines.redis.__file__).parent / "lua"
NOW = 1_700_000_000_000_000
QUEUES, TASKS, LANES, CLAIMS = ("q", "q:2"), ("a", "", "b{"), ("x", "y"), ("c.1", "c")
ALL = 1_000_000

DRIVER = """
local R = {}
S.begin(KEYS[1], "exchange", 0)
S.is_repairing = true -- the lanes of the model have heads that are no jobs
local answers = {}
local function names(list)
  local found = {}
  for place, one in ipairs(list) do
    found[place] = one.lane and one.kind and one.queue .. ' ' .. one.lane or one.queue .. ' ' .. one.id
  end
  return found
end
for _, step in ipairs(cmsgpack.unpack(ARGV[1])) do
  local what = step[1]
  if what == 'job' then
    if step[2] then step[2].tail = '\\0\\0payload' end
    S.swap_job(S.job(step[3], step[4]), step[2] or nil)
  elseif what == 'record' then
    S.swap(step[2], step[3])
  elseif what == 'flush' then
    S.flush()
  else
    local arguments = step[2]
    for place = 1, step[3] do
      if arguments[place] == false then arguments[place] = nil end
    end
    local answer = { S[what](unpack(arguments, 1, step[3])) }
    local first = answer[1]
    if type(first) == 'function' then
      local found = {}
      local job = first()
      while job do
        found[#found + 1] = job.queue .. ' ' .. job.id
        job = first()
      end
      answers[#answers + 1] = found
    elseif type(first) == 'table' and first.id then
      answers[#answers + 1] = first.queue .. ' ' .. first.id
    elseif type(first) == 'table' and type(first[1]) == 'table' and first[1].child then
      local children = {}
      for place, edge in ipairs(first) do children[place] = edge.child.queue .. ' ' .. edge.child.id end
      answers[#answers + 1] = children
    elseif type(first) == 'table' and type(first[1]) == 'table' then
      answers[#answers + 1] = names(first)
    elseif #answer > 1 then
      answers[#answers + 1] = answer
    else
      if first == nil then first = false end
      answers[#answers + 1] = first
    end
  end
end
return cmsgpack.pack(answers)
"""
FILES = (
    "layout",
    "runtime",
    "records",
    "state_sets",
    "state_writes",
    "state",
    "state_edges",
    "state_lists",
    "state_scopes",
    "state_lanes",
)


def state_script(*driver: str) -> str:
    last = (LUA / "state_unfinished.lua").read_text()
    return "".join((LUA / f"{name}.lua").read_text() for name in FILES) + "local R = {}\n" + last + "".join(driver)


class Model:
    """Records in dictionaries; every question is answered by looking at all of them."""

    def __init__(self) -> None:
        self.jobs: dict[tuple[str, str], JobRecord] = {}
        self.keys: dict[tuple[str, str, str], str] = {}
        self.edges: dict[tuple[str, str], dict[tuple[str, str], int]] = {}
        self.arrival = 0

    def swap(self, before: JobRecord | None, after: JobRecord | None) -> None:
        if (
            before is not None
            and before.unique_key is not None
            and (after is None or after.generation != before.generation)
        ):
            key = (before.queue, before.task, before.unique_key)
            if self.keys.get(key) == before.id:
                del self.keys[key]
        if before is not None:
            del self.jobs[before.queue, before.id]
        if after is not None:
            self.jobs[after.queue, after.id] = after
            if after.live and after.unique_key is not None:
                self.keys[after.queue, after.task, after.unique_key] = after.id

    def of(self, queue: str | None, wanted: Callable[..., Any]) -> list[JobRecord]:
        return [job for job in self.jobs.values() if queue in (None, job.queue) and wanted(job)]

    def questions(self, chance: random.Random) -> Iterator[tuple[str, list[Any], Any]]:
        """Questions with their arguments and answers."""
        for queue in QUEUES:
            yield from self._of_queue(queue, chance)
        at = NOW + chance.randrange(100)
        yield "expiring", [at, ALL], {*map(name, self.of(None, lambda j: j.waiting and j.expires and j.expires <= at))}
        over = self.of(None, lambda j: j.terminal and j.kept_until <= at and (j.queue, j.id) not in self.edges)
        yield "ended", [at, ALL], {*map(name, over)}
        for claim in (*CLAIMS, "none"):
            held = self.of(None, lambda j, claim=claim: j.token is not None and claim_of(j.token) == claim)
            yield "held_by", [claim], {*map(name, held)}
        late = self.of(None, lambda j: j.lease_expires is not None and j.lease_expires <= at)
        yield "leases_until", [at], {*map(name, late)}
        yield "leases_of", [["w1"]], {*map(name, self.of(None, lambda j: j.leased and j.owner == "w1"))}
        ended = sorted(parent for parent in self.edges if parent in self.jobs and self.jobs[parent].terminal)
        yield "ended_parents", [], list(ended[0]) if ended else False
        for queue, job_id in sorted(self.jobs)[:3]:
            children = self.edges.get((queue, job_id), {})
            yield "children", [queue, job_id], {" ".join(child) for child in children}

    def _of_queue(self, queue: str, chance: random.Random) -> Iterator[tuple[str, list[Any], Any]]:
        at = NOW + chance.randrange(100)
        ready = {}
        for task in TASKS:
            queued = self.of(queue, lambda j, task=task: j.state is JobState.QUEUED and j.task == task)
            queued.sort(key=lambda j: (-j.priority, j.due, j.arrival))
            yield "ready", [queue, task, chance.randrange(1, 4)], [name(job) for job in queued]
            if queued:
                ready[task] = queued[0].due
        yield "first_ready", [queue], ready or []
        waits = sorted(self.of(queue, lambda j: j.state in BY_DUE), key=lambda j: (j.due, j.arrival))
        fallen = [job for job in waits if job.due <= at]
        limit = chance.randrange(1, 6)
        yield "due", [queue, at, limit], [name(job) for job in fallen[:limit]]
        yield "next_due", [queue], waits[0].due if waits else False
        yield "count_due", [queue, at], [len(fallen), fallen[0].due] if fallen else 0
        for lane in LANES:
            held = self.of(queue, lambda j, lane=lane: j.lane == lane and j.hold & Hold.LANE)
            best = min(held, key=lambda j: (-j.priority, j.arrival), default=None)
            yield "next_in_lane", [queue, lane], name(best) if best else False
            first = min(held, key=lambda j: j.arrival, default=None)
            yield "earliest_in_lane", [queue, lane], name(first) if first else False
        live = sorted(self.of(queue, lambda j: j.live), key=lambda j: -j.arrival)
        yield "live_jobs", [queue], [name(job) for job in live]
        yield "live_below", [queue, False, 3], [name(job) for job in live[:3]]
        epoch = sorted(self.of(queue, lambda j: j.hold & Hold.EPOCH), key=lambda j: j.arrival)
        yield "epoch_held", [queue, 0, ALL], [name(job) for job in epoch]
        for state in JobState:
            below = chance.choice([False, self.arrival // 2])
            found = self.of(
                queue, lambda j, state=state, below=below: j.state is state and (not below or j.arrival < below)
            )
            found.sort(key=lambda j: -j.arrival)
            yield "newest", [queue, state, below, 4], [name(job) for job in found[:4]]
        yield "depth", [queue], len(live)
        counts = {str(s): n for s in JobState if (n := len(self.of(queue, lambda j, s=s: j.state is s)))}
        yield "counts", [queue], counts or []
        for task in TASKS:
            taker = self.keys.get((queue, task, "k"))
            yield "key_taker", [queue, task, "k"], f"{queue} {taker}" if taker else False


def name(job: JobRecord) -> str:
    return f"{job.queue} {job.id}"


def random_job(chance: random.Random, model: Model, old: JobRecord | None, queue: str, job_id: str) -> JobRecord:
    """A job in any state, with the fields that go with it."""
    state = chance.choice(list(JobState))
    job = old
    if job is None or chance.random() < 0.2:  # a new generation
        model.arrival += 1
        job = JobRecord(
            queue=queue,
            id=job_id,
            task=chance.choice(TASKS),
            unique_key=chance.choice([None, "k"]),
            generation=0 if old is None else old.generation + 1,
            arrival=model.arrival,
            lane=chance.choice([None, *LANES]),
            expires=chance.choice([None, NOW + chance.randrange(100)]),
            created=NOW,
            given=Given(retention=1),
        )
    hold = Hold.NONE
    if state is JobState.BLOCKED:
        hold = chance.choice([Hold.PAUSED, Hold.EPOCH] if job.lane is None else [Hold.LANE, Hold.LANE | Hold.EPOCH])
    leased, ended = state in LEASED, state in TERMINAL
    return replace(
        job,
        state=state,
        hold=hold,
        due=NOW + chance.randrange(100),
        priority=chance.randrange(-1, 2),
        owner=chance.choice(["w1", "w2"]),
        token=f"{chance.choice(CLAIMS)}.{chance.randrange(10**9)}" if leased else None,
        lease_expires=NOW + chance.randrange(100) if leased else None,
        finished=NOW if ended else None,
        visible_until=NOW + chance.randrange(100) if ended else 0,
    )


def lua_job(job: JobRecord) -> dict[str, Any]:
    fields = {field: getattr(job, field) for field in job.__struct_fields__ if field not in ("payload", "metadata")}
    fields["given"] = {"retention": 1}
    fields["payload_hash"] = ""
    return {field: value for field, value in fields.items() if value is not None}


def random_steps(chance: random.Random, model: Model, count: int) -> list[list[Any]]:
    steps: list[list[Any]] = []
    for _ in range(count):
        queue, job_id = chance.choice(QUEUES), str(chance.randrange(12))
        before = model.jobs.get((queue, job_id))
        if before is not None and chance.random() < 0.25:
            for parent in [parent for parent in model.edges if parent == (queue, job_id)]:
                steps += [edge_step(model, parent, child, there=False) for child in list(model.edges[parent])]
            model.swap(before, None)
            steps.append(["job", False, queue, job_id])
        elif before is not None and chance.random() < 0.25:
            child = (chance.choice(QUEUES), str(chance.randrange(12)))
            there = child not in model.edges.get((queue, job_id), {})
            steps.append(edge_step(model, (queue, job_id), child, there=there))
        else:
            after = random_job(chance, model, before, queue, job_id)
            model.swap(before, after)
            steps.append(["job", lua_job(after), queue, job_id])
    return steps


def edge_step(model: Model, parent: tuple[str, str], child: tuple[str, str], *, there: bool) -> list[Any]:
    edges = model.edges.setdefault(parent, {})
    if there:
        edges[child] = 7
    else:
        del edges[child]
        if not edges:
            del model.edges[parent]
    keys = [{"queue": queue, "id": job_id} for queue, job_id in (parent, child)]
    edge = {"kind": "Edge", "parent": keys[0], "child": keys[1], "arrival": 7, "any_end": there}
    return ["record", edge, there]


@pytest.mark.parametrize("seed", range(25))
def test_questions_in_a_call_see_stored_and_changed_jobs(
    redis_server: RedisServer, redis_store: Callable[[], Store], seed: int
) -> None:
    chance, model = random.Random(seed), Model()
    root, script = f"{redis_store().namespace}:", state_script(DRIVER)
    for round_number in range(4):
        steps = random_steps(chance, model, chance.randrange(1, 15))
        for expected_after in ("in the call", "after the flush"):
            questions = list(model.questions(chance))
            asked = [[question, arguments, len(arguments)] for question, arguments, _ in questions]
            steps += asked
            last = [["flush"]] if expected_after == "in the call" else []
            reply = redis_server.execute("EVAL", script, 1, root, msgspec.msgpack.encode(steps + last))
            answers = msgspec.msgpack.decode(reply)
            for (question, arguments, expected), answer in zip(questions, answers, strict=True):
                found = set(answer) if isinstance(expected, set) else answer
                place = f"seed {seed}, round {round_number}, {question}{tuple(arguments)} {expected_after}"
                assert found == expected, place
            steps = []
        assert list(index_problems(redis_server, root)) == []


def test_the_first_of_many_ended_parents_is_found(redis_server: RedisServer, redis_store: Callable[[], Store]) -> None:
    """More than one page of them, and the call has resolved the first 100 or none."""
    model, root, steps = Model(), f"{redis_store().namespace}:", []
    parents = [("q", f"{number:03}") for number in range(250)]
    for number, (queue, job_id) in enumerate(parents):
        job = JobRecord(queue=queue, id=job_id, arrival=number + 1, created=NOW, state=JobState.FAILED, finished=NOW)
        steps.append(["job", lua_job(job), queue, job_id])
        steps.append(edge_step(model, (queue, job_id), ("r", job_id), there=True))
    resolved = [edge_step(model, parent, ("r", parent[1]), there=False) for parent in parents[:100]]
    question = ["ended_parents", [], 0]
    for call, expected in (([*steps, ["flush"]], []), ([question, *resolved, question], [["q", "000"], ["q", "100"]])):
        reply = redis_server.execute("EVAL", state_script(DRIVER), 1, root, msgspec.msgpack.encode(call))
        assert msgspec.msgpack.decode(reply) == expected


@pytest.mark.parametrize("seed", range(5))
def test_the_jobs_of_a_lane_are_found_by_arrival_whatever_their_priorities(
    redis_server: RedisServer, redis_store: Callable[[], Store], seed: int
) -> None:
    """With a part of them changed by the call: ended, or with another priority."""
    chance, root = random.Random(seed), f"{redis_store().namespace}:"
    priorities = chance.sample(range(-9, 10), seed + 1)
    jobs = [
        JobRecord(
            queue="q", id=str(number), arrival=number, created=NOW, lane="x",
            state=JobState.BLOCKED, hold=Hold.LANE, priority=chance.choice(priorities),
        )
        for number in range(1, chance.randrange(100, 300))
    ]  # fmt: skip
    put: list[list[Any]] = [["job", lua_job(job), "q", job.id] for job in jobs]
    redis_server.execute("EVAL", state_script(DRIVER), 1, root, msgspec.msgpack.encode([*put, ["flush"]]))
    steps: list[list[Any]] = []
    expected: list[Any] = []
    for _ in range(10):
        for place in chance.sample(range(len(jobs)), 5):
            jobs[place] = replace(jobs[place], priority=chance.choice(priorities))
            steps.append(["job", lua_job(jobs[place]), "q", jobs[place].id])
        for job in chance.sample(jobs, 2) + jobs[:1]:
            if job in jobs:
                jobs.remove(job)
                steps.append(["job", False, "q", job.id])
        below, limit = chance.choice([False, 1, chance.randrange(400)]), chance.choice([1, 7, 100, 1000])
        steps += [["earliest_in_lane", ["q", "x"], 2], ["live_in_lane", ["q", "x", below, limit], 4]]
        found = [name(job) for job in reversed(jobs) if not below or job.arrival < below]
        expected += [name(jobs[0]), found[:limit]]
    reply = redis_server.execute("EVAL", state_script(DRIVER), 1, root, msgspec.msgpack.encode(steps))
    assert msgspec.msgpack.decode(reply) == expected


def index_problems(server: RedisServer, root: str) -> Iterator[str]:
    async def run(*command: Any) -> Any:
        return server.execute("EVAL", "return redis.call(unpack(ARGV))", 0, *command)  # as the server answers it

    stored = asyncio.run(Stored.read(InPages(run, root)))
    for queue in stored.queues.values():
        yield from (text for text in queue._index_problems() if text != "it has jobs and no record")
    yield from stored._list_problems()
    yield from stored._claim_problems()
