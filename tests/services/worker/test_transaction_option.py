"""A worker that cannot run the transactions of its tasks says so when it starts, not at every attempt."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, Unsupported


@pytest.mark.parametrize("engine", ["memory", "file", "redis"])
async def test_a_task_with_a_transaction_is_refused_when_the_worker_starts(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls = {"memory": "memory://", "file": f"file://{tmp_path}/jobs"}
    url, namespace = (urls[engine], None) if engine in urls else request.getfixturevalue("redis_store")()
    jobs: App[Any] = App(url, namespace=namespace)

    @jobs.task(transaction=True)
    async def books(ctx: Context) -> None: ...

    @jobs.task(transaction=True, remote=True)
    async def elsewhere(ctx: Context) -> None: ...

    async with jobs:
        handle = await books.aenqueue()
        with pytest.raises(Unsupported, match=rf"the {engine} engine has no transactions: books\.") as refused:
            await jobs.worker(until_empty=True).arun()
        assert refused.value.capability == "user_transactions"
        assert (await handle.arefresh()).attempt == 0
        assert await jobs.control.aworkers() == []


async def test_a_task_whose_code_is_elsewhere_may_have_one() -> None:
    jobs: App[Any] = App("memory://")

    @jobs.task(transaction=True, remote=True)
    async def elsewhere(ctx: Context) -> None: ...

    async with jobs:
        await jobs.worker(until_empty=True).arun()
