"""Histories of a store for the tests of crashes: commands one after the other, and the state after each of them.

A scenario is a generator: it yields commands, and gets their answers. The ledger alone, without a store, says which
state each command leaves (`expected_states`). A store that was cut off must have one of these states afterwards.
"""

import random
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.engines.ledger import Ledger
from holdfast.engines.tables import Tables
from holdfast.model.command import Command
from holdfast.model.instants import DAY, HOUR, MINUTE, SECOND, At
from holdfast.model.job import Given, JobRecord, KeyScope, ProgressRecord
from holdfast.model.observe import Prune
from holdfast.model.operate import (
    Amend,
    Cancel,
    Clear,
    Delete,
    Emptied,
    Pause,
    PutPool,
    RemoveQueue,
    Requeue,
    Resize,
    Resume,
    Trigger,
)
from holdfast.model.produce import Enqueue, Group, NewJob, PoolPlace
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Disown, Exchange, Expired, ForgetWorker, Heartbeat, Lease, Renew, StopWorker
from holdfast.testing.clock import FrozenRuntime
from holdfast.testing.contract import builders as new


class Advance(NamedTuple):
    """Time goes by."""

    step_us: int


class Reopen(NamedTuple):
    """All processes close the store and open it again."""


class DiskFull(NamedTuple):
    """From now on the disk has no space, or has space again. Simulated disks only."""

    is_full: bool


class Refused(NamedTuple):
    """This command fails with `StorageFull`, and changes nothing."""

    command: Command[Any]


Item = Command[Any] | Advance | Reopen | DiskFull | Refused
Items = Generator[Item, Any, None]

NOT_DURABLE = (Renew, Heartbeat)
"""The answer of these does not wait for a sync."""


def enqueue(*jobs: NewJob) -> Enqueue:
    return Enqueue(groups=(Group(jobs),))


def _job(queue: str, id: str, **fields: Any) -> NewJob:
    return new.new_job(id, queue=queue, **fields)


def _claim(queue: str, number: int, limit: int = 1, **fields: Any) -> Exchange:
    return Exchange(claim=new.claim(f"{queue}-{number:030d}", queue=queue, limit=limit, **fields))


# Scenarios. Each uses one queue, so that several can run in one store.


def enqueueing(queue: str) -> Items:
    yield enqueue(_job(queue, "single", payload=b'"one"', metadata={"customer": "7"}))
    yield enqueue(*(_job(queue, f"b{number:02d}", payload=b"x" * 40 * number) for number in range(20)))
    yield enqueue(_job(queue, "large", payload=bytes(range(256)) * 16))
    yield enqueue(_job(queue, "single", payload=b'"again"'))
    yield enqueue(_job(queue, "keyed", unique_key="k", key_scope=KeyScope.RESULT))
    yield enqueue(_job(queue, "second", unique_key="k", key_scope=KeyScope.RESULT))
    yield Enqueue(groups=(Group((_job(queue, "g1"),)), Group((_job(queue, "g2", priority=3),))))
    yield enqueue(_job(queue, "late", delay=HOUR), _job(queue, "never", expires=1))


def exchanging(queue: str) -> Items:
    yield enqueue(*(_job(queue, f"e{number}", payload=b"%d" % number) for number in range(6)))
    first = yield _claim(queue, 1, 3)
    leases: tuple[Lease, ...] = first.leases
    claim = new.claim(f"{queue}-{2:030d}", queue=queue, limit=2, prefetch=1)
    second = yield Exchange(settlements=tuple(new.succeed(lease, b"result" * 50) for lease in leases), claim=claim)
    leases = second.leases
    yield Exchange(starts=tuple(new.start(lease) for lease in leases))
    yield Renew(jobs=tuple(new.renewal(lease, progress=ProgressRecord(0.5, "half")) for lease in leases))
    yield Exchange(settlements=(new.succeed(leases[0], None), new.fail(leases[1])))
    yield Exchange(settlements=(new.release(leases[2]),))
    yield Exchange(settlements=(new.succeed(leases[0]),))


def retrying(queue: str) -> Items:
    yield enqueue(*(_job(queue, id) for id in "abcd"))
    answer = yield _claim(queue, 1, 4)
    a, b, c, _ = answer.leases
    yield Exchange(settlements=(new.retry(a, 5 * SECOND), new.snooze(b, HOUR), new.retry(c)))
    yield Advance(new.LEASE + 1)
    listed = yield Expired(worker=new.REAPER)
    yield Exchange(settlements=tuple(new.reap(lost) for lost in listed.leases if lost.queue == queue))
    yield Advance(10 * SECOND)
    answer = yield _claim(queue, 2, 4)
    yield Exchange(settlements=tuple(new.fail(lease) for lease in answer.leases))
    yield Requeue(queue=queue, ids=("a", "c"))
    yield Trigger(queue=queue, ids=("b",))


def in_lanes(queue: str) -> Items:
    yield enqueue(*(_job(queue, f"{lane}{number}", lane=lane) for number in range(3) for lane in "xy"))
    for number in range(2):
        answer = yield _claim(queue, number, 5)
        yield Exchange(settlements=tuple(new.succeed(lease) for lease in answer.leases))
    yield Pause(queue=queue, lane="x")
    yield enqueue(_job(queue, "x9", lane="x"))
    yield Cancel(queue=queue, ids=("y2",))
    yield Emptied(queue=queue)
    yield Resume(queue=queue, lane="x")
    answer = yield _claim(queue, 9, 5)
    yield Exchange(settlements=tuple(new.retry(lease) for lease in answer.leases))


def in_pools(queue: str) -> Items:
    yield PutPool(name=queue, lanes=2)
    yield enqueue(*(_job(queue, f"p{number}", pool=PoolPlace(2, f"k{number % 3}")) for number in range(6)))
    yield enqueue(*(_job(queue, f"r{number}", pool=PoolPlace(2)) for number in range(3)))
    answer = yield _claim(queue, 1, 2)
    yield Resize(name=queue, lanes=3)
    yield enqueue(_job(queue, "new", pool=PoolPlace(2, "k1")))
    yield Exchange(settlements=tuple(new.succeed(lease) for lease in answer.leases))
    for number in range(2, 6):
        answer = yield _claim(queue, number, 5)
        yield Exchange(settlements=tuple(new.succeed(lease) for lease in answer.leases))


def with_parents(queue: str) -> Items:
    yield enqueue(_job(queue, "p1"), _job(queue, "p2"))
    yield enqueue(_job(queue, "both", parents=new.after("p1", "p2", queue=queue)))
    yield enqueue(_job(queue, "any", parents=new.after("p2", any_end=True, queue=queue)))
    yield enqueue(_job(queue, "grandchild", parents=new.after("both", queue=queue)))
    answer = yield _claim(queue, 1, 2)
    p1, p2 = answer.leases
    yield Exchange(settlements=(new.succeed(p1),))
    yield Exchange(settlements=(new.fail(p2),))
    answer = yield _claim(queue, 2, 5)
    yield Exchange(settlements=tuple(new.succeed(lease) for lease in answer.leases))
    yield Requeue(queue=queue, ids=("p2", "both"))


def pruning(queue: str) -> Items:
    short = Given(result_ttl=0, retention=0)
    yield enqueue(*(_job(queue, f"s{number}", given=short) for number in range(4)), _job(queue, "kept"))
    yield enqueue(_job(queue, "lane", lane="x", given=short))
    answer = yield _claim(queue, 1, 6)
    yield Exchange(settlements=tuple(new.succeed(lease) for lease in answer.leases))
    yield Advance(SECOND)
    yield Prune(limit=2)
    yield Prune()
    yield Advance(31 * DAY)
    yield Prune()
    yield enqueue(_job(queue, "s0", payload=b"new"))
    yield Delete(queue=queue, ids=("s0",))


def operating(queue: str) -> Items:
    yield enqueue(*(_job(queue, f"c{number}") for number in range(8)))
    answer = yield _claim(queue, 1, 2)
    yield Cancel(queue=queue, ids=("c0", "c2"), note="not needed")
    yield Amend(queue=queue, ids=("c3",), priority=5, retention=HOUR)
    yield Pause(queue=queue)
    yield Clear(queue=queue)
    yield Exchange(settlements=(new.confirm_cancel(answer.leases[0]), new.succeed(answer.leases[1])))
    yield Resume(queue=queue)
    yield Delete(queue=queue, ids=("c2", "c3"))
    yield Requeue(queue=queue, ids=("c4",))
    yield Clear(queue=queue)
    yield Advance(31 * DAY)
    yield Prune()
    yield RemoveQueue(queue=queue)


def with_workers(queue: str) -> Items:
    yield Heartbeat(worker=WorkerRecord(worker=f"{queue}-1", tasks=(new.TASK,), slots=4, interval=SECOND))
    yield enqueue(*(_job(queue, id, unique_key=id, key_scope=KeyScope.RESULT) for id in "ab"))
    answer = yield _claim(queue, 1, 2, worker=f"{queue}-1")
    yield Renew(jobs=tuple(new.renewal(lease) for lease in answer.leases))
    yield Heartbeat(worker=WorkerRecord(worker=f"{queue}-2", slots=1, interval=MINUTE))
    yield StopWorker(worker=f"{queue}-2")
    yield Disown(workers=(f"{queue}-1",), error=new.BOOM)
    yield Reopen()
    listed = yield Expired(worker=new.REAPER)
    yield Exchange(settlements=tuple(new.reap(lost) for lost in listed.leases if lost.queue == queue))
    yield ForgetWorker(worker=f"{queue}-1")
    yield Advance(DAY)
    yield Prune()


def growing(queue: str) -> Items:
    """Small segments are filled many times: most jobs end and are deleted, a few stay."""
    short = Given(result_ttl=0, retention=0)
    for turn in range(12):
        yield enqueue(
            _job(queue, f"t{turn}", payload=b"p" * 700, given=short, priority=2),
            _job(queue, f"z{turn}", unique_key="z", key_scope=KeyScope.INCOMPLETE, priority=1),
            _job(queue, f"k{turn}", payload=b"k", lane="x"),
        )
        answer = yield _claim(queue, turn, 2)
        yield Exchange(settlements=tuple(new.succeed(lease, b"r" * 100) for lease in answer.leases))
        yield Advance(SECOND)
        yield Prune()


def on_a_full_disk(queue: str) -> Items:
    """Jobs are refused, but those that are stored can be settled: a reserve is used for it."""
    yield enqueue(*(_job(queue, f"f{number}", payload=b"x" * 100) for number in range(6)))
    answer = yield _claim(queue, 1, 2)
    yield DiskFull(is_full=True)
    yield Refused(enqueue(_job(queue, "no", payload=b"x" * 5_000)))
    yield Exchange(settlements=tuple(new.succeed(lease, b"done" * 200) for lease in answer.leases))
    yield Refused(enqueue(_job(queue, "no again")))
    for number in range(2, 4):
        answer = yield _claim(queue, number, 2)
        yield Exchange(settlements=tuple(new.fail(lease) for lease in answer.leases))
    yield Reopen()
    yield Refused(enqueue(_job(queue, "no more")))
    yield Cancel(queue=queue, ids=("f5",))
    yield DiskFull(is_full=False)
    yield Advance(5 * SECOND)
    yield enqueue(_job(queue, "yes", payload=b"x" * 5_000))
    answer = yield _claim(queue, 9, 2)
    yield Exchange(settlements=tuple(new.succeed(lease) for lease in answer.leases))


PARTS: tuple[Callable[[str], Items], ...] = (
    enqueueing,
    exchanging,
    retrying,
    in_lanes,
    in_pools,
    with_parents,
    pruning,
    operating,
    with_workers,
    growing,
)


def mixed(seed: int) -> Callable[[], Items]:
    """Several parts at once, each in its own queue, in a random order."""

    def run() -> Items:
        chance = random.Random(seed)
        parts = [part(f"{part.__name__}{number}") for number, part in enumerate(chance.choices(PARTS, k=4))]
        answers: dict[int, Any] = {}
        while parts:
            part = chance.choice(parts)
            try:
                item = part.send(answers.pop(id(part), None))
            except StopIteration:
                parts.remove(part)
                continue
            answers[id(part)] = yield item

    return run


class Scenario(NamedTuple):
    name: str
    run: Callable[[], Items]
    processes: int = 1
    """The commands go to them in turn."""
    segment_bytes: int = 16 * 1024 * 1024
    has_gaps: bool = False
    """A refused command leaves a gap between arrival numbers."""


def _alone(part: Callable[[str], Items]) -> Callable[[], Items]:
    return lambda: part("q")


SMALL_SEGMENT_BYTES = 4_096

SCENARIOS: tuple[Scenario, ...] = (
    *(Scenario(part.__name__, _alone(part)) for part in PARTS[:-1]),
    Scenario("rotation", _alone(growing), segment_bytes=SMALL_SEGMENT_BYTES),
    Scenario("two processes", mixed(1), processes=2),
    Scenario("two processes with rotation", mixed(2), processes=2, segment_bytes=SMALL_SEGMENT_BYTES),
)


SIMULATED_SCENARIOS = (
    *SCENARIOS,
    Scenario("full disk", _alone(on_a_full_disk), has_gaps=True),
    Scenario("full disk with rotation", _alone(on_a_full_disk), 2, SMALL_SEGMENT_BYTES, has_gaps=True),
)
"""Also those that need a simulated disk."""


# States

Dump = dict[tuple[Any, ...], Any]
"""Every record by its key, and what else a store must remember."""


def dump_of(tables: Tables) -> Dump:
    records: Dump = {("last arrival",): tables.last_arrival}
    for name, queue in tables._queues.items():
        if queue.record is not None:
            records["queue", name] = queue.record
        records.update({("job", name, job.id): job for job in queue.jobs.values()})
        records.update({("lane", name, lane): entry.record for lane, entry in queue.lanes.items()})
        records.update({("key", name, *key): taker for key, taker in queue.keys.items()})
    for children in tables._children.values():
        records.update({("edge", edge.parent, edge.child): edge for edge in children.values()})
    for kind, others in (("pool", tables._pools), ("worker", tables._workers)):
        records.update({(kind, name): record for name, record in others.items()})
    return records


def difference(found: Dump, expected: Dump) -> list[str]:
    """The first differences, as lines."""
    lines = [
        f"{key}: found {found.get(key)!r}, expected {expected.get(key)!r}"
        for key in {**expected, **found}
        if found.get(key) != expected.get(key)
    ]
    return lines[:5]


def what_counts(state: Dump) -> Dump:
    """Without what means nothing: a command that was undone leaves a gap between arrival numbers, and takes a key away
    from a job that had no use for it any more."""
    state = {key: value for key, value in state.items() if key[0] != "key" or _keeps_key(state["job", key[1], value])}
    numbers = sorted({record.arrival for key, record in state.items() if key[0] in ("job", "edge")})
    places = {number: place for place, number in enumerate(numbers, 1)}
    renumbered = {
        key: replace(record, arrival=places[record.arrival]) if key[0] in ("job", "edge") else record
        for key, record in state.items()
    }
    return {**renumbered, ("last arrival",): len(numbers)}


def _keeps_key(job: JobRecord) -> bool:
    return job.finished is None or job.key_until > job.finished


class Progress(NamedTuple):
    """A scenario that has come so far."""

    item: Item
    at: At
    state: Dump
    """After the item."""


def expected_states(scenario: Scenario) -> Iterator[Progress]:
    """What the ledger says."""
    clock = FrozenRuntime()
    ledger = Ledger(Tables())
    items = scenario.run()
    answer: Any = None
    while True:
        try:
            item = items.send(answer)
        except StopIteration:
            return
        answer = None
        if isinstance(item, Advance):
            clock.advance(item.step_us / SECOND)
        elif isinstance(item, Command):
            answer = ledger.decide(item, At(clock.wall(), clock.boot())).answer
        yield Progress(item, At(clock.wall(), clock.boot()), dump_of(ledger.state))  # type: ignore[arg-type]
