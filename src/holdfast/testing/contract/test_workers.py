"""Worker records: heartbeats write them, operators read them, and a stop request is stored in them."""

from holdfast.model.instants import HOUR, MINUTE, SECOND
from holdfast.model.records import WorkerRecord
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.guarantees import Guarantee, guarantee


def record(worker: str, **fields: object) -> WorkerRecord:
    return WorkerRecord(worker=worker, **fields)  # type: ignore[arg-type]


async def names(bench: Bench) -> list[str]:
    return [found.worker for found in (await bench.engine.workers()).workers]


# WK1
@guarantee(Guarantee.WORKERS)
async def test_a_heartbeat_writes_the_record_with_the_engines_time(bench: Bench) -> None:
    sent = WorkerRecord(
        worker="w",
        tasks=("x", "y"),
        queues=("red", "blue"),
        host="host",
        pid=42,
        process="1-ab",
        slots=8,
        busy=3,
        started=123_456,
        interval=5 * SECOND,
        seen=1,
    )

    answer = await bench.engine.heartbeat(sent)

    assert answer.stop is False
    assert (await bench.engine.workers()).workers == (
        WorkerRecord(
            worker="w",
            tasks=("x", "y"),
            queues=("red", "blue"),
            host="host",
            pid=42,
            process="1-ab",
            slots=8,
            busy=3,
            started=123_456,
            interval=5 * SECOND,
            seen=answer.at.wall,
        ),
    )


@guarantee(Guarantee.WORKERS)
async def test_the_record_of_a_manager_names_its_children(bench: Bench) -> None:
    for children in ((), ("w-1", "w-2")):
        await bench.engine.heartbeat(record("m", children=children, min_children=1, max_children=4))

        (found,) = (await bench.engine.workers()).workers
        assert (found.children, found.min_children, found.max_children) == (children, 1, 4)


@guarantee(Guarantee.WORKERS)
async def test_a_heartbeat_replaces_the_record_of_the_one_before(bench: Bench) -> None:
    await bench.engine.heartbeat(record("w", busy=1))
    bench.clock.advance(10)

    answer = await bench.engine.heartbeat(record("w", busy=2))

    (found,) = (await bench.engine.workers()).workers
    assert (found.busy, found.seen) == (2, answer.at.wall)


@guarantee(Guarantee.WORKERS)
async def test_workers_are_listed_by_name(bench: Bench) -> None:
    for name in ("b", "c", "a"):
        await bench.engine.heartbeat(record(name))

    assert await names(bench) == ["a", "b", "c"]


# WK2
@guarantee(Guarantee.WORKERS)
async def test_every_heartbeat_after_a_stop_request_is_answered_stop(bench: Bench) -> None:
    await bench.engine.heartbeat(record("w"))
    await bench.engine.heartbeat(record("other"))

    assert (await bench.engine.stop_worker("w")).found is True

    assert [(await bench.engine.heartbeat(record("w"))).stop for _ in range(2)] == [True, True]
    assert (await bench.engine.heartbeat(record("other"))).stop is False
    assert [(found.worker, found.stop_asked) for found in (await bench.engine.workers()).workers] == [
        ("other", False),
        ("w", True),
    ]


@guarantee(Guarantee.WORKERS)
async def test_a_heartbeat_cannot_set_the_stop_request(bench: Bench) -> None:
    assert (await bench.engine.heartbeat(record("w", stop_asked=True))).stop is False
    assert (await bench.engine.workers()).workers[0].stop_asked is False


@guarantee(Guarantee.WORKERS)
async def test_an_absent_worker_cannot_be_stopped_or_forgotten(bench: Bench) -> None:
    assert (await bench.engine.stop_worker("absent")).found is False
    assert (await bench.engine.forget_worker("absent")).found is False
    assert await names(bench) == []


@guarantee(Guarantee.WORKERS)
async def test_forgetting_a_worker_removes_its_stop_request(bench: Bench) -> None:
    await bench.engine.heartbeat(record("w"))
    await bench.engine.stop_worker("w")

    assert (await bench.engine.forget_worker("w")).found is True

    assert await names(bench) == []
    assert (await bench.engine.heartbeat(record("w"))).stop is False


# PR2
@guarantee(Guarantee.WORKERS)
async def test_silent_workers_are_forgotten_after_an_hour(bench: Bench) -> None:
    await bench.engine.heartbeat(record("silent", interval=SECOND))
    bench.clock.advance(minutes=59)
    await bench.engine.heartbeat(record("active", interval=SECOND))
    assert (await bench.engine.prune()).workers == ()
    bench.clock.advance(minutes=2)

    assert (await bench.engine.prune()).workers == ("silent",)
    assert await names(bench) == ["active"]


@guarantee(Guarantee.WORKERS)
async def test_a_worker_with_a_long_interval_is_forgotten_after_ten_intervals(bench: Bench) -> None:
    await bench.engine.heartbeat(record("slow", interval=30 * MINUTE))
    bench.clock.advance(hours=4.9)
    assert (await bench.engine.prune()).workers == ()
    bench.clock.advance(hours=0.2)

    assert (await bench.engine.prune()).workers == ("slow",)


@guarantee(Guarantee.WORKERS)
async def test_a_lease_does_not_need_a_worker_record(bench: Bench) -> None:
    await bench.engine.heartbeat(record("w", interval=HOUR))
    await bench.engine.forget_worker("w")

    assert (await bench.engine.disown("w")).leases == ()
