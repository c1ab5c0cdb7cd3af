"""The audit of the PostgreSQL engine finds whatever is spoiled behind its back, and nothing in a sound store."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import asyncpg

from holdfast.engines import open_engine
from holdfast.engines.postgres.rules import schema_of
from holdfast.model.produce import PoolPlace
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, after, jobs, new_job

if TYPE_CHECKING:
    from postgres_stock import Store

WRONGS = {
    "UPDATE counter SET jobs = jobs + 1 WHERE state = 'queued'": "queued jobs are counted",
    "INSERT INTO tally VALUES ('ghost', 'running', 1, 0)": "1 running jobs are counted, 0 are there",
    "INSERT INTO tally VALUES ('work', 'queued', 0, 1)": "1 ends in state queued are counted",
    "DELETE FROM job WHERE id = 'free'": "queued jobs are counted",
    "UPDATE job SET state = 'odd' WHERE id = 'free'": "no such state",
    "UPDATE job SET token = NULL WHERE state = 'running'": "a lease without a leased state",
    "UPDATE job SET lease_expires = NULL WHERE state = 'running'": "a lease without a leased state",
    "UPDATE job SET token = 'x' WHERE id = 'free'": "a lease that was not granted",
    "UPDATE job SET hold = 1 WHERE id = 'free'": "held by a lane it does not have",
    "UPDATE job SET hold = 0 WHERE id = 'second'": "head 'first', not held by the lane: {first,second}",
    "UPDATE job SET parents_left = 2 WHERE id = 'child'": "2 parents left, edges say 1",
    "UPDATE job SET finished = NULL WHERE id = 'done'": "or it has ended without one",
    "UPDATE job SET result = 'x' WHERE id = 'free'": "a result without success",
    "UPDATE job SET arrival = (SELECT arrival FROM job WHERE id = 'free') WHERE id = 'done'": "share the arrival",
    "UPDATE lane SET depth = depth + 1 WHERE lane = 'x'": "depth 3, 2 live jobs",
    "UPDATE lane SET head = NULL WHERE lane = 'x'": "head none, not held by the lane: {first}",
    "DELETE FROM lane WHERE lane = 'x'": "it has jobs and no record",
    "UPDATE lane SET paused = true WHERE lane = 'x'": "it is paused and has a queued job",
    "UPDATE lane SET paused = false WHERE lane = 'paused'": "it holds a job by a pause it does not have",
    "UPDATE lane SET fence = 9223372036854775807 WHERE lane = 'runs'": "its head was granted",
    "DELETE FROM unique_key": "does not name job 'keyed', which holds it",
    "DELETE FROM edge": "children await it, and no edge says so",
    "UPDATE job SET awaited = false WHERE id = 'parent'": "which is not marked as awaited",
    "UPDATE edge SET parent_id = 'nobody'": "which does not exist",
    "UPDATE edge SET parent_arrival = 0": "which does not exist",
    "UPDATE edge AS e SET parent_id = j.id, parent_arrival = j.arrival FROM job AS j WHERE j.id = 'done'": (
        "has ended, and no call will resolve it"
    ),
    "UPDATE pool SET old_live = 9": "9 jobs of an older size, 1 are there",
    "UPDATE pool SET old_live = 0": "it holds 1 jobs back for those of an older size, and has none",
    "DELETE FROM pool": "it has jobs and no record",
    "UPDATE job SET lane = '77' WHERE id = 'new'": "1 jobs of its size are in a lane it does not have",
    "INSERT INTO deferred (kind, queue, id, arrival) VALUES ('end', 'work', 'ghost', 1)": "and is not there",
    "UPDATE job SET hold = 8, state = 'blocked' WHERE id = 'free'": "came in a transaction, and no call will admit it",
}


async def fill(bench: Bench) -> None:
    """Something of everything that is derived."""
    await bench.finish(new_job("done"))
    await bench.put(*jobs("runs", "runs too", task="leased", lane="runs"))
    assert await bench.take_ids(tasks=("leased",)) == ["runs"]
    await bench.put(*jobs("first", "second", lane="x"))
    await bench.engine.pause(QUEUE, "paused")
    await bench.put(new_job("waits", lane="paused"), new_job("keyed", unique_key="key"), new_job("free"))
    await bench.put(new_job("parent"), new_job("child", parents=after("parent")))
    await bench.put(new_job("old", queue="mail", pool=PoolPlace(4, "alice")))
    await bench.engine.resize("mail", 7)
    await bench.put(new_job("new", queue="mail", pool=PoolPlace(4, "alice")))
    await bench.engine.prune()


async def answers_to_each_wrong(connection: asyncpg.Connection) -> dict[str, str]:
    """What the audit says when one thing is spoiled."""
    answers = {}
    for wrong in WRONGS:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(wrong)
        answers[wrong] = await connection.fetchval("SELECT audit('{}', 0, 0)")
        await transaction.rollback()
    return answers


async def test_whatever_is_spoiled_is_found_and_nothing_else(postgres_store: "Callable[[], Store]") -> None:
    store = postgres_store()

    engine = open_engine(store.url, namespace=store.namespace)
    await engine.open()
    connection = await asyncpg.connect(
        store.url, server_settings={"search_path": f"{store.namespace}, {schema_of(store.namespace)}"}
    )
    try:
        await fill(Bench(engine))
        sound, answers = await engine.audit(), await answers_to_each_wrong(connection)
    finally:
        await connection.close()
        await engine.close()

    assert sound == ()
    assert {wrong: text for wrong, text in answers.items() if WRONGS[wrong] not in text} == {}
