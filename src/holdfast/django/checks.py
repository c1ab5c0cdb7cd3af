"""What `manage.py check` says about an entry of TASKS."""

from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from holdfast.declare.policy import read_app_options, read_task_options
from holdfast.errors import InvalidOption

KEYS = ("BACKEND", "QUEUES", "OPTIONS")
"""What an entry of TASKS may contain."""


def check_backend(alias: str) -> list[Any]:
    from holdfast.django.backend_apps import backend_options, database_of, task_settings

    try:
        options = backend_options(alias)
        task_settings(alias)
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="holdfast.E001")]
    found = []
    if not apps.is_installed("holdfast.django"):
        found.append(
            checks.Error(
                f'TASKS["{alias}"] uses holdfast.django.Backend, and INSTALLED_APPS does not name its app.',
                hint='Add "holdfast.django" to INSTALLED_APPS: `migrate` then creates the tables of the jobs.',
                id="holdfast.E002",
            )
        )
    found += [*_check_keys(alias), *_check_options(alias, options)]
    database = database_of(alias)
    if database not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        message = f'TASKS["{alias}"]["OPTIONS"]["database"] is {database!r}. DATABASES has: {known}.'
        return [*found, checks.Error(message, id="holdfast.E003")]
    return [*found, *_check_database(database)]


def _check_keys(alias: str) -> list[Any]:
    """Django ignores a key that it does not know. Then the jobs could be in another database than intended."""
    return [
        checks.Warning(
            f'TASKS["{alias}"] has the key {key!r}, which is ignored.',
            hint=f"The keys are {', '.join(KEYS)}. Options of Holdfast, such as `database`, belong into OPTIONS.",
            id="holdfast.W002",
        )
        for key in settings.TASKS[alias]
        if key not in KEYS
    ]


def _check_options(alias: str, options: Any) -> list[Any]:
    place = f'TASKS["{alias}"]["OPTIONS"]'
    found = []
    try:
        read_app_options(
            url=None,
            modules=(),
            namespace=options.get("namespace"),
            durability=options.get("durability"),
            codec=None,
        )
    except InvalidOption as error:
        found.append(checks.Error(f"{place}: {error}", id="holdfast.E004"))
    for path, task_options in options.get("TASKS", {}).items():
        try:
            read_task_options(task_options)
        except InvalidOption as error:
            found.append(checks.Error(f'{place}["TASKS"]["{path}"]: {error}', id="holdfast.E004"))
    return found


def _check_database(database: str) -> list[Any]:
    from holdfast.django.address import is_in_memory, settings_of, vendor_of

    settings = settings_of(database)
    vendor = vendor_of(settings)
    with suppress(ImproperlyConfigured):  # its driver is missing, which Django itself reports
        vendor = connections[database].vendor
    if vendor not in ("postgresql", "sqlite"):
        return [
            checks.Error(
                f"The engine of the database {database!r} is {settings['ENGINE']!r}. Holdfast stores jobs in "
                "PostgreSQL or SQLite.",
                hint='Name another one in TASKS: "OPTIONS": {"database": …}.',
                id="holdfast.E005",
            )
        ]
    if vendor == "postgresql":
        if find_spec("asyncpg") is not None:
            return []
        hint = "pip install 'holdfast[postgres]'"
        return [checks.Error("Jobs in PostgreSQL need the driver asyncpg.", hint=hint, id="holdfast.E006")]
    if is_in_memory(settings):
        message = f"The database {database!r} is a SQLite database in memory, and jobs need a file."
        hint = f'In tests: DATABASES["{database}"]["TEST"] = {{"NAME": BASE_DIR / "test.sqlite3"}}'
        return [checks.Error(message, hint=hint, id="holdfast.E007")]
    if (settings.get("OPTIONS") or {}).get("transaction_mode") not in ("IMMEDIATE", "EXCLUSIVE"):
        return [
            checks.Warning(
                f"Transactions in the SQLite database {database!r} begin without the write lock. One that reads first "
                'and writes or enqueues later fails ("database is locked") if a worker has written in between.',
                hint=f'DATABASES["{database}"]["OPTIONS"] = {{"transaction_mode": "IMMEDIATE"}}',
                id="holdfast.W001",
            )
        ]
    return []
