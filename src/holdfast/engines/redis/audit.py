"""The audit of a root: every index and counter is computed from the records and compared with what is stored.

A small store is read in one step of the server. A large one is read in pages, because a script over all jobs would stop
the server. If another process writes between two pages, a page may contradict another one. So an audit in pages that
finds problems is repeated while the store changes, a few times.
"""

import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from holdfast.engines.audit import problems_of_queue
from holdfast.engines.ledger.state import claim_of
from holdfast.engines.redis.audit_keys import AtOnce, InPages, Keys, Run, Scores
from holdfast.engines.redis.records import APART_FLAG, unpack_lane, unpack_stored
from holdfast.engines.redis.roots import encode_name
from holdfast.model.instants import Instant
from holdfast.model.job import JobRecord
from holdfast.model.records import LaneRecord
from holdfast.model.states import BY_DUE, TERMINAL, Hold, JobState

MAX_AUDITS = 5

Name = tuple[str, str]


async def problems(run: Run, root: str, read_time: Callable[[], Awaitable[Instant]]) -> tuple[str, ...]:
    """Contradictions under this root, as lines of text.

    The time is read after the keys: a key that was free at an earlier time may have another holder by now.
    """
    at_once = AtOnce(run, root)
    while await at_once.read():
        stored = await Stored.read(at_once)
        if not at_once.missing:
            return tuple(stored.problems(await read_time()))
    found: tuple[str, ...] = ()
    for _ in range(MAX_AUDITS):
        tip = await run("HGET", f"{root}meta", "tip")
        stored = await Stored.read(InPages(run, root))
        found = tuple(stored.problems(await read_time()))
        if not found or await run("HGET", f"{root}meta", "tip") == tip:
            break
    return found


class StoredQueue:
    """All that is stored of one queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.jobs: dict[str, JobRecord] = {}
        self.lanes: dict[str, LaneRecord] = {}
        self.counters: dict[bytes, bytes] = {}
        self.keys: dict[bytes, bytes] = {}
        self.due: Scores = {}
        self.epoch: Scores = {}
        self.lists: dict[JobState, Scores] = {}
        self.ready: dict[str, Scores] = {}
        self.waiting: dict[str, Scores] = {}
        self.damage: list[str] = []

    @classmethod
    async def read(cls, keys: Keys, name: str) -> "StoredQueue":
        queue, code = cls(name), encode_name(name)
        for job_id, raw in (await keys.hash(f"jobs:{code}")).items():
            await queue._add_job(keys, job_id.decode(), raw)
        queue.counters = await keys.hash(f"queue:{code}")
        queue.keys = await keys.hash(f"keys:{code}")
        queue.due = await keys.zset(f"due:{code}")
        queue.epoch = await keys.zset(f"epoch:{code}")
        for lane, raw in (await keys.hash(f"lanes:{code}")).items():
            queue.lanes[lane.decode()] = unpack_lane(raw, name, lane.decode())
        for state in JobState:
            queue.lists[state] = await keys.zset(f"state:{code}:{state}")
        tasks = {task.decode() for task in await keys.members(f"tasks:{code}")}
        for task in tasks | {job.task for job in queue.jobs.values()}:
            queue.ready[task] = await keys.zset(f"ready:{code}:{encode_name(task)}")
            if queue.ready[task] and task not in tasks:
                queue.damage.append(f"task {task!r} has ready jobs and is not in the list of tasks")
        for lane_name in queue.lanes.keys() | {job.lane for job in queue.jobs.values() if job.lane is not None}:
            queue.waiting[lane_name] = await keys.zset(f"lane:{code}:{encode_name(lane_name)}")
        return queue

    async def _add_job(self, keys: Keys, job_id: str, raw: bytes) -> None:
        try:
            self.jobs[job_id] = unpack_stored(raw, self.name, job_id)
        except (struct.error, ValueError, IndexError, TypeError, msgspec.MsgspecError) as error:
            self.damage.append(f"job {job_id!r}: its record cannot be decoded: {error}")
            return
        if raw[0] & APART_FLAG and not await keys.exists(f"payload:{encode_name(self.name)}:{encode_name(job_id)}"):
            self.damage.append(f"job {job_id!r}: its payload is missing")

    def problems(self, now: int) -> Iterator[str]:
        for text in self.damage:
            yield f"queue {self.name!r}: {text}"
        yield from problems_of_queue(self.name, self.jobs.values(), list(self.lanes.values()))
        for text in self._index_problems():
            yield f"queue {self.name!r}: {text}"
        for text in self._key_problems(now):
            yield f"queue {self.name!r}: {text}"

    def _index_problems(self) -> Iterator[str]:
        jobs = list(self.jobs.values())
        if jobs and b"paused" not in self.counters:
            yield "it has jobs and no record"
        if int(self.counters.get(b"pooled", 0)) != sum(job.live and job.epoch > 0 for job in jobs):
            yield "the count of live jobs of a pool is not that of the records"
        counts = Counter(job.state for job in jobs)
        for state in JobState:
            if int(self.counters.get(state.encode(), 0)) != counts[state]:
                yield f"the count of {state} jobs is not that of the records"
            listed = {} if state in (JobState.ASSIGNED, JobState.RUNNING) else {
                job.id.encode(): float(job.arrival) for job in jobs if job.state is state
            }  # fmt: skip
            if self.lists[state] != listed:
                yield f"the list of {state} jobs is not that of the records"
        for task, stored in self.ready.items():
            queued = [job for job in jobs if job.state is JobState.QUEUED and job.task == task]
            if stored != {_ready_member(job): float(-job.priority) for job in queued}:
                yield f"the ready jobs of task {task!r} are not those of the records"
        if self.due != {_arrival_member(job): float(job.due) for job in jobs if job.state in BY_DUE}:
            yield "the index of due times is not that of the records"
        if self.epoch != {job.id.encode(): float(job.arrival) for job in jobs if job.hold & Hold.EPOCH}:
            yield "the jobs that wait for a resize are not those of the records"
        for lane, stored in self.waiting.items():
            held = [job for job in jobs if job.lane == lane and job.hold & Hold.LANE]
            if stored != {_arrival_member(job): float(-job.priority) for job in held}:
                yield f"the jobs that wait in lane {lane!r} are not those of the records"

    def _key_problems(self, now: int) -> Iterator[str]:
        keys = {key.decode(): job_id.decode() for key, job_id in self.keys.items()}
        for key, job_id in keys.items():
            job = self.jobs.get(job_id)
            if job is None or key != f"{job.task}\0{job.unique_key}":
                yield f"key {key!r} names job {job_id!r}, which does not have it"
        for job in self.jobs.values():
            takes = job.live or (job.state is JobState.SUCCEEDED and now < job.key_until)
            if job.unique_key is not None and takes and keys.get(f"{job.task}\0{job.unique_key}") != job.id:
                yield f"key {job.unique_key!r} does not name job {job.id!r}, which holds it"


class Stored:
    """All that is stored under a root."""

    def __init__(self) -> None:
        self.queues: dict[str, StoredQueue] = {}
        self.listed: set[str] = set()
        self.leases: Scores = {}
        self.ended: Scores = {}
        self.expiring: Scores = {}
        self.idle_lanes: Scores = {}
        self.parents: Scores = {}
        self.ended_parents: Scores = {}
        self.claims: dict[bytes, bytes] = {}
        self.edges: dict[Name, Scores] = {}

    @classmethod
    async def read(cls, keys: Keys) -> "Stored":
        stored = cls()
        stored.listed = {name.decode() for name in await keys.zset("queues")}
        stored.leases = await keys.zset("leases")
        stored.ended = await keys.zset("ended")
        stored.expiring = await keys.zset("expiring")
        stored.idle_lanes = await keys.zset("idle_lanes")
        stored.parents = await keys.zset("parents")
        stored.ended_parents = await keys.zset("ended_parents")
        stored.claims = await keys.hash("claims")
        for parent in stored.parents:
            queue, job_id = split_full_name(parent)
            key = f"edges:{encode_name(queue)}:{encode_name(job_id)}"
            stored.edges[queue, job_id] = await keys.zset(key)
        named = {split_full_name(name)[0] for name in (*stored.leases, *stored.ended, *stored.expiring)}
        for name in sorted(stored.listed | named):
            stored.queues[name] = await StoredQueue.read(keys, name)
        return stored

    def problems(self, now: int) -> Iterator[str]:
        for queue in self.queues.values():
            yield from queue.problems(now)
            if (queue.name in self.listed) != (b"paused" in queue.counters):
                yield f"queue {queue.name!r}: its record and the list of queues contradict each other"
        yield from self._list_problems()
        yield from self._claim_problems()
        yield from self._edge_problems()

    def _jobs(self) -> Iterator[JobRecord]:
        for queue in self.queues.values():
            yield from queue.jobs.values()

    def _list_problems(self) -> Iterator[str]:
        leases, ended, expiring = {}, {}, {}
        for job in self._jobs():
            name = full_name(job.queue, job.id)
            if job.lease_expires is not None:
                leases[name] = float(job.lease_expires)
            if job.state in TERMINAL:
                ended[name] = float(job.kept_until)
            if job.waiting and job.expires is not None:
                expiring[name] = float(job.expires)
        if self.leases != leases:
            yield "the list of leases is not that of the records"
        if self.ended != ended:
            yield "the index of ended jobs is not that of the records"
        if self.expiring != expiring:
            yield "the index of expiring jobs is not that of the records"
        idle = {
            full_name(lane.queue, lane.lane): float(lane.emptied)
            for queue in self.queues.values()
            for lane in queue.lanes.values()
            if lane.depth == 0 and not lane.paused
        }
        if self.idle_lanes != idle:
            yield "the list of idle lanes is not that of the records"

    def _claim_problems(self) -> Iterator[str]:
        tokens = [job.token for job in self._jobs() if job.token is not None]
        claims = Counter(claim_of(token).encode() for token in tokens)
        if {claim: int(count) for claim, count in self.claims.items()} != claims:
            yield "the list of claims is not that of the records"
        if len(set(tokens)) != len(tokens):
            yield "two leases share a token"

    def _job(self, name: Name) -> JobRecord | None:
        queue = self.queues.get(name[0])
        return None if queue is None else queue.jobs.get(name[1])

    def _edge_problems(self) -> Iterator[str]:
        left: Counter[Name] = Counter()
        ended = set()
        for parent, edges in self.edges.items():
            job = self._job(parent)
            if job is None:
                yield f"edges from {parent}, which does not exist"
            elif job.terminal:
                ended.add(full_name(*parent))
            for member, score in edges.items():
                child = split_full_name(member)
                record = self._job(child)
                if record is not None and record.arrival == int(score) // 2:
                    left[child] += 1
        if set(self.ended_parents) != ended:
            yield "the list of ended parents is not that of the records"
        for job in self._jobs():
            if job.hold & Hold.PARENTS and left[job.queue, job.id] != job.parents_left:
                yield f"job {job.id!r} of queue {job.queue!r}: {job.parents_left} parents left, edges say otherwise"


def full_name(queue: str, name: str) -> bytes:
    """A job or lane in a set of the whole root."""
    return f"{queue}\0{name}".encode()


def split_full_name(name: bytes) -> Name:
    queue, _, rest = name.decode().partition("\0")
    return queue, rest


def _arrival_member(job: JobRecord) -> bytes:
    return job.arrival.to_bytes(6, "big") + job.id.encode()


def _ready_member(job: JobRecord) -> bytes:
    return job.due.to_bytes(7, "big") + _arrival_member(job)
