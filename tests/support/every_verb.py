"""Commands that use every verb, in one sequence. On a memory engine the oracle judges every answer."""

from collections.abc import Generator
from typing import Any

from holdfast.engine import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.model.command import Command
from holdfast.model.instants import DAY, HOUR, SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Audit, Find, Get, Lanes, Now, Prune, Stats
from holdfast.model.operate import (
    Amend,
    Cancel,
    Clear,
    Delete,
    Emptied,
    Pause,
    Pools,
    PutPool,
    RemoveQueue,
    Requeue,
    Resize,
    Resume,
    Trigger,
)
from holdfast.model.produce import DepthLimit, Enqueue, Group, NewJob
from holdfast.model.records import WorkerRecord
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
    RemoveQueue(queue="q"),
    PutPool(name="p", lanes=2),
    Resize(name="p", lanes=3),
    Pools(),
    Pools(name="p"),
    EVERY_JOB,
    Find(queue="q", state=JobState.QUEUED),
    Stats(queues=("q",)),
    Lanes(queue="q", lanes=("x",)),
    Prune(),
    Audit(),
    Now(),
)
"""A command of every verb, on the jobs a, b and c; `c1` is a claim of b and c, of which c is assigned."""

Every = Generator[Command[Any], Any, None]
"""Yields commands, one after the other, and gets their answers."""


def use_every_verb(engine: MemoryEngine) -> None:
    oracle = Oracle()
    commands = every_verb(engine)
    command = next(commands)
    while True:
        answer = engine.perform_now(command)
        problem = oracle.accept(command, answer)
        assert problem is None, problem
        try:
            command = commands.send(answer)
        except StopIteration:
            return


def every_verb(engine: Engine) -> Every:
    """The commands. The engine's clock is moved between them."""
    # Declared, and in they come.
    for _ in range(2):
        yield PutPool(name="p", lanes=2)
    yield Heartbeat(worker=WorkerRecord(worker="w"))
    yield StopWorker(worker="w")
    yield Heartbeat(worker=WorkerRecord(worker="w"))
    yield group(new("a"), new("b"), new("c", lane="x"), new("d", lane="x"), new("e", delay=HOUR))
    yield group(new("a"), new("f"), limits=(DepthLimit("q", 9),))
    yield group(new("g"), limits=(DepthLimit("q", 6),))
    yield Stats(queues=("q",))
    yield Lanes(queue="q")
    yield Lanes(queue="q", lanes=("x", "absent"))
    page = yield Find(queue="q", state=JobState.QUEUED, limit=2)
    yield Find(queue="q", state=JobState.QUEUED, limit=2, cursor=page.cursor)

    # Claimed, started, renewed; by stale tokens too.
    a, b, c = (yield (claim("c1", limit=2, prefetch=1))).leases
    yield claim("c1", limit=4)
    yield Exchange(starts=(Start("q", "a", "c0.0"), Start("q", c.id, c.token)))
    engine.clock_offset += SECOND
    yield Renew(jobs=(Renewal("q", "b", b.token), Renewal("q", "a", "c0.0")))
    yield EVERY_JOB

    # Settled: retried, released, snoozed; late.
    boom = ErrorInfo("Boom", "it broke", "")
    yield settle(a, JobState.RETRYING, reason=Reason.ERROR, error=boom)
    yield settle(b, JobState.QUEUED, reason=Reason.RELEASED, refund=True)
    yield EVERY_JOB
    again = (yield (claim("c2", limit=2))).leases
    yield settle(again[0], JobState.SUCCEEDED, token="c0.0")
    yield EVERY_JOB

    # Lost: listed, reaped with a loss; disowned.
    engine.clock_offset += LEASE
    for lost in (yield (Expired(worker="r"))).leases:
        yield settle(lost, JobState.RETRYING, reason=Reason.WORKER_LOST, listed_expiry=lost.lease_expires)
    yield EVERY_JOB
    for late in again:
        yield settle(late, JobState.SUCCEEDED)
    yield claim("c3", limit=1)
    yield Disown(workers=("w",))
    yield Disown(workers=("w",), error=ErrorInfo("Died", "of SIGKILL", ""))

    # Operated.
    yield Cancel(queue="q", ids=("d", "z", "d"))
    yield Requeue(queue="q", ids=("b", "d"))
    yield Trigger(queue="q", ids=("e", "z"))
    yield Amend(queue="q", ids=("f",), priority=3)
    yield Pause(queue="q")
    yield claim("c4", limit=1)
    yield Resume(queue="q")

    # Ended: well, with a result that answers a duplicate; and the lane runs empty.
    for lease in (yield (claim("c5", limit=10))).leases:
        yield settle(lease, JobState.SUCCEEDED, result=b"42", retention=SECOND)
        yield group(new(lease.id))
    yield EVERY_JOB
    for lease in (yield (claim("c6", limit=10))).leases:
        yield settle(lease, JobState.FAILED, reason=Reason.GAVE_UP, error=boom)
    yield group(new("h"), new("i", lane="x"))
    yield Clear(queue="q")
    yield EVERY_JOB
    for _ in range(2):
        yield Emptied(queue="q")
    yield Delete(queue="q", ids=("i", "z"))

    # Forgotten.
    yield Prune()
    engine.clock_offset += 2 * DAY
    yield Prune(limit=1)
    yield Prune()
    yield EVERY_JOB
    yield Audit()
    for queue in ("q", "p", "p"):
        yield RemoveQueue(queue=queue)
    yield Stats()
