"""The folder and the processes of a PostgreSQL server that the tests start.

A process that uses the server holds a shared lock on the file `users` in its folder. A keeper process stops the server
when no process holds that lock. The xdist workers of one run find the server by a file that is named after the run and
contains the path of the server's folder.
"""

import fcntl
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from postgres_binaries import Binaries, NoServer, base_folder, find

USER = "holdfast"
# Below the ports that the kernel gives to outgoing connections, so that a stopped server can use its port again.
PORTS = range(20_000, 32_000)

Settings = dict[str, object]


class Cluster:
    """A server's folder, and this process's lock that keeps the server running."""

    def __init__(
        self,
        folder: Path,
        address: str,
        binaries: Binaries,
        users: int = -1,
        keeper: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        self.address = address
        self.folder = folder
        self._binaries = binaries
        self._users = users
        self._keeper = keeper

    @classmethod
    def of_run(cls, run: str, settings: Settings) -> Self:
        """The cluster of this run. The first process makes it, the others join it."""
        run_file = base_folder(None) / f"holdfast-postgres-{os.geteuid()}-{run}"
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
                made = cls.make(settings, run_file)
                file.truncate(0)
                file.write(str(made.folder))
                return made

    @classmethod
    def _join(cls, folder: Path) -> Self | None:
        try:
            users = os.open(folder / "users", os.O_RDWR)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
            server = json.loads((folder / "server.json").read_text())
        except (BlockingIOError, FileNotFoundError):
            os.close(users)
            return None
        binaries = Binaries(Path(server["programs"]), server["major"], server["run_as"])
        return cls(folder, server["address"], binaries, users)

    @classmethod
    def make(cls, settings: Settings, run_file: Path | None = None) -> Self:
        binaries = find()
        folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-", dir=base_folder(binaries.run_as)))
        folder.chmod(0o711)
        users = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(users, fcntl.LOCK_SH)
        binaries = binaries.copied_if_closed(folder / "programs")
        # From here on the folder is removed when this process ends.
        keeper = [sys.executable, str(Path(__file__).with_name("postgres_keeper.py")), str(folder)]
        keeper += [str(run_file or ""), str(binaries.folder / "pg_ctl"), binaries.run_as or ""]
        # It outlives this process, so it must not keep this process's output open.
        null = subprocess.DEVNULL
        process = subprocess.Popen(keeper, start_new_session=True, cwd="/", stdin=null, stdout=null, stderr=null)
        cluster = cls(folder, "", binaries, users, process)
        try:
            cluster.address = _start_new(folder, binaries, settings)
        except BaseException:
            cluster.leave(last=True)
            raise
        return cluster

    def control(self, action: str, *options: str) -> None:
        cluster = self.folder / "cluster"
        data, log = str(cluster / "data"), str(cluster / "log")
        answer = self._binaries.run("pg_ctl", action, "-D", data, "-l", log, "-w", "-t", "60", *options, cwd=cluster)
        if answer.returncode != 0:
            raise RuntimeError(f"pg_ctl {action}: {answer.stdout}{_tail(cluster / 'log')}")

    def leave(self, *, last: bool = False) -> None:
        """Stop using it. `last`: no other process uses it, so wait until it is removed."""
        if self._users >= 0:
            os.close(self._users)
            self._users = -1
        if last and self._keeper is not None:
            self._keeper.wait(timeout=120)


def _start_new(folder: Path, binaries: Binaries, settings: Settings) -> str:
    """Run initdb and the first start; return the address."""
    cluster, password = folder / "cluster", secrets.token_hex(16)
    cluster.mkdir()
    password_file = cluster / "password"
    password_file.write_text(password)
    if binaries.run_as is not None:
        for place in (cluster, password_file):
            shutil.chown(place, binaries.run_as)
    data = cluster / "data"
    # md5: a password keeps other users of the machine out, and the check takes a new connection little time.
    arguments = [
        "-D",
        str(data),
        "-U",
        USER,
        "-A",
        "md5",
        f"--pwfile={password_file}",
        "-E",
        "UTF8",
        "--locale=C",
        "--no-sync",
    ]
    initdb = binaries.run("initdb", *arguments, cwd=cluster)
    if initdb.returncode != 0:
        raise NoServer(f"initdb failed: {initdb.stdout}")
    for last in (False, False, True):
        port = free_port()
        lines = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", **settings}
        (data / "postgresql.auto.conf").write_text("".join(f"{name} = '{value}'\n" for name, value in lines.items()))
        address = f"postgresql://{USER}:{password}@127.0.0.1:{port}"
        try:
            Cluster(folder, address, binaries).control("start")
        except RuntimeError as error:
            # Another process may have taken the port.
            if last:
                raise NoServer(str(error)) from error
            continue
        break
    server = {"address": address, "programs": str(binaries.folder), "major": binaries.major, "run_as": binaries.run_as}
    server_file = folder / "server.json"
    server_file.touch(mode=0o600)
    server_file.write_text(json.dumps(server))
    return address


def free_port() -> int:
    """A free loopback port that the kernel will not give to an outgoing connection."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:]) if log.exists() else ""
