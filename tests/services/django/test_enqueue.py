"""Enqueueing through Django's tasks: inside and outside of transactions, with Holdfast's options, from async code."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("project")


def tasks() -> Any:
    from django_project.shop import tasks

    return tasks


def add(backend: str) -> Any:
    return tasks().add.using(backend=backend)


def control(backend: str) -> Any:
    from holdfast.django import get_app

    return get_app(backend).control


def exists(backend: str, job_id: str) -> bool:
    from holdfast import JobNotFound

    try:
        control(backend).get(job_id)
    except JobNotFound:
        return False
    return True


class Undo(Exception):
    """Rolls a block back."""


@contextmanager
def undone(backend: str) -> Iterator[None]:
    """A transaction that is rolled back at its end."""
    from django.db import transaction

    with suppress(Undo), transaction.atomic(using=backend):
        yield
        raise Undo


def test_an_enqueue_outside_of_a_transaction_is_stored_at_once(backend: str) -> None:
    result = add(backend).enqueue(1)
    assert result.status == "READY"
    assert control(backend).get(result.id).state == "queued"


def test_an_enqueue_in_atomic_exists_once_it_commits(backend: str) -> None:
    from django.db import transaction

    with transaction.atomic(using=backend):
        result = add(backend).enqueue(1)
        assert not exists(backend, result.id)
    assert exists(backend, result.id)


def test_an_enqueue_in_atomic_is_rolled_back_with_it(backend: str) -> None:
    with undone(backend):
        result = add(backend).enqueue(1)
    assert not exists(backend, result.id)


def test_an_enqueue_in_a_savepoint_is_rolled_back_with_the_savepoint(backend: str) -> None:
    from django.db import transaction

    with transaction.atomic(using=backend):
        kept = add(backend).enqueue(1)
        with undone(backend):
            lost = add(backend).enqueue(1)
    assert (exists(backend, kept.id), exists(backend, lost.id)) == (True, False)


def test_manual_transactions_take_part_too(backend: str) -> None:
    from django.db import connections

    connection = connections[backend]
    connection.set_autocommit(False)
    try:
        lost = add(backend).enqueue(1)
        connection.rollback()
        kept = add(backend).enqueue(1)
        connection.commit()
    finally:
        connection.set_autocommit(True)
    assert (exists(backend, kept.id), exists(backend, lost.id)) == (True, False)


async def test_async_code_enqueues_and_reads_without_a_thread(backend: str) -> None:
    result = await add(backend).aenqueue(1)
    again = await add(backend).aget_result(result.id)
    await result.arefresh()
    assert (again.id, again.status, result.job.state) == (result.id, "READY", "queued")


def test_async_code_that_a_transaction_waits_for_takes_part_in_it(backend: str) -> None:
    from asgiref.sync import async_to_sync

    with undone(backend):
        result = async_to_sync(add(backend).aenqueue)(1)
    assert not exists(backend, result.id)


def test_blocking_methods_in_async_code_raise_djangos_error(backend: str) -> None:
    from django.core.exceptions import SynchronousOnlyOperation

    task, result = add(backend), add(backend).enqueue(1)

    async def call(method: Any, *arguments: Any) -> None:
        method(*arguments)

    for method, arguments, advice in (
        (task.enqueue, (1,), "aenqueue"),
        (task.get_result, (result.id,), "aget_result"),
        (result.refresh, (), "arefresh"),
    ):
        with pytest.raises(SynchronousOnlyOperation, match=f"async code: write .*{advice}"):
            asyncio.run(call(method, *arguments))


def test_the_options_of_using_reach_the_job(backend: str) -> None:
    when = datetime.now(UTC) + timedelta(hours=1)
    result = (
        tasks()
        .add.using(backend=backend, queue_name="slow", priority=7, run_after=when)
        .using(lane="customer-7", metadata={"who": "ada"}, max_attempts=2, expires=timedelta(days=1))
        .enqueue(1)
    )
    job = control(backend).get(result.id, queue="slow")
    assert (job.queue, job.priority, job.lane, job.state) == ("slow", 7, "customer-7", "scheduled")
    assert (job.metadata, job.max_attempts, job.due_at) == ({"who": "ada"}, 2, when)
    assert job.expires_at is not None
    read = add(backend).get_result(result.id)
    assert (read.status, read.task.queue_name, read.task.priority, read.task.run_after) == ("READY", "slow", 7, when)


def test_without_time_zones_times_are_those_of_the_settings() -> None:
    from django.test import override_settings

    when = datetime(2040, 1, 1, 12)  # noqa: DTZ001 - that is what the test is about
    with override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin"):
        result = tasks().add.using(run_after=when).enqueue(1)
        read = tasks().add.get_result(result.id)
        assert (read.task.run_after, read.enqueued_at.tzinfo) == (when, None)
    assert control("default").get(result.id).due_at == datetime(2040, 1, 1, 11, tzinfo=UTC)


def test_one_id_is_one_job(backend: str) -> None:
    first = add(backend).using(id="once").enqueue(1)
    second = add(backend).using(id="once").enqueue(1)
    assert (first.id, second.id) == ("once", "once")


def test_a_unique_key_joins_the_waiting_job(backend: str) -> None:
    first = add(backend).using(unique_key="one", delay=60).enqueue(1)
    assert add(backend).using(unique_key="one").enqueue(1).id == first.id


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"que": "x"}, "There is no option `que`"),
        ({"queue": "x"}, "use `queue_name`"),
        ({"at": datetime.now(UTC)}, "use `run_after`"),
        ({"delay": 1, "run_after": datetime.now(UTC)}, "not both"),
    ],
)
def test_a_wrong_option_is_refused_with_advice(options: dict[str, Any], advice: str) -> None:
    from holdfast import InvalidOption

    with pytest.raises(InvalidOption, match=advice):
        tasks().add.using(**options)


def test_wrong_arguments_are_refused_before_anything_is_written() -> None:
    from holdfast import InvalidArguments

    with pytest.raises(InvalidArguments, match="a"):
        tasks().add.enqueue("one")


def test_an_argument_that_is_not_json_raises_a_type_error_as_django_documents() -> None:
    with pytest.raises(TypeError, match="plain data"):
        tasks().add.enqueue(object())


def test_task_enqueued_is_sent(backend: str) -> None:
    from holdfast.django.tasks_api import task_enqueued

    seen: list[Any] = []

    def receive(sender: Any, task_result: Any, **_: Any) -> None:
        seen.append((sender.__name__, task_result.id, task_result.backend))

    task_enqueued.connect(receive)
    try:
        result = add(backend).enqueue(1)
    finally:
        task_enqueued.disconnect(receive)
    assert seen == [("Backend", result.id, backend)]


def test_missing_tables_on_postgres_name_the_command_of_django(
    project: Any, postgres_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connections

    from holdfast import SchemaMismatch

    name = f"no_tables_{os.getpid()}"
    postgres_server.execute(f"CREATE DATABASE {name}")
    try:
        with monkeypatch.context() as patch:
            patch.setitem(connections.settings["server"], "NAME", name)
            connections["server"].close()
            with pytest.raises(SchemaMismatch, match=r"manage\.py migrate"):
                add("server").enqueue(1)
    finally:
        connections["server"].close()
        postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


# --- Without Django's tasks ---


def test_a_plain_app_enqueues_in_a_django_transaction(backend: str) -> None:
    from django.db import connections, transaction

    from holdfast import App
    from holdfast.django import database_address

    jobs: App[Any] = App(database_address(backend), namespace="plain", auto_migrate=True)

    @jobs.task
    def resize(image: str) -> str:
        return image

    with jobs:
        with transaction.atomic(using=backend):
            kept = resize.using(transaction=connections[backend]).enqueue("cat.png")
        with undone(backend):
            resize.using(transaction=connections[backend]).enqueue("dog.png")
        assert kept.refresh().state == "queued"
        assert [job.id for job in jobs.control.find(task="resize").jobs] == [kept.id]


def test_the_proxy_django_db_connection_is_accepted_too() -> None:
    from django.db import connection, transaction

    with transaction.atomic():
        result = tasks().add.using(transaction=connection).enqueue(1)
    assert exists("default", result.id)


def test_a_connection_in_no_transaction_is_refused(backend: str) -> None:
    from django.db import connections

    from holdfast import UsageError

    with pytest.raises(UsageError, match="atomic"):
        add(backend).using(transaction=connections[backend]).enqueue(1)


def test_the_result_of_an_enqueue_can_be_compared(backend: str) -> None:
    first, second = add(backend).enqueue(1), add(backend).enqueue(1)
    assert (first == first, first == second) == (True, False)  # noqa: PLR0124


@pytest.mark.parametrize("options", [{}, {"run_after": datetime(2040, 1, 1, tzinfo=UTC)}, {"priority": 3}])
def test_the_result_of_an_enqueue_equals_the_one_that_is_read(backend: str, options: dict[str, Any]) -> None:
    result = add(backend).using(**options).enqueue(1)
    assert result == add(backend).get_result(result.id)


async def test_the_result_of_an_async_enqueue_equals_the_one_that_is_read(backend: str) -> None:
    result = await add(backend).aenqueue(1)
    assert result == await add(backend).aget_result(result.id)
