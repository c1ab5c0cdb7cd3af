"""Ends a private PostgreSQL server when nobody uses it any more, however its users ended.

Every user of the server holds a shared lock on the file `users` in its folder. The kernel drops such a lock with the
process that holds it, after kill -9 too. So this process waits for the lock all to itself, then stops the server and
removes the folder. It is a process of its own, in a session of its own, so that Ctrl-C in a test run does not reach it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def main(folder: Path, meeting: Path, pg_ctl: str, run_as: str) -> None:
    users = os.open(folder / "users", os.O_RDWR)
    fcntl.flock(users, fcntl.LOCK_EX)
    if meeting != Path():
        leave(meeting, folder)
    end(folder, pg_ctl, run_as or None)


def leave(meeting: Path, folder: Path) -> None:
    """Whoever comes now finds no meeting place, or one that leads to a newer server."""
    with suppress(FileNotFoundError), meeting.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.read() == str(folder):
            meeting.unlink()


def end(folder: Path, pg_ctl: str, run_as: str | None) -> None:
    cluster = folder / "cluster"
    if (cluster / "data" / "postmaster.pid").exists():
        subprocess.run(
            [pg_ctl, "stop", "-D", str(cluster / "data"), "-m", "immediate", "-w", "-t", "30"],
            user=run_as,
            group=None if run_as is None else _group(run_as),
            extra_groups=None if run_as is None else [],
            cwd=cluster,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    shutil.rmtree(folder, ignore_errors=True)


def _group(user: str) -> int:
    import pwd

    return pwd.getpwnam(user).pw_gid


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])
