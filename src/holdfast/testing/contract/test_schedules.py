"""Schedules are written, replaced, dropped and listed by name. A tick is an ordinary enqueue."""

from holdfast.model.produce import EnqueueStatus
from holdfast.model.records import ScheduleRecord
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, TASK, new_job
from holdfast.testing.contract.guarantees import Guarantee, guarantee

NIGHTLY = ScheduleRecord(
    name="nightly",
    queue=QUEUE,
    task=TASK,
    when="0 3 * * *",
    payload=b"\x00load",
    codec="raw",
    paused=True,
    options={"timezone": "Europe/Berlin"},
)


def schedule(name: str, when: str = "every 60s") -> ScheduleRecord:
    return ScheduleRecord(name=name, queue=QUEUE, task=TASK, when=when)


@guarantee(Guarantee.SCHEDULES)
async def test_a_schedule_is_stored_as_it_was_given(bench: Bench) -> None:
    answer = await bench.engine.put_schedule(NIGHTLY)

    assert answer.schedules == (NIGHTLY,)
    assert (await bench.engine.schedules()).schedules == (NIGHTLY,)


@guarantee(Guarantee.SCHEDULES)
async def test_a_second_schedule_of_a_name_replaces_the_first(bench: Bench) -> None:
    await bench.engine.put_schedule(schedule("a", "every 60s"))
    await bench.engine.put_schedule(schedule("a", "every 5s"))

    assert (await bench.engine.schedules()).schedules == (schedule("a", "every 5s"),)


@guarantee(Guarantee.SCHEDULES)
async def test_schedules_are_listed_by_name(bench: Bench) -> None:
    for name in ("b", "c", "a"):
        await bench.engine.put_schedule(schedule(name))

    assert [found.name for found in (await bench.engine.schedules()).schedules] == ["a", "b", "c"]


@guarantee(Guarantee.SCHEDULES)
async def test_a_dropped_schedule_is_removed_and_dropping_an_absent_one_changes_nothing(bench: Bench) -> None:
    await bench.engine.put_schedule(schedule("a"))
    await bench.engine.put_schedule(schedule("b"))

    await bench.engine.drop_schedule("a")
    await bench.engine.drop_schedule("absent")

    assert [found.name for found in (await bench.engine.schedules()).schedules] == ["b"]


@guarantee(Guarantee.SCHEDULES)
async def test_the_same_tick_enqueued_twice_makes_one_job(bench: Bench) -> None:
    ticks = [await bench.put_one(new_job("schedule:nightly:1800000000")) for _ in range(2)]

    assert [tick.status for tick in ticks] == [EnqueueStatus.CREATED, EnqueueStatus.DUPLICATE]
