"""Settings of the project. The databases come from the environment, so that each test run has its own."""

import os
from importlib.util import find_spec
from typing import Any

from django_databases import in_file, on_server

SECRET_KEY = "not a secret: only tests use it"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["holdfast.django", "django_project.shop"]
if find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")

SERVER = os.environ.get("HOLDFAST_TEST_DJANGO_SERVER", "")

DATABASES: dict[str, dict[str, Any]] = {"default": in_file(os.environ["HOLDFAST_TEST_DJANGO_FILE"])}
TASKS: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "holdfast.django.Backend",
        "QUEUES": [],
        "OPTIONS": {
            "durability": "none",
            "TASKS": {"django_project.shop.tasks.from_settings": {"max_attempts": 3, "backoff": 0}},
        },
    }
}
if os.environ.get("HOLDFAST_TEST_DJANGO_SECOND"):  # a backend on which no task is declared
    second = {"namespace": "second", "durability": "none"}
    TASKS["second"] = {"BACKEND": "holdfast.django.Backend", "QUEUES": ["mail"], "OPTIONS": second}
if SERVER and os.environ.get("HOLDFAST_TEST_DJANGO_DEFAULT") == "postgres":
    DATABASES["default"] = on_server(SERVER)
    del TASKS["default"]["OPTIONS"]["durability"]
elif SERVER:
    DATABASES["server"] = on_server(SERVER)
    TASKS["server"] = {
        "BACKEND": "holdfast.django.Backend",
        "QUEUES": [],
        "OPTIONS": {"database": "server", "namespace": "shop_jobs"},
    }
