"""Commands that use every verb, in one sequence. The oracle judges every answer."""

from typing import Any

from holdfast.engines.memory import MemoryEngine
from holdfast.model.command import A, Command
from holdfast.model.instants import DAY, HOUR, SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Audit, Find, Get, Lanes, Now, Prune, Stats
from holdfast.model.operate import (
    Amend,
    Cancel,
    Clear,
    Delete,
    DropSchedule,
    Emptied,
    Pause,
    Pools,
    PutPool,
    PutSchedule,
    Requeue,
    Resize,
    Resume,
    Schedules,
    Trigger,
)
from holdfast.model.produce import DepthLimit, Enqueue, Group, NewJob
from holdfast.model.records import ScheduleRecord, WorkerRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import (
    Claim,
    Disown,
    Exchange,
    Expired,
    ExpiredLease,
    ForgetWorker,
    Heartbeat,
    Lease,
    QueueClaim,
    Renew,
    Renewal,
    Settlement,
    Start,
    StopWorker,
    TaskClaim,
    Workers,
)
from holdfast.testing.oracle import Oracle

LEASE = 10 * SECOND
IDS = "abcdefghij"
EVERY_JOB = Get(jobs=tuple(JobKey("q", id) for id in IDS))


def new(id: str, **fields: Any) -> NewJob:
    return NewJob(queue="q", id=id, task="t", **fields)


def group(*jobs: NewJob, limits: tuple[DepthLimit, ...] = ()) -> Enqueue:
    return Enqueue(groups=(Group(jobs, limits),))


def claim(claim_id: str, limit: int, prefetch: int = 0) -> Exchange:
    queues = (QueueClaim("q", (TaskClaim(task="t", lease_len=LEASE),)),)
    return Exchange(claim=Claim(claim_id=claim_id, worker="w", queues=queues, limit=limit, prefetch=prefetch))


def settle(lease: Lease | ExpiredLease, target: JobState, **fields: Any) -> Exchange:
    fields = {"queue": lease.queue, "id": lease.id, "token": lease.token, "target": target, **fields}
    return Exchange(settlements=(Settlement(**fields),))


ONE_OF_EACH: tuple[Command[Any], ...] = (
    group(new("a", lane="x")),
    Exchange(
        settlements=(Settlement(queue="q", id="b", token="c1.0", target=JobState.RETRYING, reason=Reason.ERROR),),
        starts=(Start("q", "c", "c1.1"),),
        claim=claim("c2", limit=2).claim,
    ),
    Renew(jobs=(Renewal("q", "b", "c1.0"),)),
    Expired(worker="r"),
    Disown(workers=("w",)),
    Heartbeat(worker=WorkerRecord(worker="w")),
    Workers(),
    StopWorker(worker="w"),
    ForgetWorker(worker="w"),
    Cancel(queue="q", ids=("a",)),
    Requeue(queue="q", ids=("a",)),
    Trigger(queue="q", ids=("a",)),
    Delete(queue="q", ids=("a",)),
    Amend(queue="q", ids=("a",), priority=3),
    Pause(queue="q", lane="x"),
    Resume(queue="q", lane="x"),
    Clear(queue="q"),
    Emptied(queue="q"),
    PutPool(name="p", lanes=2),
    Resize(name="p", lanes=3),
    Pools(),
    PutSchedule(schedule=ScheduleRecord(name="s", queue="q", task="t", when="1h")),
    DropSchedule(name="s"),
    Schedules(),
    EVERY_JOB,
    Find(queue="q", state=JobState.QUEUED),
    Stats(queues=("q",)),
    Lanes(queue="q"),
    Prune(),
    Audit(),
    Now(),
)
"""A command of every verb, on the jobs a, b and c; `c1` is a claim of b and c, of which c is assigned."""


def use_every_verb(engine: MemoryEngine) -> None:
    oracle = Oracle()

    def ask(command: Command[A]) -> A:
        answer = engine.perform_now(command)
        problem = oracle.accept(command, answer)
        assert problem is None, problem
        return answer

    # Declared, and in they come.
    for _ in range(2):
        ask(PutPool(name="p", lanes=2))
    ask(PutSchedule(schedule=ScheduleRecord(name="s", queue="q", task="t", when="1h")))
    ask(Heartbeat(worker=WorkerRecord(worker="w")))
    ask(StopWorker(worker="w"))
    ask(Heartbeat(worker=WorkerRecord(worker="w")))
    ask(group(new("a"), new("b"), new("c", lane="x"), new("d", lane="x"), new("e", delay=HOUR)))
    ask(group(new("a"), new("f"), limits=(DepthLimit("q", 9),)))
    ask(group(new("g"), limits=(DepthLimit("q", 6),)))
    ask(Stats(queues=("q",)))
    ask(Lanes(queue="q"))
    page = ask(Find(queue="q", state=JobState.QUEUED, limit=2))
    ask(Find(queue="q", state=JobState.QUEUED, limit=2, cursor=page.cursor))

    # Claimed, started, renewed; by stale tokens too.
    a, b, c = ask(claim("c1", limit=2, prefetch=1)).leases
    ask(claim("c1", limit=4))
    ask(Exchange(starts=(Start("q", "a", "c0.0"), Start("q", c.id, c.token))))
    engine.clock_offset += SECOND
    ask(Renew(jobs=(Renewal("q", "b", b.token), Renewal("q", "a", "c0.0"))))
    ask(EVERY_JOB)

    # Settled: retried, released, snoozed; late.
    boom = ErrorInfo("Boom", "it broke", "")
    ask(settle(a, JobState.RETRYING, reason=Reason.ERROR, error=boom))
    ask(settle(b, JobState.QUEUED, reason=Reason.RELEASED, refund=True))
    ask(EVERY_JOB)
    again = ask(claim("c2", limit=2)).leases
    ask(settle(again[0], JobState.SUCCEEDED, token="c0.0"))
    ask(EVERY_JOB)

    # Lost: listed, reaped with a loss; disowned.
    engine.clock_offset += LEASE
    for lost in ask(Expired(worker="r")).leases:
        ask(settle(lost, JobState.RETRYING, reason=Reason.WORKER_LOST, listed_expiry=lost.lease_expires))
    ask(EVERY_JOB)
    for late in again:
        ask(settle(late, JobState.SUCCEEDED))
    ask(claim("c3", limit=1))
    ask(Disown(workers=("w",)))

    # Operated.
    ask(Cancel(queue="q", ids=("d", "z", "d")))
    ask(Requeue(queue="q", ids=("b", "d")))
    ask(Trigger(queue="q", ids=("e", "z")))
    ask(Amend(queue="q", ids=("f",), priority=3))
    ask(Pause(queue="q"))
    ask(claim("c4", limit=1))
    ask(Resume(queue="q"))

    # Ended: well, with a result that answers a duplicate; and the lane runs empty.
    for lease in ask(claim("c5", limit=10)).leases:
        ask(settle(lease, JobState.SUCCEEDED, result=b"42", retention=SECOND))
        ask(group(new(lease.id)))
    ask(EVERY_JOB)
    for lease in ask(claim("c6", limit=10)).leases:
        ask(settle(lease, JobState.FAILED, reason=Reason.GAVE_UP, error=boom))
    ask(group(new("h"), new("i", lane="x")))
    ask(Clear(queue="q"))
    ask(EVERY_JOB)
    for _ in range(2):
        ask(Emptied(queue="q"))
    ask(Delete(queue="q", ids=("i", "z")))

    # Forgotten.
    ask(Prune())
    engine.clock_offset += 2 * DAY
    ask(Prune(limit=1))
    ask(Prune())
    ask(EVERY_JOB)
    ask(Audit())
