"""Stops a PostgreSQL server of the tests when no process uses it any more.

Every process that uses the server holds a shared lock on the file `users` in its folder. The kernel releases the lock
when the process ends, also after kill -9. So this process waits for the exclusive lock, then stops the server and
removes the folder. It runs in a session of its own, so that Ctrl-C in a test run does not end it.
"""

import fcntl
import os
import pwd
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def main(folder: Path, run_file: Path, pg_ctl: str, run_as: str) -> None:
    users = os.open(folder / "users", os.O_RDWR)
    fcntl.flock(users, fcntl.LOCK_EX)
    if run_file != Path():
        remove_run_file(run_file, folder)
    stop_and_remove(folder, pg_ctl, run_as or None)


def remove_run_file(run_file: Path, folder: Path) -> None:
    """Remove the file by which other processes find this server, unless it names a newer one."""
    with suppress(FileNotFoundError), run_file.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.read() == str(folder):
            run_file.unlink()


def stop_and_remove(folder: Path, pg_ctl: str, run_as: str | None) -> None:
    cluster = folder / "cluster"
    if (cluster / "data" / "postmaster.pid").exists():
        subprocess.run(
            [pg_ctl, "stop", "-D", str(cluster / "data"), "-m", "immediate", "-w", "-t", "30"],
            user=run_as,
            group=None if run_as is None else pwd.getpwnam(run_as).pw_gid,
            extra_groups=None if run_as is None else [],
            cwd=cluster,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])
