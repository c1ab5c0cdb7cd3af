"""After `migrate`, the tables of the jobs are brought up to date in every database that has jobs.

So `manage.py migrate` is enough, and so are the test databases, which Django makes with the same command. The store is
closed again right away: PostgreSQL copies a test database only while nothing is connected to it. For the same reason it
has to be closed before Django drops a test database. Django has no signal for that, so the method that drops it is
wrapped on the connection whose database was just migrated.
"""

import sys
from functools import wraps
from typing import Any

from django.db import connections

from holdfast.django.address import is_in_memory, settings_of, vendor_of
from holdfast.django.backend_apps import APPS, BackendApp


def create_tables(*, using: str, **more: Any) -> None:
    """Receives `post_migrate`."""
    if "plan" not in more:
        return  # sent by `flush`, as after each TransactionTestCase: the tables are as they were
    settings = settings_of(using)
    if vendor_of(settings) == "sqlite" and is_in_memory(settings):
        return  # an enqueue says what to do; tests without jobs need nothing
    for backend_app in APPS.using_database(using):
        backend_app.app.migrate()
        backend_app.app.close()
        if more.get("verbosity", 1) >= 1:
            message = f'  Tables of the jobs of TASKS["{backend_app.alias}"] are up to date in database {using}.\n'
            (more.get("stdout") or sys.stdout).write(message)
        _close_before_drop(connections[using].creation, backend_app)


def _close_before_drop(creation: Any, migrated: BackendApp) -> None:
    destroy = creation.destroy_test_db

    @wraps(destroy)
    def close_and_destroy(
        old_database_name: Any = None, verbosity: int = 1, keepdb: bool = False, suffix: Any = None
    ) -> None:
        for backend_app in APPS.made():
            if backend_app.database == migrated.database:
                backend_app.app.close()
        settings = creation.connection.settings_dict if suffix is None else creation.get_test_db_clone_settings(suffix)
        file = str(settings["NAME"])
        destroy(old_database_name, verbosity, keepdb, suffix)
        if creation.connection.vendor == "sqlite" and not keepdb:
            _remove_files_beside(file, migrated)

    creation.destroy_test_db = close_and_destroy


def _remove_files_beside(file: str, backend_app: BackendApp) -> None:
    """Django removes the file of a test database only. A log that is left would be read with the next file."""
    fs = backend_app.app.runtime.fs
    for suffix in ("-wal", "-shm", "-gate", "-reserve"):
        if fs.exists(file + suffix):
            fs.remove(file + suffix)
