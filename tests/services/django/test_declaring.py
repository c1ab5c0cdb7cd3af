"""Tasks, backends and Apps: what is declared where, by which options, and at which address."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("project")


def tasks() -> Any:
    from django_project.shop import tasks

    return tasks


def plain(value: int) -> int:
    return value


async def plain_async(value: int) -> int:
    return value


def settings_with(**options: Any) -> Any:
    from django.test import override_settings

    return override_settings(
        TASKS={"default": {"BACKEND": "holdfast.django.Backend", "QUEUES": ["default"], "OPTIONS": options}}
    )


def test_the_backends_of_all_threads_share_one_app() -> None:
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier

    from holdfast.django import get_app
    from holdfast.django.tasks_api import task_backends

    together = Barrier(4)

    def look(_: int) -> tuple[int, int]:
        together.wait(30)
        found = id(task_backends["default"]), id(get_app())
        together.wait(30)
        return found

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(look, range(4)))
    assert len({backend for backend, _ in found}) == 4
    assert {app for _, app in found} == {id(get_app())}


def test_a_task_is_stored_by_its_path() -> None:
    from holdfast.django import get_app

    assert tasks().add.module_path in get_app().registry


def test_a_queue_that_the_settings_do_not_name_is_refused_with_advice() -> None:
    from holdfast.django.tasks_api import InvalidTask

    with settings_with(), pytest.raises(InvalidTask, match="has: default"):
        tasks().add.using(queue_name="billing")


def test_a_task_that_was_made_under_other_settings_is_refused_at_its_enqueue() -> None:
    from holdfast.django.tasks_api import InvalidTask

    made_before = tasks().add.using(queue_name="billing")
    with settings_with(durability="none"):
        with pytest.raises(InvalidTask, match="Queue 'billing' is not valid for backend"):
            made_before.enqueue(1)
        with pytest.raises(InvalidTask, match="Queue 'billing' is not valid for backend"):
            asyncio.run(made_before.aenqueue(1))


def test_queues_that_are_one_text_are_refused() -> None:
    from django.core.exceptions import ImproperlyConfigured

    from holdfast.django import Backend

    with pytest.raises(ImproperlyConfigured, match="list of names"):
        Backend("default", {"QUEUES": "default"})


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"max_attempts": -1}, "max_attempts"),
        ({"lane": "{nobody}"}, "nobody"),
        ({"transaction": plain}, "True or False"),
    ],
)
def test_a_wrong_value_is_refused_where_the_task_is_declared(options: dict[str, Any], advice: str) -> None:
    from holdfast.django import task
    from holdfast.django.tasks_api import InvalidTask

    with pytest.raises(InvalidTask, match=advice):
        task(**options)(plain)


def test_an_unknown_option_is_refused_where_the_task_is_declared() -> None:
    from holdfast.django import task

    with pytest.raises(TypeError, match="max_atempts"):
        task(max_atempts=3)(plain)


def test_an_async_task_cannot_run_in_atomic() -> None:
    from holdfast.django import task
    from holdfast.django.tasks_api import InvalidTask

    with pytest.raises(InvalidTask, match="plain function"):
        task(transaction=True)(plain_async)


def test_one_function_cannot_be_two_tasks_with_different_options() -> None:
    from holdfast.django import task
    from holdfast.django.tasks_api import InvalidTask

    first = task(max_attempts=3)(_declared_twice)
    assert task(max_attempts=3)(_declared_twice) == first
    with pytest.raises(InvalidTask, match="declared twice"):
        task(max_attempts=4)(_declared_twice)


def _declared_twice() -> None: ...  # stays declared, so no other test may declare it


def test_djangos_own_decorator_takes_the_options() -> None:
    import django

    from holdfast.django.tasks_api import API

    if django.VERSION[:2] == (6, 0):
        pytest.skip("the decorator of Django 6.0 takes no options")

    declared = API.task(max_attempts=7)(_seven)
    assert declared.max_attempts == 7


def _seven() -> int:
    return 7


def test_tasks_work_with_another_backend_which_ignores_the_options() -> None:
    from django.test import override_settings

    from holdfast.django.tasks_api import NAME

    immediate = {"default": {"BACKEND": f"{NAME}.backends.immediate.ImmediateBackend"}}
    with override_settings(TASKS=immediate):
        assert tasks().add.using(lane="x").enqueue(1).return_value == 2


def test_a_task_may_be_a_key_of_a_dictionary() -> None:
    assert {tasks().fail: 1}[tasks().fail.using()] == 1


def test_settings_that_change_do_not_make_a_task_two() -> None:
    before = tasks().from_settings
    with settings_with(TASKS={"django_project.shop.tasks.from_settings": {"max_attempts": 9}}):
        assert before.using(priority=1).priority == 1


def test_settings_with_other_options_have_another_app() -> None:
    from holdfast import JobNotFound
    from holdfast.django import get_app

    before = get_app()
    with settings_with(namespace="elsewhere", durability="none"):
        elsewhere = get_app()
        elsewhere.migrate()
        job = tasks().add.enqueue(1)
        elsewhere.worker(until_empty=True).run()
        assert elsewhere.control.get(job.id).state == "succeeded"
        elsewhere.close()
    assert get_app() is before
    with pytest.raises(JobNotFound):
        before.control.get(job.id)
    with settings_with(namespace="elsewhere", durability="none"):
        assert get_app() is elsewhere


def test_a_task_that_was_declared_under_other_settings_is_known() -> None:
    from holdfast.django import get_app

    job = tasks().add.enqueue(1)
    with settings_with(durability="durable"):
        assert tasks().add.get_result(job.id) == job
        get_app().close()


def test_an_entry_that_cannot_be_imported_does_not_hide_the_app_of_another_one() -> None:
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.test import override_settings

    from holdfast.django import get_app

    before = get_app()
    with override_settings(TASKS={**settings.TASKS, "missing": {"BACKEND": "does.not.exist"}}):
        assert get_app() is before
    with pytest.raises(ImproperlyConfigured, match="Entries that do: default"):
        get_app("nowhere")


def test_a_worker_serves_the_queues_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.core.management import call_command
    from django.test import override_settings

    from holdfast.django.management.commands import holdfast as command

    found = []
    monkeypatch.setattr(command, "main", lambda arguments, *, default, **_: found.append(default.queues))
    entry = {"BACKEND": "holdfast.django.Backend", "QUEUES": ["slow", "default"]}
    with override_settings(TASKS={"default": entry}):
        call_command("holdfast", "worker", skip_checks=True)
    call_command("holdfast", "worker", skip_checks=True)
    assert found == [("default", "slow"), ()]


# --- The address ---


def test_the_app_follows_the_database_that_django_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import connections

    from holdfast import JobNotFound
    from holdfast.django import get_app

    before = get_app().address
    tasks().add.enqueue(1)
    with monkeypatch.context() as patch:
        patch.setitem(connections.settings["default"], "NAME", str(tmp_path / "test_shop.sqlite3"))
        connections["default"].close()
        elsewhere = tasks().add.enqueue(1)
        assert get_app().address == str(tmp_path / "test_shop.sqlite3")
        assert get_app().control.get(elsewhere.id).state == "queued"
    connections["default"].close()
    assert get_app().address == before
    with pytest.raises(JobNotFound):
        get_app().control.get(elsewhere.id)


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        (
            {"NAME": "shop", "USER": "ada", "PASSWORD": "a/b@c", "HOST": "db.example", "PORT": "5433"},
            "postgresql://ada:a%2Fb%40c@db.example:5433/shop",
        ),
        (
            {"NAME": "shop", "HOST": "/run/postgresql", "PORT": 5433, "OPTIONS": {"sslmode": "require", "pool": True}},
            "postgresql:///shop?sslmode=require&host=%2Frun%2Fpostgresql&port=5433",
        ),
        ({"NAME": "shop"}, "postgresql:///shop"),
    ],
)
def test_the_address_of_a_server_is_made_of_its_settings(settings: dict[str, Any], address: str) -> None:
    from holdfast.django.address import _address

    assert _address("default", {"ENGINE": "django.db.backends.postgresql", **settings}) == address


def test_a_database_in_memory_is_refused_with_advice() -> None:
    from django.core.exceptions import ImproperlyConfigured

    from holdfast.django.address import _address

    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:memorydb_default?mode=memory&cache=shared"}
    with pytest.raises(ImproperlyConfigured, match="TEST"):
        _address("default", settings)


# --- System checks ---


def messages(**options: Any) -> list[tuple[str, str]]:
    from holdfast.django.checks import check_backend

    with settings_with(**options):
        return [(found.id, f"{found.msg} {found.hint}") for found in check_backend("default")]


def test_sound_settings_have_no_messages() -> None:
    assert messages() == []


@pytest.mark.parametrize(
    ("options", "id", "text"),
    [
        ({"databas": "default"}, "holdfast.E001", "'databas'"),
        ({"database": "nowhere"}, "holdfast.E003", "'nowhere'"),
        ({"namespace": "Not A Name"}, "holdfast.E004", "namespace"),
        ({"TASKS": {"shop.tasks.ship": {"max_attempts": "many"}}}, "holdfast.E004", "shop.tasks.ship"),
        ({"TASKS": ["shop.tasks.ship"]}, "holdfast.E001", "dictionary"),
        ({"TASKS": {"shop.tasks.ship": 3}}, "holdfast.E001", "dictionary"),
        ({"database": "mysql"}, "holdfast.E005", "mysql"),
        ({"database": "memory"}, "holdfast.E007", "In tests: DATABASES"),
        ({"database": "deferred"}, "holdfast.W001", "write lock"),
    ],
)
def test_a_wrong_setting_has_a_message(
    options: dict[str, Any], id: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connections

    sqlite = dict(connections.settings["default"])
    others = {
        "mysql": {**sqlite, "ENGINE": "django.db.backends.mysql", "OPTIONS": {}},
        "memory": {**sqlite, "NAME": ":memory:"},
        "deferred": {**sqlite, "OPTIONS": {}},
    }
    for name, settings in others.items():
        monkeypatch.setitem(connections.settings, name, settings)
    ((found, message),) = messages(**options)
    assert found == id
    assert text in message


@pytest.mark.parametrize("key", ["OPTION", "database"])
def test_a_key_that_django_ignores_has_a_message(key: str) -> None:
    from django.test import override_settings

    from holdfast.django.checks import check_backend

    with override_settings(TASKS={"default": {"BACKEND": "holdfast.django.Backend", key: {}}}):
        (found,) = check_backend("default")
    assert (found.id, key in found.msg) == ("holdfast.W002", True)


def test_a_wrong_option_of_the_app_is_reported_with_its_place() -> None:
    from django.core.exceptions import ImproperlyConfigured

    from holdfast.django.backend_apps import BackendApp

    with settings_with(durability="durabel"), pytest.raises(ImproperlyConfigured, match=r"OPTIONS.*durability"):
        BackendApp("default")


def test_the_options_of_a_task_that_does_not_exist_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from django.core.management import call_command

    from holdfast.django.management.commands import holdfast as command

    monkeypatch.setattr(command, "main", lambda *_, **__: None)
    with settings_with(TASKS={"shop.tasks.shipp": {"max_attempts": 3}}):
        call_command("holdfast", "status", skip_checks=True)
    assert "'shop.tasks.shipp', and there is no such task" in capsys.readouterr().err


def test_an_app_that_is_not_installed_has_a_message() -> None:
    from django.test import modify_settings

    with modify_settings(INSTALLED_APPS={"remove": "holdfast.django"}):
        assert [id for id, _ in messages()] == ["holdfast.E002"]


def test_a_task_of_another_backend_whose_alias_is_taken_here_is_left_out() -> None:
    from holdfast.django.backend_apps import BackendApp
    from holdfast.django.results import unvalidated_copy

    total, backend_app = tasks().total, BackendApp("default")
    backend_app.declare(unvalidated_copy(total, {"func": plain}))
    backend_app.declare_all()
    assert tasks().add.module_path in backend_app.tasks
    assert total.module_path not in backend_app.tasks
    found = backend_app.find("shop.tasks.sum_up")
    assert found is not None
    assert found.django.func is plain
