"""A worker runs Django's tasks: results, contexts, retries, transactions, connections, signals."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("project")


def tasks() -> Any:
    from django_project.shop import tasks

    return tasks


def run_worker(backend: str) -> None:
    from holdfast.django import get_app

    get_app(backend).worker(until_empty=True).run()


def finished(backend: str, result: Any) -> Any:
    """The result, after a worker has run everything."""
    run_worker(backend)
    result.refresh()
    return result


def new_order(backend: str, name: str = "lamp") -> Any:
    from django_project.shop.models import Order

    return Order.objects.using(backend).create(name=name)


def shipped(backend: str, order: Any) -> int:
    order.refresh_from_db(using=backend)
    found: int = order.shipped
    return found


def test_a_job_runs_and_its_result_is_read(backend: str) -> None:
    result = tasks().add.using(backend=backend).enqueue(2, b=3)
    assert (result.status, result.args, result.kwargs, result.attempts) == ("READY", [2], {"b": 3}, 0)
    finished(backend, result)
    assert (result.status, result.return_value, result.attempts, len(result.worker_ids)) == ("SUCCESSFUL", 5, 1, 1)
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    read = tasks().add.using(backend=backend).get_result(result.id)
    assert (read.return_value, read.args, read.kwargs) == (5, [2], {"b": 3})


def test_an_async_task_runs(backend: str) -> None:
    assert finished(backend, tasks().add_later.using(backend=backend).enqueue(1, 2)).return_value == 3


def test_a_failed_job_has_the_errors_of_all_attempts(backend: str) -> None:
    result = finished(backend, tasks().fail.using(backend=backend).enqueue("broken"))
    assert (result.status, result.attempts, len(result.worker_ids)) == ("FAILED", 2, 2)
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert "broken" in result.errors[0].traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_a_traceback_begins_in_the_function_of_the_task(backend: str) -> None:
    result = finished(backend, tasks().fail.using(backend=backend).enqueue("broken"))
    first = result.errors[0].traceback.splitlines()[1]
    assert (tasks().__file__ in first, "in fail" in first) == (True, True), first


def test_a_cancelled_job_is_failed_with_an_error_that_says_so(backend: str) -> None:
    from holdfast import JobCancelled
    from holdfast.django import get_app

    result = tasks().add.using(backend=backend, delay=60).enqueue(1)
    get_app(backend).control.cancel(result.id)
    result.refresh()
    assert (result.status, result.is_finished) == ("FAILED", True)
    assert [error.exception_class for error in result.errors] == [JobCancelled]


def test_options_of_a_task_may_come_from_the_settings() -> None:
    assert finished("default", tasks().from_settings.enqueue()).attempts == 3


def test_a_task_with_a_context_sees_its_job_and_attempt(backend: str) -> None:
    result = finished(backend, tasks().describe.using(backend=backend).enqueue(2))
    value = result.return_value
    assert (value["attempt"], value["attempts"], value["args"], value["aborted"]) == (2, 2, [2], False)
    assert value["id"] == value["job"] == result.id
    assert value["fence"] > 0


def test_a_task_can_be_called_without_a_queue() -> None:
    assert tasks().add.call(1, b=2) == 3


# --- transaction=True ---


def test_the_effects_of_a_task_and_its_end_are_one_commit(backend: str) -> None:
    order = new_order(backend)
    result = finished(backend, tasks().ship.using(backend=backend).enqueue(order.pk, backend))
    assert (result.status, result.return_value, shipped(backend, order)) == ("SUCCESSFUL", "shipped lamp", 1)


def test_the_effects_of_a_failed_attempt_are_rolled_back(backend: str) -> None:
    order = new_order(backend)
    result = finished(backend, tasks().ship.using(backend=backend).enqueue(order.pk, backend, mistakes=9))
    assert (result.status, result.attempts, shipped(backend, order)) == ("FAILED", 3, 0)


def test_a_transaction_that_is_marked_for_rollback_does_not_complete_the_job(backend: str) -> None:
    order = new_order(backend)
    task = tasks().ship_and_mark_for_rollback.using(backend=backend)
    result = finished(backend, task.enqueue(order.pk, backend))
    assert (result.status, shipped(backend, order)) == ("FAILED", 0)
    assert "marked for rollback" in result.errors[-1].traceback


def test_a_task_enqueues_in_its_own_transaction(backend: str) -> None:
    order = new_order(backend)
    tasks().add.using(backend=backend)  # declares it there: a worker has the tasks that are declared when it starts
    tasks().ship_and_enqueue.using(backend=backend).enqueue(order.pk, backend, backend)
    run_worker(backend)
    follower = tasks().add.using(backend=backend).get_result(f"after-{order.pk}")
    assert (shipped(backend, order), follower.return_value) == (1, order.pk + 1)


def test_on_postgres_the_effects_of_an_attempt_that_lost_its_lease_are_rolled_back(project: Any) -> None:
    """In its first attempt the task loses its job. On SQLite that cannot happen while it holds the write lock."""
    order = new_order("server")
    result = finished("server", tasks().ship_while_stolen.using(backend="server").enqueue(order.pk, "server"))
    assert (result.status, result.attempts, shipped("server", order)) == ("SUCCESSFUL", 2, 1)


# --- Connections and signals ---


def test_a_worker_closes_old_connections_around_each_task(backend: str) -> None:
    result = finished(backend, tasks().open_connections.using(backend=backend).enqueue(backend))
    again = finished(backend, tasks().open_connections.using(backend=backend).enqueue(backend))
    assert (result.return_value, again.return_value) == ([False, True], [False, True])


@contextmanager
def recorded() -> Iterator[list[tuple[str, str, str]]]:
    """The signals of the tasks: name, id of the job, status."""
    from holdfast.django.tasks_api import task_finished, task_started

    seen: list[tuple[str, str, str]] = []

    def on_start(task_result: Any, **_: Any) -> None:
        seen.append(("started", task_result.id, str(task_result.status)))

    def on_finish(task_result: Any, **_: Any) -> None:
        seen.append(("finished", task_result.id, str(task_result.status)))

    task_started.connect(on_start)
    task_finished.connect(on_finish)
    try:
        yield seen
    finally:
        task_started.disconnect(on_start)
        task_finished.disconnect(on_finish)


@pytest.mark.parametrize("name", ["add", "add_later"])
def test_signals_are_sent_for_a_success(backend: str, name: str) -> None:
    run_worker(backend)
    with recorded() as seen:
        result = getattr(tasks(), name).using(backend=backend).enqueue(1, 2)
        run_worker(backend)
    assert seen == [("started", result.id, "RUNNING"), ("finished", result.id, "SUCCESSFUL")]


@pytest.mark.parametrize("name", ["add", "add_later", "ship"])
def test_a_success_is_stored_when_its_signal_is_sent(backend: str, name: str) -> None:
    from holdfast.django.tasks_api import task_finished

    seen: list[Any] = []

    def receive(task_result: Any, **_: Any) -> None:
        seen.append((task_result, task_result.task.using(backend=backend).get_result(task_result.id)))

    arguments = [new_order(backend).pk, backend] if name == "ship" else [1, 2]
    task_finished.connect(receive)
    try:
        getattr(tasks(), name).using(backend=backend).enqueue(*arguments)
        run_worker(backend)
    finally:
        task_finished.disconnect(receive)
    ((sent, stored),) = seen
    assert (sent.status, stored.status) == ("SUCCESSFUL", "SUCCESSFUL")
    assert (sent.return_value, sent.finished_at) == (stored.return_value, stored.finished_at)


def test_on_postgres_an_attempt_that_lost_its_lease_sends_no_end(project: Any) -> None:
    order = new_order("server")
    with recorded() as seen:
        result = finished("server", tasks().ship_while_stolen.using(backend="server").enqueue(order.pk, "server"))
    assert seen == [("started", result.id, "RUNNING")] * 2 + [("finished", result.id, "SUCCESSFUL")]


def test_a_failed_job_is_finished_once_after_its_last_attempt(backend: str) -> None:
    run_worker(backend)
    with recorded() as seen:
        result = finished(backend, tasks().fail.using(backend=backend).enqueue("x"))
    assert seen == [("started", result.id, "RUNNING")] * 2 + [("finished", result.id, "FAILED")]


@pytest.mark.parametrize("name", ["fail", "fail_later"])
def test_the_start_of_a_retry_has_the_errors_and_workers_of_earlier_attempts(backend: str, name: str) -> None:
    from holdfast.django.tasks_api import task_started

    seen: list[Any] = []

    def receive(task_result: Any, **_: Any) -> None:
        errors = [error.exception_class for error in task_result.errors]
        seen.append((str(task_result.status), task_result.attempts, errors, len(task_result.worker_ids)))

    task_started.connect(receive)
    try:
        finished(backend, getattr(tasks(), name).using(backend=backend).enqueue("x"))
    finally:
        task_started.disconnect(receive)
    assert seen == [("RUNNING", 1, [], 1), ("RUNNING", 2, [ValueError], 2)]


def test_a_retry_runs_if_its_earlier_attempts_cannot_be_read(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast import EngineUnavailable
    from holdfast.django import get_app

    def unavailable(*_: Any, **__: Any) -> None:
        raise EngineUnavailable("away")

    result = tasks().describe.using(backend=backend).enqueue(2)
    with monkeypatch.context() as patch:
        patch.setattr(type(get_app(backend).control), "get", unavailable)
        run_worker(backend)
    result.refresh()
    assert (result.status, result.attempts) == ("SUCCESSFUL", 2)


def test_a_receiver_of_a_failure_gets_no_old_connection(backend: str) -> None:
    from django.db import connections

    from holdfast.django.tasks_api import task_finished

    had_connection: list[bool] = []

    def receive(**_: Any) -> None:
        had_connection.append(connections[backend].connection is not None)
        connections[backend].ensure_connection()

    task_finished.connect(receive)
    try:
        for _ in range(2):
            tasks().give_up.using(backend=backend).enqueue("x")
            run_worker(backend)
    finally:
        task_finished.disconnect(receive)
    assert had_connection == [False, False]


@pytest.mark.parametrize("name", ["fail", "fail_later"])
def test_receivers_are_called_while_the_exception_of_the_failure_is_active(
    backend: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So does Django's own receiver, which logs it."""
    from holdfast.django.tasks_api import NAME

    caplog.clear()
    finished(backend, getattr(tasks(), name).using(backend=backend, max_attempts=1).enqueue("broken"))
    logged = [record for record in caplog.records if record.name == NAME and record.levelname == "ERROR"]
    (error,) = [record.exc_info[1] for record in logged if record.exc_info]
    assert (type(error), str(error)) == (ValueError, "broken")


def test_a_receiver_that_fails_does_not_fail_the_job(backend: str) -> None:
    from holdfast.django.tasks_api import task_started

    def receive(**_: Any) -> None:
        raise RuntimeError("in a receiver")

    task_started.connect(receive)
    try:
        result = finished(backend, tasks().add.using(backend=backend).enqueue(1))
    finally:
        task_started.disconnect(receive)
    assert (result.status, result.attempts) == ("SUCCESSFUL", 1)


# --- Names from the store ---


def test_a_stored_name_is_never_imported(backend: str) -> None:
    import sys

    from holdfast.django import get_app
    from holdfast.django.tasks_api import TaskResultDoesNotExist, task_backends

    handle = get_app(backend).client.task("this.antigravity").enqueue()
    with pytest.raises(TaskResultDoesNotExist, match="not declared"):
        task_backends[backend].get_result(handle.id)
    assert "this" not in sys.modules
    handle.cancel()


def test_an_unknown_result_does_not_exist(backend: str) -> None:
    from holdfast.django.tasks_api import TaskResultDoesNotExist

    with pytest.raises(TaskResultDoesNotExist):
        tasks().add.using(backend=backend).get_result("no such job")


def test_a_result_of_another_task_is_refused(backend: str) -> None:
    result = tasks().add.using(backend=backend).enqueue(1)
    with pytest.raises(Exception, match="does not match"):
        tasks().fail.using(backend=backend).get_result(result.id)


def test_a_job_of_an_earlier_path_runs_and_its_result_is_read(backend: str) -> None:
    from holdfast.declare.signature import OpenSignature
    from holdfast.django import get_app
    from holdfast.django.tasks_api import task_backends
    from holdfast.task import Definition, Task

    tasks().total.using(backend=backend)  # declares it there
    app = get_app(backend)
    old: Task[..., Any] = Task(Definition(app._store, "shop.tasks.sum_up", OpenSignature("sum_up"), {}))
    handle = old.enqueue(2, b=3)
    run_worker(backend)
    result = task_backends[backend].get_result(handle.id)
    assert (result.status, result.return_value, result.task.name) == ("SUCCESSFUL", 5, "total")
    assert app.control.get(handle.id).task == "shop.tasks.sum_up"


def test_an_alias_that_another_task_has_is_refused(project: Any) -> None:
    from django_project.shop.tasks import total

    from holdfast.django import task
    from holdfast.django.tasks_api import InvalidTask

    def late(a: int) -> int:
        return a

    late.__module__, late.__qualname__ = total.func.__module__, "late"
    with pytest.raises(InvalidTask, match=r"shop\.tasks\.sum_up"):
        task(aliases=["shop.tasks.sum_up"])(late)
