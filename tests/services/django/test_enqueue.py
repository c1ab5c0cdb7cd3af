"""Enqueueing through Django's tasks: inside and outside of transactions, with Holdfast's options, from async code."""

from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("project")


def run_worker(backend: str) -> None:
    from holdfast.django import get_app

    get_app(backend).worker(until_empty=True).run()


def tasks() -> Any:
    from django_project.shop import tasks

    return tasks


def test_a_job_runs_and_its_result_is_read(backend: str) -> None:
    result = tasks().add.using(backend=backend).enqueue(2, b=3)
    assert (result.status, result.args, result.kwargs, result.attempts) == ("READY", [2], {"b": 3}, 0)
    run_worker(backend)
    result.refresh()
    assert (result.status, result.return_value, result.attempts, len(result.worker_ids)) == ("SUCCESSFUL", 5, 1, 1)
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert tasks().add.using(backend=backend).get_result(result.id).return_value == 5


def test_an_enqueue_in_atomic_exists_once_it_commits(backend: str) -> None:
    from django.db import transaction

    from holdfast.django import get_app

    with transaction.atomic(using=backend):
        result = tasks().add.using(backend=backend).enqueue(1)
    assert get_app(backend).control.get(result.id).state == "queued"


def test_an_enqueue_in_atomic_is_rolled_back_with_it(backend: str) -> None:
    from django.db import transaction

    from holdfast import JobNotFound
    from holdfast.django import get_app

    with pytest.raises(ZeroDivisionError), transaction.atomic(using=backend):
        result = tasks().add.using(backend=backend).enqueue(1)
        1 / 0
    with pytest.raises(JobNotFound):
        get_app(backend).control.get(result.id)
