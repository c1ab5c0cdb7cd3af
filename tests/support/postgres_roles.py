"""Roles without rights, for tests of grants.

Roles belong to the whole server, which other processes share. So each process makes roles with names of its own, and
removes them at its end if the tests did not start the server.
"""

import atexit
import os
import secrets
from functools import cache
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from postgres import PostgresServer


class Role(NamedTuple):
    name: str
    url: str
    """The address of this worker's database with the login of this role."""


def new_role(server: PostgresServer, name: str | None = None) -> Role:
    """A role that may log in, and has no other right."""
    name = name or f"holdfast_{os.getpid()}_{secrets.token_hex(4)}"
    password = secrets.token_hex(16)
    quoted = '"' + name.replace('"', '""') + '"'
    server.execute(f"CREATE ROLE {quoted} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD '{password}'")
    if not server.own:
        atexit.register(_drop, server, quoted)
    parts = urlsplit(server.url())
    place = f"{name}:{password}@{parts.netloc.rpartition('@')[2]}"
    return Role(name, urlunsplit(parts._replace(netloc=place)))


@cache
def app_role(server: PostgresServer) -> Role:
    """One role for all tests that need any role. Each test grants it what it needs."""
    return new_role(server)


def _drop(server: PostgresServer, quoted: str) -> None:
    server.execute(f"DROP OWNED BY {quoted}; DROP ROLE {quoted}")
