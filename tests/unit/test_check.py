"""Commands that no engine may get."""

import pytest

from holdfast.engines import open_engine
from holdfast.errors import LONGEST, InvalidOption
from holdfast.model import check
from holdfast.model.instants import FOREVER, SECOND
from holdfast.model.job import Given
from holdfast.model.produce import NewJob
from holdfast.model.work import Claim, QueueClaim, TaskClaim


async def test_a_claim_that_names_a_task_twice_is_refused() -> None:
    tasks = (TaskClaim(task="t", lease_len=SECOND), TaskClaim(task="t", lease_len=2 * SECOND))
    claim = Claim(claim_id="c", worker="w", queues=(QueueClaim("q", tasks),), limit=1)
    with pytest.raises(InvalidOption, match="names a task twice"):
        await open_engine("memory://").claim(claim)


@pytest.mark.parametrize("number", [2**53 + 1, 2**62 - 1, -(2**53) - 1, 2**63, 1.0])
def test_a_number_that_redis_would_round_is_refused(number: int) -> None:
    with pytest.raises(InvalidOption, match=r"`limit` must be a whole number from 0 to 9007199254740992"):
        check.whole(number, "limit")
    for job in (NewJob(queue="q", id="j", due=number), NewJob(queue="q", id="j", given=Given(max_attempts=number))):
        with pytest.raises(InvalidOption):
            check.new_job(job)


def test_the_largest_number_and_for_ever_are_accepted() -> None:
    for number in (0, 2**53, FOREVER):
        check.new_job(NewJob(queue="q", id="j", due=number, given=Given(max_attempts=number)))
    for number in (0, LONGEST, FOREVER):
        check.new_job(NewJob(queue="q", id="j", delay=number, given=Given(retention=number)))
    with pytest.raises(InvalidOption, match="`delay`"):  # now + delay may be rounded
        check.new_job(NewJob(queue="q", id="j", delay=LONGEST + 1))
    with pytest.raises(InvalidOption, match="from 1 to 100000"):
        check.pool("p", FOREVER)
