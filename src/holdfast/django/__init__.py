"""Holdfast for Django: a backend for Django's tasks, a management command, and jobs in `transaction.atomic()`.

    INSTALLED_APPS += ["holdfast.django"]
    TASKS = {"default": {"BACKEND": "holdfast.django.Backend", "QUEUES": [], "OPTIONS": {"database": "default"}}}

The names below are imported when they are first used: Django imports this package before its apps are ready.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.django.address import database_address
    from holdfast.django.backend import Backend
    from holdfast.django.backend_apps import get_app
    from holdfast.django.holdfast_task import HoldfastTask, task

__all__ = ["Backend", "HoldfastTask", "database_address", "get_app", "task"]

_HOMES = {
    "Backend": "holdfast.django.backend",
    "HoldfastTask": "holdfast.django.holdfast_task",
    "database_address": "holdfast.django.address",
    "get_app": "holdfast.django.backend_apps",
    "task": "holdfast.django.holdfast_task",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
