"""Tests of the project, as its authors would write them: `manage.py test`."""

import os

from django.conf import settings
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings

from django_project.shop.models import Order
from django_project.shop.tasks import add, ship
from holdfast.django import get_app


def depth() -> int:
    return sum(queue.depth for queue in get_app().control.queues())


class InTestCase(TestCase):
    def test_1_an_enqueue_is_rolled_back_with_the_test(self) -> None:
        add.enqueue(1)
        Order.objects.create(name="rolled back")

    def test_2_nothing_is_left_of_it(self) -> None:
        assert depth() == 0

    async def test_3_an_async_enqueue_is_rolled_back_too(self) -> None:
        await add.aenqueue(1)

    def test_4_nothing_is_left_of_that_either(self) -> None:
        assert depth() == 0

    def test_5_jobs_go_to_the_test_database(self) -> None:
        assert "test" in str(connection.settings_dict["NAME"])
        assert "test" in get_app().address
        assert "test" in str(settings.DATABASES["default"]["NAME"])

    def test_6_the_driver_is_the_one_that_was_asked_for(self) -> None:
        driver = os.environ.get("HOLDFAST_TEST_DJANGO_DRIVER", "sqlite3")
        assert connection.Database.__name__.partition(".")[0] == driver


class InTransactionTestCase(TransactionTestCase):
    def test_another_app_of_changed_settings_stays_open(self) -> None:
        with override_settings(TASKS={"default": {**settings.TASKS["default"], "OPTIONS": {"durability": "fast"}}}):
            add.enqueue(1)
            get_app().worker(until_empty=True).run()

    def test_a_worker_runs_what_a_transaction_has_committed(self) -> None:
        order = Order.objects.create(name="lamp")
        with transaction.atomic():
            result = ship.enqueue(order.pk, "default")
        get_app().worker(until_empty=True).run()
        result.refresh()
        assert result.return_value == "shipped lamp"
        order.refresh_from_db()
        assert order.shipped == 1
