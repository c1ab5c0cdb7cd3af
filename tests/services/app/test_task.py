"""Declaring tasks: names, lanes and keys, `draft`, `call`, hooks; what is wrong is refused where it stands."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from holdfast import (
    App,
    Context,
    DuplicateTask,
    GiveUp,
    InvalidArguments,
    InvalidOption,
    fixed,
)

# Names


def test_a_task_is_named_after_its_function_not_its_module(jobs: App[object]) -> None:
    @jobs.task
    def resize(image: str) -> str:
        """Make it smaller."""
        return image

    assert resize.name == "resize"
    assert jobs.registry["resize"] is resize
    assert resize.__doc__ == "Make it smaller."
    assert resize("cat.png") == "cat.png"


def test_two_tasks_of_one_name_are_refused(jobs: App[object]) -> None:
    @jobs.task(name="resize")
    def first() -> None: ...

    with pytest.raises(DuplicateTask) as refused:

        @jobs.task(name="resize")
        def second() -> None: ...

    assert refused.value.task == "resize"
    assert jobs.registry["resize"] is first


def test_two_apps_do_not_know_each_others_tasks(jobs: App[object]) -> None:
    @jobs.task
    def resize() -> None: ...

    other = App("memory://")

    @other.task(name="resize")
    def also() -> None: ...

    assert list(other.registry) == ["resize"]
    assert other.registry["resize"] is also


@pytest.mark.parametrize("name", ["delay", "apply_async", "send", "kiq", "defer"])
def test_the_verbs_of_other_systems_lead_to_enqueue(jobs: App[object], name: str) -> None:
    @jobs.task
    def resize() -> None: ...

    with pytest.raises(AttributeError, match=r"use \.enqueue\(\.\.\.\)"):
        getattr(resize, name)
    assert not hasattr(resize, "anything_else")


def test_what_is_no_function_is_refused(jobs: App[object]) -> None:
    with pytest.raises(InvalidOption, match="function"):
        jobs.task("resize")  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="name="):
        jobs.task(lambda: None)
    assert jobs.task(name="quick")(lambda: 3)() == 3


def test_generators_are_refused(jobs: App[object]) -> None:
    def many() -> Iterator[int]:
        yield 1

    async def several() -> AsyncIterator[int]:
        yield 1

    for function in (many, several):
        with pytest.raises(InvalidOption, match="generator"):
            jobs.task(function)


# Lanes and keys


def test_a_template_is_filled_from_the_arguments_as_the_worker_will_see_them(jobs: App[object]) -> None:
    @jobs.task(lane="customer:{customer_id}", unique_key="{customer_id}/{kind}")
    def bill(customer_id: int, kind: str = "monthly") -> None: ...

    job = bill.draft(7).job
    assert (job.lane, job.unique_key) == ("customer:7", "7/monthly")
    assert bill.draft(kind="yearly", customer_id=8).job.unique_key == "8/yearly"


def test_a_function_of_the_arguments_does_as_well_as_a_template(jobs: App[object]) -> None:
    @jobs.task(lane=lambda order: order if order.startswith("a") else None)
    def ship(order: str) -> None: ...

    assert ship.draft("a1").job.lane == "a1"
    assert ship.draft("b1").job.lane is None


def test_a_template_that_names_no_parameter_is_refused_at_declaration(jobs: App[object]) -> None:
    with pytest.raises(InvalidOption, match=r"customer_di.*customer_id") as refused:

        @jobs.task(lane="customer:{customer_di}")
        def bill(ctx: Context, customer_id: int) -> None: ...

    assert refused.value.option == "lane"
    assert "bill" not in jobs.registry


@pytest.mark.parametrize("template", ["{}", "{0}", "{ctx}", "a{", ""])
def test_a_template_without_names_in_its_braces_is_refused(jobs: App[object], template: str) -> None:
    with pytest.raises(InvalidOption):

        @jobs.task(unique_key=template)
        def bill(ctx: Context, customer_id: int) -> None: ...


def test_a_lane_given_at_the_call_is_taken_literally(jobs: App[object]) -> None:
    @jobs.task(lane="{customer_id}")
    def bill(customer_id: int) -> None: ...

    assert bill.using(lane="{customer_id.__class__}").draft(7).job.lane == "{customer_id.__class__}"


def test_a_template_that_makes_no_name_is_refused_before_the_write(jobs: App[object]) -> None:
    @jobs.task(lane="{customer}")
    def bill(customer: str) -> None: ...

    with pytest.raises(InvalidOption, match="lane"):
        bill.draft("x" * 300)


# Drafts


def test_a_draft_has_its_id_and_does_no_io(jobs: App[object]) -> None:
    @jobs.task
    def resize(image: str) -> None: ...

    draft = resize.draft("secret.png")
    assert len(draft.id) == 26
    assert draft.queue == "default"
    assert resize.using(id="cat").draft("a").id == "cat"
    assert "secret" not in repr(draft)


def test_a_draft_is_checked(jobs: App[object]) -> None:
    @jobs.task
    def resize(image: str) -> None: ...

    with pytest.raises(InvalidArguments):
        resize.draft(7)  # type: ignore[arg-type]


# Calling


def test_call_runs_sync_and_async_functions_from_sync_and_async_code(jobs: App[object]) -> None:
    @jobs.task
    def plain(n: int) -> int:
        return n + 1

    @jobs.task
    async def on_a_loop(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    assert (plain.call(1), on_a_loop.call(1)) == (2, 2)

    async def both() -> tuple[int, int]:
        return await plain.acall(1), await on_a_loop.acall(1)

    assert asyncio.run(both()) == (2, 2)


def test_a_task_that_wants_a_context_gets_a_detached_one(jobs: App[object]) -> None:
    @jobs.task
    def plain(ctx: Context, n: int) -> tuple[int, bool, str]:
        return ctx.attempt + n, ctx.aborted, ctx.job.task

    @jobs.task
    async def on_a_loop(ctx: Context, n: int) -> int:
        return Context.current().attempt + n

    assert plain.call(1) == plain(1) == (2, False, "plain")
    assert on_a_loop.call(1) == 2


def test_what_a_called_function_raises_comes_out_as_it_is(jobs: App[object]) -> None:
    @jobs.task
    async def hopeless() -> None:
        raise GiveUp("card expired")

    with pytest.raises(GiveUp, match="card expired"):
        hopeless.call()


def test_call_needs_the_code(jobs: App[object]) -> None:
    with pytest.raises(InvalidOption, match="not in this process"):
        jobs.client.task("elsewhere").call()


# Hooks


def test_hooks_for_dead_letters_are_shared_by_all_copies_of_a_task(jobs: App[object]) -> None:
    @jobs.task
    def resize() -> None: ...

    @resize.using(queue="quick").on_dead_letter
    def note(job: object, error: object) -> None: ...

    assert jobs.registry["resize"].dead_letter_hooks == [note]


def test_middleware_of_a_task_is_kept_in_order(jobs: App[object]) -> None:
    async def one(ctx: Context, proceed: Any) -> object:
        return await proceed()

    async def two(ctx: Context, proceed: Any) -> object:
        return await proceed()

    @jobs.task(middleware=[one, two], backoff=fixed(1))
    def resize() -> None: ...

    assert resize.middleware == (one, two)
