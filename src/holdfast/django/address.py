"""The address of a database of Django's, as Holdfast writes it.

It is read from the connection settings each time, and never kept: Django's test runner renames the databases while it
runs, and a kept address would be that of the production database.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

PASSED_ON = (
    "passfile",
    "service",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslpassword",
    "sslrootcert",
    "target_session_attrs",
)
"""Keys of a database's OPTIONS that both libpq and the driver of the PostgreSQL engine know."""


def database_address(database: str = "default") -> Callable[[], str]:
    """For an App in a Django project: `jobs = App(database_address("default"))`. The address is read at each use."""
    return lambda: address_of(database)


def address_of(database: str) -> str:
    """The address of the database with this alias, as it is now."""
    return _address(database, settings_of(database))


def settings_of(database: str) -> Mapping[str, Any]:
    """The settings of a database. The test runner changes them while it runs."""
    try:
        settings: Mapping[str, Any] = connections.settings[database]
    except KeyError:
        known = ", ".join(sorted(connections.settings))
        raise ConnectionDoesNotExist(f"There is no database {database!r} in DATABASES; there is: {known}.") from None
    return settings


def vendor_of(settings: Mapping[str, Any]) -> str:
    """`postgresql`, `sqlite`, or what else the ENGINE is."""
    engine = str(settings.get("ENGINE", "")).rpartition(".")[2]
    return {"sqlite3": "sqlite", "postgis": "postgresql", "spatialite": "sqlite"}.get(engine, engine)


def is_in_memory(settings: Mapping[str, Any]) -> bool:
    name = str(settings["NAME"])
    return name == ":memory:" or "mode=memory" in name


def _address(database: str, settings: Mapping[str, Any]) -> str:
    vendor = vendor_of(settings)
    if vendor == "sqlite":
        if is_in_memory(settings):
            raise ImproperlyConfigured(
                f"The database {database!r} is a SQLite database in memory, and jobs need a file. In tests, set "
                f'DATABASES["{database}"]["TEST"] = {{"NAME": BASE_DIR / "test.sqlite3"}}.'
            )
        return f"sqlite:///{quote(os.path.abspath(settings['NAME']))}"
    if vendor in ("postgresql", "postgresql_psycopg2"):
        return _postgres(settings)
    from django.db import connections as opened  # a backend of another package: it knows its vendor

    if opened[database].vendor == "postgresql":
        return _postgres(settings)
    raise ImproperlyConfigured(f"The database {database!r} is on {vendor}. Jobs are stored in PostgreSQL or SQLite.")


def _postgres(settings: Mapping[str, Any]) -> str:
    host = str(settings.get("HOST") or "")
    options = {key: value for key, value in (settings.get("OPTIONS") or {}).items() if key in PASSED_ON}
    if host.startswith("/"):
        options["host"], host = host, ""
    login = quote(str(settings.get("USER") or ""), safe="")
    if settings.get("PASSWORD"):
        login += f":{quote(str(settings['PASSWORD']), safe='')}"
    port = f":{settings['PORT']}" if settings.get("PORT") and host else ""
    if settings.get("PORT") and not host:
        options["port"] = settings["PORT"]
    place = f"{login}@{host}{port}" if login else f"{host}{port}"
    query = f"?{urlencode(options)}" if options else ""
    return f"postgresql://{place}/{quote(str(settings.get('NAME') or ''), safe='')}{query}"
