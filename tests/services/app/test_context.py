"""What a handler is told through its context."""

import threading

import pytest
from minimal_app import MinimalApp, MinimalTask

from holdfast.context import AbortReason, Context
from holdfast.errors import InvalidOption, UsageError
from holdfast.model.states import JobState


async def test_a_context_names_job_attempt_and_worker() -> None:
    seen: dict[str, object] = {}

    async def looks(ctx: Context, name: str) -> None:
        seen.update(
            id=ctx.job.id,
            arguments=ctx.job.arguments,
            state=ctx.job.state,
            attempt=ctx.attempt,
            retry=ctx.is_retry,
            fence=ctx.fence > 0,
            lane=ctx.lane,
            aborted=ctx.aborted,
            reason=ctx.abort_reason,
            worker=ctx.worker,
            text=repr(ctx),
        )
        ctx.check()

    app = MinimalApp(MinimalTask(looks, takes_context=True))
    await app.enqueue("looks", "cat", id="a", lane="left")
    worker = app.worker(name="ada", until_empty=True)
    await worker.arun()
    assert seen == {
        "id": "a",
        "arguments": (["cat"], {}),
        "state": JobState.RUNNING,
        "attempt": 1,
        "retry": False,
        "fence": True,
        "lane": "left",
        "aborted": False,
        "reason": None,
        "worker": worker.name,
        "text": "<Context of job 'a' (looks), attempt 1>",
    }


async def test_helpers_deep_down_find_the_context_on_the_loop_and_in_threads() -> None:
    seen: list[str] = []

    def helper() -> None:
        seen.append(Context.current().job.id)

    async def on_the_loop() -> None:
        helper()

    def in_a_thread() -> None:
        helper()

    app = MinimalApp(MinimalTask(on_the_loop), MinimalTask(in_a_thread))
    await app.enqueue("on_the_loop", id="a")
    await app.enqueue("in_a_thread", id="b")
    await app.drain()
    assert sorted(seen) == ["a", "b"]


def test_there_is_no_context_outside_of_a_task() -> None:
    with pytest.raises(UsageError, match="not run inside a task"):
        Context.current()


def test_a_detached_context_is_never_aborted() -> None:
    ctx = Context.detached(id="x", task="resize", queue="default", payload=b'[["cat"],{}]', state="mine")
    assert (ctx.job.id, ctx.job.arguments, ctx.attempt, ctx.state) == ("x", (["cat"], {}), 1, "mine")
    ctx.progress(1.0)
    ctx.check()
    assert not ctx.aborted
    assert not ctx.is_retry


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "half", True, None])
def test_progress_is_a_share(fraction: object) -> None:
    ctx = Context.detached(id="x", task="t", queue="q")
    with pytest.raises(InvalidOption):
        ctx.progress(fraction)  # type: ignore[arg-type]


async def test_sync_handlers_run_in_threads_of_their_own() -> None:
    seen: set[int] = set()
    together = threading.Barrier(20, timeout=60)

    def blocks() -> None:
        seen.add(threading.get_ident())
        together.wait()

    app = MinimalApp(MinimalTask(blocks))
    ids = await app.put(*(app.job("blocks") for _ in range(40)))
    await app.drain(concurrency=20)
    assert {(await app.look(id)).state for id in ids} == {JobState.SUCCEEDED}
    assert threading.get_ident() not in seen
    assert len(seen) <= 40


def test_reasons_to_abort_are_a_closed_list() -> None:
    assert list(AbortReason) == ["ownership_lost", "cancel", "timeout", "shutdown"]
