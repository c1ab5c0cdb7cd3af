"""The Django app: creates the tables of the jobs after `migrate`, and makes Django check the backends."""

from importlib import import_module

from django.apps import AppConfig
from django.core.signals import setting_changed
from django.db.models.signals import post_migrate


class HoldfastConfig(AppConfig):
    """`INSTALLED_APPS += ["holdfast.django"]`."""

    name = "holdfast.django"
    label = "holdfast"
    verbose_name = "Holdfast"

    def ready(self) -> None:
        from holdfast.django.backend_apps import APPS
        from holdfast.django.migrate import create_tables
        from holdfast.django.tasks_api import NAME

        import_module(f"{NAME}.checks")  # registers the check that calls `Backend.check`
        post_migrate.connect(create_tables, sender=self, dispatch_uid="holdfast")
        setting_changed.connect(APPS.settings_changed, dispatch_uid="holdfast")
