"""The fast path of the Redis engine stores the same bytes and gives the same answers as the rules."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import multiple, rule, run_state_machine_as_test
from redis_server import RedisServer
from twin_redis import Twins

from holdfast.model.command import Command
from holdfast.model.instants import FOREVER, HOUR, MINUTE, SECOND
from holdfast.model.job import Given, JobKey, KeyScope, ProgressRecord
from holdfast.model.observe import Get
from holdfast.model.operate import Amend, Cancel, Clear, Pause
from holdfast.model.produce import DepthLimit, Enqueue, Group, NewJob, Parent, PoolPlace
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Claim, Exchange, Lease, QueueClaim, Settlement, Start, TaskClaim
from holdfast.testing.differential.alphabet import EVERYTHING, claim_queues, claim_sizes
from holdfast.testing.differential.jobs import THEMES, queues
from holdfast.testing.differential.machine import Differential

LEASE_US = 10 * SECOND


@pytest.fixture
def twins(redis_server: RedisServer, runner: asyncio.Runner) -> Iterator[Twins]:
    engine = Twins(redis_server)
    runner.run(engine.open())
    yield engine
    runner.run(engine.close())


def plain(id: str, **fields: Any) -> NewJob:
    return NewJob(**{"queue": "q", "id": id, "task": "t", "payload": b"[1]", **fields})


def enqueue(*jobs: NewJob) -> Enqueue:
    return Enqueue(groups=(Group(jobs),))


def claim(number: int, limit: int = 10, prefetch: int = 0, queues: tuple[QueueClaim, ...] = ()) -> Claim:
    return Claim(
        claim_id=f"claim{number}",
        worker="w1",
        queues=queues or (QueueClaim("q", (TaskClaim(task="t", lease_len=LEASE_US, max_attempts=3),)),),
        limit=limit,
        prefetch=prefetch,
    )


def success(lease: Lease, **fields: Any) -> Settlement:
    return Settlement(
        queue=lease.queue, id=lease.id, token=lease.token, **{"target": JobState.SUCCEEDED, "result": b"42", **fields}
    )


async def run(twins: Twins, *commands: Command[Any]) -> Any:
    """Send these commands; the answer to the last one."""
    answer = None
    for command in commands:
        answer = await twins.perform(command)
    return answer


async def begin(twins: Twins, *jobs: NewJob) -> None:
    """The first job of a queue is left to the rules. It is gone when this ends, and the counts of the fast path too."""
    first = await run(twins, enqueue(plain("first")), Exchange(claim=claim(0)))
    await run(twins, Exchange(settlements=(success(first.leases[0], retention=0, result_ttl=0),)))
    if jobs:
        await run(twins, enqueue(*jobs))
    twins.forget_taken()


# What the fast path carries out


async def test_plain_jobs_take_the_fast_path_from_enqueue_to_success(twins: Twins) -> None:
    await begin(twins)
    await run(twins, enqueue(*(plain(f"{number}", priority=number % 3) for number in range(30))))
    held: tuple[Lease, ...] = ()
    for number in range(1, 5):
        answer = await run(twins, Exchange(settlements=tuple(map(success, held)), claim=claim(number)))
        held = answer.leases
    assert held == ()
    assert twins.taken() == {"enqueue": 1, "exchange": 4}


async def test_jobs_of_several_tasks_and_queues_are_claimed_in_order(twins: Twins) -> None:
    await begin(twins, plain("other", queue="r"))
    tasks = ("t", "u", "v")
    new = [plain(f"{number}", task=tasks[number % 3], priority=number % 2) for number in range(24)]
    new += [plain(f"{number}", task="u", queue="r", due=1) for number in range(24, 30)]
    await run(twins, enqueue(*new[:20]), enqueue(*new[20:]))
    limits = {"t": 3, "u": None, "v": 20}
    wanted = tuple(TaskClaim(task=task, lease_len=LEASE_US, limit=limit) for task, limit in limits.items())
    both = (QueueClaim("q", wanted, 12), QueueClaim("r", wanted))
    held = await run(twins, Exchange(claim=claim(1, limit=10, prefetch=5, queues=both)))
    assert [lease.state for lease in held.leases].count(JobState.ASSIGNED) == 5
    settled = tuple(success(lease) for lease in held.leases if lease.state is JobState.RUNNING)
    await run(twins, Exchange(settlements=settled, claim=claim(2, limit=40, queues=both)))
    assert twins.taken() == {"enqueue": 2, "exchange": 2}


async def test_a_task_without_a_share_gives_nothing(twins: Twins) -> None:
    await begin(twins, plain("a"), plain("b"))
    wanted = (QueueClaim("q", (TaskClaim(task="t", lease_len=LEASE_US, limit=0),)),)
    assert (await run(twins, Exchange(claim=claim(1, queues=wanted)))).leases == ()
    assert twins.taken() == {"exchange": 1}


async def test_a_second_lease_keeps_what_the_first_one_left(twins: Twins) -> None:
    """Released, so it has been leased before and has a reason; the refund gives the attempt back."""
    await begin(twins, plain("a"), plain("b"), plain("c"))
    held = (await run(twins, Exchange(claim=claim(1, limit=2, prefetch=1)))).leases
    released = {"target": JobState.QUEUED, "reason": Reason.RELEASED, "result": None}
    settlements = (success(held[0], **released, refund=True), *(success(lease, **released) for lease in held[1:]))
    await run(twins, Exchange(settlements=settlements))
    twins.forget_taken()
    held = (await run(twins, Exchange(claim=claim(2, limit=1, prefetch=1)))).leases
    assert [lease.attempt for lease in held] == [1, 2]
    await run(twins, Exchange(settlements=(success(held[0]),), claim=claim(3)))
    assert twins.taken() == {"exchange": 2}


@pytest.mark.parametrize(
    "fields",
    [
        {"result": None},
        {"result": b""},
        {"result": b"x" * 70_000},
        {"retention": 0, "result_ttl": HOUR},
        {"retention": HOUR, "result_ttl": 0},
        {"retention": FOREVER, "result_ttl": FOREVER},
    ],
    ids=["no result", "empty result", "large result", "no retention", "no result TTL", "forever"],
)
async def test_a_success_sets_the_lifetimes_that_it_names(twins: Twins, fields: dict[str, Any]) -> None:
    await begin(twins, plain("a"), plain("b"))
    held = (await run(twins, Exchange(claim=claim(1)))).leases
    await run(twins, Exchange(settlements=(success(held[0], **fields), success(held[1]))))
    assert twins.taken() == {"exchange": 2}


async def test_jobs_whose_callers_wait_take_the_fast_path_too(twins: Twins) -> None:
    """A request: enqueue with the address of the caller, claim, release, claim, success, and a look at the result."""
    await begin(twins)
    await run(twins, enqueue(plain("a", reply="p1", payload_hash=b"1"), plain("b"), plain("c", reply="p2")))
    (one, two, three) = (await run(twins, Exchange(claim=claim(1, limit=3)))).leases
    released = success(three, target=JobState.QUEUED, reason=Reason.RELEASED, result=None)
    await run(twins, Exchange(settlements=(released,)))
    (again,) = (await run(twins, Exchange(settlements=(success(two),), claim=claim(2)))).leases
    await run(twins, Exchange(settlements=(success(one), success(again))))
    assert twins.topics == {"room:q", "reply:p1", "reply:p2"}
    found = await run(twins, Get(jobs=(JobKey("q", "a"), JobKey("q", "missing"), JobKey("r", "c"), JobKey("q", "c"))))
    assert [job and job.reply for job in found.jobs] == [("p1",), None, None, ("p2",)]
    assert twins.taken() == {"enqueue": 1, "exchange": 3, "get": 1}


async def test_a_large_group_is_written_whole(twins: Twins) -> None:
    await begin(twins)
    await run(twins, enqueue(*(plain(f"{number}") for number in range(1_100))))
    held = (await run(twins, Exchange(claim=claim(1, limit=1_050)))).leases
    await run(twins, Exchange(settlements=tuple(map(success, held[:1_000]))))
    assert twins.taken() == {"enqueue": 1, "exchange": 2}


# What it leaves to the rules

NOT_PLAIN: dict[str, dict[str, Any]] = {
    "lane": {"lane": "x"},
    "pool": {"pool": PoolPlace(2, "k")},
    "key": {"unique_key": "k"},
    "scope": {"key_scope": KeyScope.FOREVER},
    "window": {"key_scope": KeyScope.WINDOW, "key_window": MINUTE},
    "parents": {"parents": (Parent(JobKey("q", "there")),)},
    "given": {"given": Given(max_attempts=2)},
    "expires": {"expires": FOREVER - 1},
    "delay": {"delay": 1},
    "due": {"due": FOREVER},
    "codec": {"codec": "pickle"},
    "large": {"payload": b"x" * 10_000},
    "same id": {"id": "there"},
    "queue name": {"queue": "a:b"},
    "task name": {"task": "a:b"},
    "new queue": {"queue": "new"},
}


@pytest.mark.parametrize("fields", NOT_PLAIN.values(), ids=NOT_PLAIN)
async def test_a_job_that_is_not_plain_is_enqueued_by_the_rules(twins: Twins, fields: dict[str, Any]) -> None:
    await begin(twins, plain("there"))
    await run(twins, enqueue(plain("a"), plain(**{"id": "b", **fields})))
    assert twins.taken()["enqueue"] == 0
    held = (await run(twins, Exchange(claim=claim(1)))).leases
    await run(twins, Exchange(settlements=tuple(map(success, held)), claim=claim(2)))


async def test_limits_and_ids_given_twice_are_checked_by_the_rules(twins: Twins) -> None:
    await begin(twins)
    await run(twins, Enqueue(groups=(Group((plain("a"),), (DepthLimit("q", 5),)),)))
    await run(twins, enqueue(plain("b"), plain("b")), Enqueue(groups=(Group((plain("c"),)), Group((plain("c"),)))))
    assert twins.taken() == {}


NO_PLAIN_SUCCESS: dict[str, dict[str, Any]] = {
    "note": {"note": "done"},
    "progress": {"progress": ProgressRecord(0.5)},
    "deleted at once": {"retention": 0, "result_ttl": 0},
    "other token": {"token": "claim1.9"},
    "other job": {"id": "missing"},
    "failed": {"target": JobState.FAILED, "reason": Reason.EXHAUSTED, "result": None},
    "released": {"target": JobState.QUEUED, "reason": Reason.RELEASED, "result": None},
}


@pytest.mark.parametrize("fields", NO_PLAIN_SUCCESS.values(), ids=NO_PLAIN_SUCCESS)
async def test_another_settlement_is_applied_by_the_rules(twins: Twins, fields: dict[str, Any]) -> None:
    await begin(twins, plain("a"), plain("b"))
    held = (await run(twins, Exchange(claim=claim(1)))).leases
    twins.forget_taken()
    settlement = Settlement(
        **{
            "queue": "q",
            "id": held[1].id,
            "token": held[1].token,
            "target": JobState.SUCCEEDED,
            "result": b"42",
            **fields,
        }
    )
    await run(twins, Exchange(settlements=(success(held[0]), settlement), claim=claim(2)))
    assert twins.taken() == {}


async def test_a_success_that_was_settled_before_is_answered_by_the_rules(twins: Twins) -> None:
    await begin(twins, plain("a"))
    held = (await run(twins, Exchange(claim=claim(1)))).leases
    twins.forget_taken()
    await run(twins, Exchange(settlements=(success(held[0]), success(held[0]))))
    await run(twins, Exchange(settlements=(success(held[0]),)))
    assert twins.taken() == {}


async def settled_after(twins: Twins, *commands: Command[Any]) -> Counter[str]:
    """Claim a job, send the commands, and settle it with a success. Returns what took the fast path at the end."""
    await begin(twins, plain("a"))
    held = (await run(twins, Exchange(claim=claim(1)))).leases
    await run(twins, *commands)
    twins.forget_taken()
    await run(twins, Exchange(settlements=(success(held[0]),)))
    return twins.taken()


async def test_a_job_with_a_cancel_request_is_settled_by_the_rules(twins: Twins) -> None:
    assert await settled_after(twins, Cancel(queue="q", ids=("a",))) == {}


async def test_a_job_with_children_is_settled_by_the_rules(twins: Twins) -> None:
    child = plain("child", parents=(Parent(JobKey("q", "a")),))
    assert await settled_after(twins, enqueue(child)) == {}


async def test_a_job_with_other_rare_fields_is_settled_by_the_rules(twins: Twins) -> None:
    assert await settled_after(twins, Amend(queue="q", ids=("a",), reply="p1", retention=HOUR)) == {}


async def test_the_success_of_an_assigned_job_is_settled_by_the_rules(twins: Twins) -> None:
    await begin(twins, plain("a"))
    held = (await run(twins, Exchange(claim=claim(1, limit=0, prefetch=1)))).leases
    twins.forget_taken()
    await run(twins, Exchange(settlements=(success(held[0]),)))
    assert twins.taken() == {}


CLAIMED_BY_RULES: dict[str, tuple[Command[Any], ...]] = {
    "a due job": (enqueue(plain("b", delay=1)),),
    "an expired job": (enqueue(plain("b", expires=1)),),
    "a job in a lane": (enqueue(plain("b", lane="x")),),
    "a claim sent again": (Exchange(claim=claim(1, limit=1)),),
    "a job that failed before": (enqueue(plain("b", given=Given(lease_len=MINUTE))),),
}


@pytest.mark.parametrize("before", CLAIMED_BY_RULES.values(), ids=CLAIMED_BY_RULES)
async def test_what_is_not_plain_is_claimed_by_the_rules(twins: Twins, before: tuple[Command[Any], ...]) -> None:
    await begin(twins, plain("a"), plain("c"))
    await run(twins, *before)
    twins.forget_taken()
    await run(twins, Exchange(claim=claim(1)))
    assert twins.taken() == {}


async def test_a_start_is_carried_out_by_the_rules(twins: Twins) -> None:
    await begin(twins, plain("a"))
    (held,) = (await run(twins, Exchange(claim=claim(1, limit=0, prefetch=1)))).leases
    twins.forget_taken()
    await run(twins, Exchange(starts=(Start(held.queue, held.id, held.token),)))
    assert twins.taken() == {}


async def test_a_paused_queue_gives_nothing_and_a_later_due_time_is_answered(twins: Twins) -> None:
    await begin(twins, plain("a"), plain("b", queue="r"), plain("later", queue="r", delay=HOUR))
    terms = (TaskClaim(task="t", lease_len=LEASE_US),)
    both = tuple(QueueClaim(queue, terms) for queue in ("q", "r", "unknown"))
    await run(twins, Pause(queue="q"))
    answer = await run(twins, Exchange(claim=claim(1, queues=both)))
    assert ([lease.id for lease in answer.leases], answer.next_due is not None) == (["b"], True)
    assert twins.taken() == {"exchange": 1}


async def test_unfinished_work_is_left_to_the_rules(twins: Twins) -> None:
    """Of a clear, which is done in pieces of a thousand jobs."""
    await begin(twins, *(plain(f"{number}") for number in range(1_010)))
    twins.finishes_work = twins.other.finishes_work = False
    await run(twins, Clear(queue="q"))
    twins.forget_taken()
    await run(twins, enqueue(plain("beside")), Exchange(claim=claim(1)))
    assert twins.taken() == {}


# Mixtures


class TwinMachine(Differential):
    """All verbs of the differential machine, and often plain jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.held: list[Lease] = []
        # Whatever rules follow, each run has calls on the fast path: these, from the second one on.
        self.enqueue_plain(1, "q", "t", 0)
        self.enqueue_plain(1, "q", "t", 0)
        self.work_off(EVERYTHING, (5, 0))
        self.work_off(EVERYTHING, (5, 0))

    @rule(count=st.integers(1, 5), queue=queues, tasks=st.sampled_from(["t", "u", "tu"]), priority=st.integers(0, 1))
    def enqueue_plain(self, count: int, queue: str, tasks: str, priority: int) -> None:
        jobs = []
        for _ in range(count):
            self.number += 1
            task = tasks[self.number % len(tasks)]
            jobs.append(plain(f"n{self.number}", queue=queue, task=task, priority=priority))
        self.ask(enqueue(*jobs))

    @rule(targets=(Differential.fresh, Differential.leases), queues=claim_queues, size=claim_sizes)
    def work_off(self, queues: tuple[QueueClaim, ...], size: tuple[int, int]) -> Any:
        """Settle what the last claim of this rule took, and claim again, as a worker does."""
        settlements = tuple(map(success, self.held))
        asked = self._claim(self._claim_id(), queues, size, "w1")
        self.held = list(self.ask(Exchange(settlements=settlements, claim=asked)).leases)
        return multiple(*self.held)

    @rule(targets=(Differential.fresh, Differential.leases), count=st.integers(1, 5), queue=queues)
    def enqueue_and_work_off(self, count: int, queue: str) -> Any:
        """More often than by chance: what is left of other rules is worked off, then plain jobs alone."""
        self.enqueue_plain(count, queue, "tu", 0)
        self.work_off(EVERYTHING, (5, 0))
        self.work_off(EVERYTHING, (5, 1))
        return self.work_off(EVERYTHING, (2, 0))


MIXTURES = settings(
    max_examples=8,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


def machine(make: Callable[[], Twins]) -> type[TwinMachine]:
    fields = {"make_engine": staticmethod(make), "themes": (THEMES[0], THEMES[-1]), "seen": Counter(), "audit_every": 5}
    return type("Machine", (TwinMachine,), fields)


def run_mixtures(server: RedisServer, how: settings) -> None:
    """Fails too if a run made no call on the fast path."""
    made: list[Twins] = []

    def make() -> Twins:
        made.append(Twins(server))
        return made[-1]

    run_state_machine_as_test(machine(make), settings=how)
    taken = [twins.taken() for twins in made]
    assert all(each["enqueue"] and each["exchange"] for each in taken)
    total: Counter[str] = sum(taken, Counter())
    print(f"{len(made)} runs; on the fast path: {dict(total)}")


def test_mixtures_of_plain_and_other_calls_store_the_same(redis_server: RedisServer) -> None:
    run_mixtures(redis_server, MIXTURES)


@pytest.mark.long
def test_mixtures_store_the_same_for_long(redis_server: RedisServer) -> None:
    run_mixtures(redis_server, settings(MIXTURES, max_examples=300, derandomize=False))
