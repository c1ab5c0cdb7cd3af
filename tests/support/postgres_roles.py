"""Roles that may do nothing but log in, for tests of what they are then given.

Roles belong to the whole server, which other processes share: each process names its own, and on a server that is not
the tests' own it removes them at its end.
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
    """The address of this worker's database, for this role."""


def new_role(server: PostgresServer, name: str | None = None) -> Role:
    """A role that can connect, and no more."""
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
    """One for all tests that only need some role; which namespaces it may use, they say themselves."""
    return new_role(server)


def _drop(server: PostgresServer, quoted: str) -> None:
    server.execute(f"DROP OWNED BY {quoted}; DROP ROLE {quoted}")
