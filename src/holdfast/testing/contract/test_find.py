"""Get and find: records by key, and pages of a queue's jobs in one state, the newest first."""

from typing import Any

from holdfast.model.instants import HOUR, MINUTE
from holdfast.model.job import JobKey
from holdfast.model.observe import Find
from holdfast.model.states import JobState
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, confirm_cancel, fail, jobs, new_job, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


async def page(bench: Bench, state: JobState = JobState.QUEUED, **fields: Any) -> tuple[list[str], int | None]:
    found = await bench.engine.find(Find(**{"queue": QUEUE, "state": state, **fields}))
    return [job.id for job in found.jobs], found.cursor


async def pages(bench: Bench, state: JobState = JobState.QUEUED, **fields: Any) -> list[list[str]]:
    """All pages, to the end."""
    ids, cursor = await page(bench, state, **fields)
    result = [ids]
    while cursor is not None:
        assert len(result) < 100, "the cursor never ends"
        ids, cursor = await page(bench, state, cursor=cursor, **fields)
        result.append(ids)
    return result


async def every(bench: Bench, state: JobState = JobState.QUEUED, **fields: Any) -> list[str]:
    return [id for ids in await pages(bench, state, **fields) for id in ids]


@guarantee(Guarantee.READING)
async def test_get_answers_in_the_order_of_the_keys_with_none_for_absent_jobs(bench: Bench) -> None:
    await bench.put(new_job("a"), new_job("b"), new_job("a", queue="other"))

    keys = (
        JobKey(QUEUE, "b"),
        JobKey("other", "a"),
        JobKey(QUEUE, "absent"),
        JobKey("absent", "a"),
        JobKey(QUEUE, "a"),
    )
    found = (await bench.engine.get(*keys)).jobs

    assert [job.job_key if job else None for job in found] == [keys[0], keys[1], None, None, keys[4]]


@guarantee(Guarantee.READING)
async def test_the_newest_arrival_comes_first(bench: Bench) -> None:
    await bench.put(new_job("a", priority=9), new_job("b"), new_job("c", priority=-9))

    assert await page(bench) == (["c", "b", "a"], None)


@guarantee(Guarantee.READING)
async def test_each_state_has_its_own_list(bench: Bench) -> None:
    await bench.put(*jobs("running", "retrying", "succeeded", "failed", "cancelled", "assigned"))
    _, again, good, bad, to_cancel, _ = await bench.take(5, prefetch=1)
    await bench.engine.settle(retry(again, HOUR), succeed(good), fail(bad), confirm_cancel(to_cancel))
    await bench.put(new_job("scheduled", delay=HOUR), *jobs("queued", "blocked", lane="lane"))

    for state in JobState:
        assert await every(bench, state) == [state.value]


@guarantee(Guarantee.READING)
async def test_find_shows_the_same_record_as_get(bench: Bench) -> None:
    await bench.put(new_job(metadata={"k": "v"}))
    await bench.settle(retry(await bench.take_one(), HOUR))

    found = await bench.engine.find(Find(queue=QUEUE, state=JobState.RETRYING))

    assert found.jobs == (await bench.get(),)


@guarantee(Guarantee.READING)
async def test_a_cursor_continues_where_the_page_ended(bench: Bench) -> None:
    ids = [f"job-{number}" for number in range(10)]
    await bench.put(*jobs(*ids))

    first, cursor = await page(bench, limit=4)
    second, _ = await page(bench, limit=4, cursor=cursor)

    assert (first, second) == (["job-9", "job-8", "job-7", "job-6"], ["job-5", "job-4", "job-3", "job-2"])
    assert await every(bench, limit=3) == ids[::-1]
    assert all(len(ids) <= 3 for ids in await pages(bench, limit=3))


@guarantee(Guarantee.READING)
async def test_jobs_enqueued_or_cancelled_between_pages_do_not_shift_the_next_page(bench: Bench) -> None:
    await bench.put(*jobs(*"abcdef"))
    first, cursor = await page(bench, limit=2)
    await bench.put(new_job("new"))
    await bench.engine.cancel(QUEUE, "f", "e", "c")

    rest, _ = await page(bench, cursor=cursor)

    assert (first, rest) == (["f", "e"], ["d", "b", "a"])


@guarantee(Guarantee.READING)
async def test_filters_narrow_the_list(bench: Bench) -> None:
    await bench.put(new_job("a", task="x", metadata={"customer": "1", "kind": "mail"}))
    await bench.put(new_job("b", task="y", metadata={"customer": "1"}))
    await bench.put(new_job("c", task="x", lane="one"))
    bench.clock.advance(minutes=1)
    await bench.put(new_job("d", task="x", lane="two", metadata={"customer": "2"}))
    since = (await bench.get("d")).created

    assert await every(bench, task="x") == ["d", "c", "a"]
    assert await every(bench, task="") == []
    assert await every(bench, lane="one") == ["c"]
    assert await every(bench, since=since) == ["d"]
    assert await every(bench, since=since + 1) == []
    assert await every(bench, metadata={"customer": "1"}) == ["b", "a"]
    assert await every(bench, metadata={"customer": "1", "kind": "mail"}) == ["a"]
    assert await every(bench, task="x", metadata={"customer": "2"}, lane="two", since=since) == ["d"]
    assert await every(bench, task="x", metadata={"customer": "2"}, lane="one") == []


# RD3
@guarantee(Guarantee.READING)
async def test_a_filtered_page_ends_at_its_limit_and_the_next_one_goes_on(bench: Bench) -> None:
    await bench.put(*(new_job(f"{n}", metadata={"odd": str(n % 2)}) for n in range(6)))

    assert await pages(bench, metadata={"odd": "1"}, limit=2) == [["5", "3"], ["1"]]
    assert await pages(bench, metadata={"odd": "0"}, limit=1) == [["4"], ["2"], ["0"]]


# RD3
@guarantee(Guarantee.READING)
async def test_a_page_reads_a_bounded_number_of_rows_and_the_cursor_continues(bench: Bench) -> None:
    await bench.put(new_job("needle", task="x"), *jobs(*(f"hay-{number}" for number in range(20))))

    first, cursor = await page(bench, task="x", scan=5)

    assert first == []
    assert cursor is not None
    assert await every(bench, task="x", scan=5) == ["needle"]


@guarantee(Guarantee.READING)
async def test_an_absent_queue_has_no_jobs(bench: Bench) -> None:
    await bench.put(new_job())

    assert await page(bench, queue="absent") == ([], None)
    assert await page(bench, JobState.FAILED) == ([], None)


# RD1
@guarantee(Guarantee.READING)
async def test_a_due_job_is_shown_as_stored_until_a_claim_promotes_it(bench: Bench) -> None:
    await bench.put(new_job(delay=MINUTE))
    bench.clock.advance(minutes=2)

    assert await every(bench, JobState.SCHEDULED) == ["a"]
    await bench.take(0)
    assert await every(bench, JobState.SCHEDULED) == []
    assert await every(bench, JobState.QUEUED) == ["a"]


@guarantee(Guarantee.READING)
async def test_reading_changes_nothing(bench: Bench) -> None:
    await bench.put(new_job(delay=MINUTE))
    before = await bench.get()
    bench.clock.advance(minutes=2)

    await every(bench, JobState.SCHEDULED)
    await bench.stats()
    await bench.engine.lanes(QUEUE)

    assert await bench.get() == before
