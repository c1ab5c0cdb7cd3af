"""Defects that the machine and the concurrent callers once found: one test each, on every engine."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from opened_engine import opened_engine

from holdfast.engine import Engine
from holdfast.model.command import Command
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Audit, Get
from holdfast.model.operate import Cancel
from holdfast.model.produce import DepthLimit, Enqueue, Group, NewJob, Parent
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Exchange, ExchangeAnswer, QueueClaim, Settlement, TaskClaim
from holdfast.testing.oracle import Oracle


def new(id: str, queue: str = "q", **fields: Any) -> NewJob:
    return NewJob(queue=queue, id=id, task="t", **fields)


def together(*jobs: NewJob, limits: tuple[DepthLimit, ...] = ()) -> Enqueue:
    return Enqueue(groups=(Group(jobs, limits),))


def after(id: str) -> dict[str, Any]:
    return {"parents": (Parent(JobKey("q", id)),)}


def claim(claim_id: str) -> Exchange:
    queues = (QueueClaim("q", (TaskClaim(task="t", lease_len=10 * SECOND),)),)
    return Exchange(claim=Claim(claim_id=claim_id, worker="w", queues=queues, limit=9))


async def judge(make_engine: Callable[[], Engine], commands: Iterable[Command[Any]]) -> None:
    """Carry out the commands in order. The oracle judges each answer, and every record at the end."""
    engine, oracle = make_engine(), Oracle()
    await engine.migrate()
    async with opened_engine(engine):
        for command in (*commands, Get(jobs=tuple(JobKey("q", id) for id in "abcz")), Audit()):
            assert oracle.accept(command, await engine.perform(command)) is None


async def test_a_job_may_come_after_the_very_job_it_replaces(make_engine: Callable[[], Engine]) -> None:
    await judge(make_engine, [together(new("a")), Cancel(queue="q", ids=("a",)), together(new("a", **after("a")))])


async def test_a_parent_that_is_replaced_later_in_the_group_is_the_old_one(make_engine: Callable[[], Engine]) -> None:
    again = together(new("b", **after("a")), new("a"), new("c", **after("a")))
    await judge(make_engine, [together(new("a")), Cancel(queue="q", ids=("a",)), again])


async def test_a_queue_without_a_limit_does_not_hide_the_depth_of_one_with(make_engine: Callable[[], Engine]) -> None:
    if not make_engine().capabilities.cross_queue_atomic:
        pytest.skip("a group has jobs of one queue")
    await judge(make_engine, [together(new("a", "r"), new("a"), new("a"), limits=(DepthLimit("q", 3),))])


async def test_an_id_that_a_key_turned_away_is_not_taken_by_that(make_engine: Callable[[], Engine]) -> None:
    keyed = new("a", unique_key="k")
    await judge(
        make_engine,
        [together(new("a"), new("z", unique_key="k")), Cancel(queue="q", ids=("a",)), together(keyed, new("a"))],
    )


async def test_a_lane_goes_on_when_its_job_ends_and_is_replaced_in_one_transaction(
    make_engines: Callable[[int], list[Engine]],
) -> None:
    (engine,) = make_engines(1)
    await engine.migrate()
    await engine.open()
    try:
        if not engine.capabilities.user_transactions:
            pytest.skip(f"{engine.scheme} takes no part in transactions")
        await engine.perform(together(new("a", lane="x"), new("b", lane="x")))
        first: ExchangeAnswer = await engine.perform(claim("c1"))
        failed = [Settlement(queue="q", id="a", token=one.token, target=JobState.FAILED) for one in first.leases]
        async with engine.transaction() as connection:
            await engine.in_transaction(Exchange(settlements=tuple(failed)), connection)
            await engine.in_transaction(together(new("a", lane="x")), connection)
        second: ExchangeAnswer = await engine.perform(claim("c2"))
        assert [(one.id, one.generation) for one in second.leases] == [("b", 0)]
        assert await engine.audit() == ()
    finally:
        await engine.close()
