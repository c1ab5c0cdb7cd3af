"""Bad input is refused with an error that names the option, and nothing is written."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.engine import Engine
from holdfast.errors import InvalidOption, PayloadTooLarge, Unsupported, UsageError
from holdfast.model.instants import SECOND
from holdfast.model.job import Given, KeyScope
from holdfast.model.observe import Find
from holdfast.model.produce import DepthLimit, Enqueue, Group
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState
from holdfast.model.text import ErrorInfo
from holdfast.model.work import QueueClaim
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, at_most, claim, jobs, new_job, settlement, succeed, task_claim
from holdfast.testing.contract.guarantees import Guarantee, guarantee

BAD_NAMES = [pytest.param("x" * 201, id="long"), pytest.param("a\0b", id="nul"), pytest.param("a\ud800b", id="half")]


# TX1
@guarantee(Guarantee.BAD_INPUT)
@pytest.mark.parametrize("bad", BAD_NAMES)
@pytest.mark.parametrize("field", ["queue", "id", "task", "lane", "unique_key"])
async def test_a_name_that_cannot_be_stored_is_refused(bench: Bench, field: str, bad: str) -> None:
    with pytest.raises(InvalidOption) as refusal:
        await bench.offer(new_job("fine"), new_job(**{field: bad}))

    assert refusal.value.option == field
    assert await bench.get_or_none("fine") is None


@guarantee(Guarantee.BAD_INPUT)
@pytest.mark.parametrize(
    ("option", "fields"),
    [
        ("queue", {"queue": ""}),
        ("id", {"id": ""}),
        ("lane", {"lane": ""}),
        ("unique_key", {"unique_key": ""}),
        ("priority", {"priority": 32_768}),
        ("priority", {"priority": -32_769}),
        ("priority", {"priority": 1.5}),
        ("delay", {"delay": -1}),
        ("unique_for", {"key_scope": KeyScope.WINDOW}),
        ("metadata", {"metadata": {"k": "v" * 5_000}}),
        ("metadata", {"metadata": {"k": "a\0b"}}),
        ("max_attempts", {"given": Given(max_attempts=-1)}),
        ("max_losses", {"given": Given(max_losses=0)}),
        ("timeout", {"given": Given(timeout=0)}),
        ("lease", {"given": Given(lease_len=0)}),
        ("result_ttl", {"given": Given(result_ttl=-1)}),
        ("retention", {"given": Given(retention=-1)}),
        ("payload_hash", {"payload_hash": bytes(256)}),
    ],
)
async def test_an_option_out_of_range_is_refused(bench: Bench, option: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption) as refusal:
        await bench.offer(new_job("fine"), new_job(**fields))

    assert refusal.value.option == option
    assert await bench.get_or_none("fine") is None


# B2
@guarantee(Guarantee.BAD_INPUT)
async def test_a_payload_above_the_size_limit_is_refused(bench: Bench) -> None:
    with pytest.raises(PayloadTooLarge):
        await bench.offer(new_job(payload=bytes(16 * 1024 * 1024 + 1)))


# B1
@guarantee(Guarantee.BAD_INPUT)
async def test_a_group_that_is_too_large_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidOption):
        await bench.offer(*jobs(*(str(number) for number in range(10_001))))

    assert (await bench.engine.stats()).queues == ()


@guarantee(Guarantee.BAD_INPUT)
async def test_a_call_with_one_bad_group_is_refused_whole(bench: Bench) -> None:
    with pytest.raises(InvalidOption):
        await bench.engine.enqueue(Group(jobs("a")), Group((new_job("b", delay=-1),)))

    assert await bench.get_or_none("a") is None


@guarantee(Guarantee.BAD_INPUT)
@pytest.mark.parametrize("target", [JobState.BLOCKED, JobState.ASSIGNED, JobState.RUNNING])
async def test_a_settlement_to_a_state_in_which_no_attempt_ends_is_refused(bench: Bench, target: JobState) -> None:
    await bench.put(*jobs("a", "b"))
    a, b = await bench.take(2)

    with pytest.raises(InvalidOption):
        await bench.engine.settle(succeed(b), settlement(a, target))

    assert await bench.states("a", "b") == [JobState.RUNNING, JobState.RUNNING]


# B3
@guarantee(Guarantee.BAD_INPUT)
async def test_an_exchange_that_is_too_large_is_refused(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()

    with pytest.raises(InvalidOption):
        await bench.engine.settle(*(succeed(lease) for _ in range(501)))

    assert await bench.state() is JobState.RUNNING


CALLS: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "claim id": lambda engine: engine.claim(claim("")),
    "claim worker": lambda engine: engine.claim(claim("c", worker="")),
    "claim limit": lambda engine: engine.claim(claim("c", limit=-1)),
    "claim prefetch": lambda engine: engine.claim(claim("c", prefetch=-1)),
    "claim lease": lambda engine: engine.claim(claim("c", lease_len=0)),
    "claim max_losses": lambda engine: engine.claim(claim("c", max_losses=0)),
    "queue limit": lambda engine: engine.claim(claim("c", queues=(QueueClaim(QUEUE, (task_claim(),), -1),))),
    "task limit": lambda engine: engine.claim(claim("c", queues=(QueueClaim(QUEUE, (task_claim(limit=-1),)),))),
    "max_depth": lambda engine: engine.enqueue(Group((), at_most(-1))),
    "limit lane": lambda engine: engine.enqueue(Group((), at_most(1, lane=""))),
    "limit each_lane": lambda engine: engine.enqueue(Group((), (DepthLimit(QUEUE, 1, "lane", each_lane=True),))),
    "disown worker": lambda engine: engine.disown("a", ""),
    "disown error with NUL": lambda engine: engine.disown("a", error=ErrorInfo("Died", "a\0b", "")),
    "disown error too long": lambda engine: engine.disown("a", error=ErrorInfo("Died", "é" * 1_023, "")),  # B7
    "expired limit": lambda engine: engine.expired("w", limit=0),
    "prune limit": lambda engine: engine.prune(0),
    "find limit": lambda engine: engine.find(Find(queue=QUEUE, state=JobState.QUEUED, limit=0)),
    "find scan": lambda engine: engine.find(Find(queue=QUEUE, state=JobState.QUEUED, scan=0)),
    "find queue": lambda engine: engine.find(Find(queue="", state=JobState.QUEUED)),
    "amend priority": lambda engine: engine.amend(QUEUE, "a", priority=40_000),
    "amend result_ttl": lambda engine: engine.amend(QUEUE, "a", result_ttl=-1),
    "amend retention": lambda engine: engine.amend(QUEUE, "a", retention=-1),
    "amend reply": lambda engine: engine.amend(QUEUE, "a", reply=""),
    "pause queue": lambda engine: engine.pause(""),
    "pause lane": lambda engine: engine.pause(QUEUE, ""),
    "resume queue": lambda engine: engine.resume(""),
    "clear lane": lambda engine: engine.clear(QUEUE, "a\0b"),
    "pool name": lambda engine: engine.put_pool("", 1),
    "claim limit above the bound": lambda engine: engine.claim(claim("c", limit=100_001)),
    "claim prefetch above the bound": lambda engine: engine.claim(claim("c", prefetch=100_001)),
    "pool lanes above the bound": lambda engine: engine.put_pool("mail", 100_001),
    "pool lanes": lambda engine: engine.put_pool("mail", 0),
    "resize lanes": lambda engine: engine.resize("mail", 0),
    "worker": lambda engine: engine.heartbeat(WorkerRecord(worker="")),
}


# B4, B6
@guarantee(Guarantee.BAD_INPUT)
@pytest.mark.parametrize("what", CALLS)
async def test_a_verb_refuses_an_invalid_value(bench: Bench, what: str) -> None:
    with pytest.raises(InvalidOption):
        await CALLS[what](bench.engine)

    assert (await bench.engine.stats()).queues == ()


# B5
@guarantee(Guarantee.BAD_INPUT)
async def test_the_shortest_allowed_lease_works(bench: Bench) -> None:
    await bench.put(new_job())

    lease = await bench.take_one(lease_len=SECOND // 1_000)

    assert lease.lease_len == SECOND // 1_000


@guarantee(Guarantee.BAD_INPUT)
async def test_an_object_that_is_no_transaction_is_refused(bench: Bench) -> None:
    with pytest.raises(UsageError) as refusal:
        await bench.engine.in_transaction(Enqueue(groups=(Group(jobs("a")),)), object())

    if not bench.engine.capabilities.user_transactions:
        assert isinstance(refusal.value, Unsupported)
        assert refusal.value.capability == "user_transactions"
    assert await bench.get_or_none("a") is None
