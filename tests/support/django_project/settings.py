"""Settings of the project. The databases come from the environment, so that each test run has its own."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

SECRET_KEY = "not a secret: only tests use it"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["holdfast.django", "django_project.shop"]
if find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")

FILE = Path(os.environ["HOLDFAST_TEST_DJANGO_FILE"])
SERVER = os.environ.get("HOLDFAST_TEST_DJANGO_SERVER", "")


def on_server(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
        "CONN_MAX_AGE": int(os.environ.get("HOLDFAST_TEST_DJANGO_MAX_AGE_S", "0")),
    }


in_file = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": FILE,
    "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
    "TEST": {"NAME": f"{FILE}.test"},
}

DATABASES: dict[str, dict[str, Any]] = {"default": in_file}
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
