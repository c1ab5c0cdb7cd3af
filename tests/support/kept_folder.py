"""A temporary folder of server processes, which are killed and removed when no test process uses them any more.

A test process that uses the folder holds a shared lock on the file `users` in it. A keeper process waits for the
exclusive lock, which it gets when the last test process has ended, also after kill -9. Then it kills the servers and
removes the folder. The xdist workers of one run find the folder by a file that is named after the run and contains the
path of the folder.

Each server has a folder of its own inside, with the file `running`. The server process inherits an open file on which
it holds a lock, and the file contains its process id. So the id is that of the server for as long as the lock is held.
A server that is stopped in another way, PostgreSQL, has a command for it in the file `stop` of the kept folder.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from eventually import eventually_now

LONGEST_FOLDER = 60
"""Characters. The path of a unix socket has about 100 at most."""


class KeptFolder:
    """The folder, and this process's lock that keeps it."""

    def __init__(self, path: Path, users: int, keeper: "subprocess.Popen[bytes] | None" = None) -> None:
        self.path = path
        self._users = users
        self._keeper = keeper

    @classmethod
    def of_run(cls, name: str, run: str, base: Path | None = None) -> Self:
        """The folder of this run, in `base`. The first process makes it, the others join it."""
        run_file = _base_folder() / f"holdfast-{name}-{os.geteuid()}-{run}"
        while True:
            with run_file.open("a+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # A keeper may have removed the file between opening and locking it.
                if not run_file.exists() or os.stat(run_file).st_ino != os.fstat(file.fileno()).st_ino:
                    continue
                file.seek(0)
                joined = cls._join(Path(file.read()))
                if joined is not None:
                    return joined
                made = cls.make(name, base, run_file)
                file.truncate(0)
                file.write(str(made.path))
                return made

    @classmethod
    def _join(cls, path: Path) -> Self | None:
        try:
            users = os.open(path / "users", os.O_RDWR)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(users)
            return None
        return cls(path, users)

    @classmethod
    def make(cls, name: str, base: Path | None = None, run_file: Path | None = None) -> Self:
        path = Path(tempfile.mkdtemp(prefix=f"holdfast-{name}-", dir=base or _base_folder()))
        users = os.open(path / "users", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(users, fcntl.LOCK_SH)
        keeper = [sys.executable, __file__, str(path), str(run_file or "")]
        # It outlives this process, so it must not keep this process's output open.
        null = subprocess.DEVNULL
        process = subprocess.Popen(keeper, start_new_session=True, cwd="/", stdin=null, stdout=null, stderr=null)
        return cls(path, users, process)

    def stop_by(self, command: Sequence[str], *, user: str | None = None) -> None:
        """Let the keeper run this command, as this user, before it removes the folder."""
        (self.path / "stop").write_text(json.dumps({"command": command, "user": user}))

    def leave(self, *, last: bool = False) -> None:
        """Stop using it. `last`: no other process uses it, so wait until it is removed."""
        if self._users >= 0:
            os.close(self._users)
            self._users = -1
        if self._keeper is not None and last:
            self._keeper.wait(timeout=120)
        elif self._keeper is not None:
            outlive(self._keeper)


def outlive(process: "subprocess.Popen[bytes]") -> None:
    """This process ends before that one does. Python need not warn that nobody has waited for it."""
    process.returncode = 0


@contextmanager
def started_once(folder: Path) -> Iterator[tuple[Any, Callable[[Any], None]]]:
    """For one process at a time: what the process noted that started the servers in this folder; None: none did."""
    noted = folder / "server.json"
    with (folder / "start").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def note(facts: Any) -> None:
            noted.touch(mode=0o600)
            noted.write_text(json.dumps(facts))

        yield json.loads(noted.read_text()) if noted.exists() else None, note


def start_server(command: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    """Start a server that works in this folder. Its output goes to the file `log`."""
    running = os.open(folder / "running", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(running, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(running,),
            )
        os.ftruncate(running, 0)
        os.pwrite(running, str(process.pid).encode(), 0)
        return process
    finally:
        os.close(running)


def server_pid(folder: Path) -> int | None:
    """The process id of the server in this folder. None: it does not run."""
    with suppress(FileNotFoundError), (folder / "running").open() as running:
        try:
            fcntl.flock(running, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(running.read() or 0) or None
    return None


def signal_server(folder: Path, number: signal.Signals) -> bool:
    """Signal the server and the processes that it has forked. False: it does not run."""
    pid = server_pid(folder)
    if pid is None:
        return False
    with suppress(ProcessLookupError):
        os.killpg(pid, number)
    return True


def _has_ended(folder: Path) -> bool:
    return not signal_server(folder, signal.SIGKILL)


def _base_folder() -> Path:
    place = Path(tempfile.gettempdir())
    return place if len(str(place)) < LONGEST_FOLDER else Path("/tmp")


def _keep(path: Path, run_file: Path) -> None:
    """What the keeper does. It has a session of its own, so that Ctrl-C in a test run does not end it."""
    import pwd
    import shutil

    users = os.open(path / "users", os.O_RDWR)
    fcntl.flock(users, fcntl.LOCK_EX)
    if run_file != Path():
        with suppress(FileNotFoundError), run_file.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The file may already name the folder of a newer process.
            if file.read() == str(path):
                run_file.unlink()
    if (path / "stop").exists():
        stop = json.loads((path / "stop").read_text())
        user = stop["user"]
        group = None if user is None else pwd.getpwnam(user).pw_gid
        groups = None if user is None else ()
        subprocess.run(stop["command"], user=user, group=group, extra_groups=groups, cwd="/", check=False)
    for running in path.glob("*/running"):
        # Until it has ended, so that it writes no more files.
        eventually_now(partial(_has_ended, running.parent), f"the end of the server in {running.parent}")
    shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), Path(sys.argv[2]))
