"""Commands that no engine may get."""

import pytest

from holdfast.engines import open_engine
from holdfast.errors import InvalidOption
from holdfast.model.instants import SECOND
from holdfast.model.work import Claim, QueueClaim, TaskClaim


async def test_a_claim_that_names_a_task_twice_is_refused() -> None:
    tasks = (TaskClaim(task="t", lease_len=SECOND), TaskClaim(task="t", lease_len=2 * SECOND))
    claim = Claim(claim_id="c", worker="w", queues=(QueueClaim("q", tasks),), limit=1)
    with pytest.raises(InvalidOption, match="names a task twice"):
        await open_engine("memory://").claim(claim)
