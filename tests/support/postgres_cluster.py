"""The folder and the processes of a PostgreSQL server that the tests start themselves.

Whoever uses it holds a shared lock on the file `users` in its folder, and a keeper process ends it when nobody does.
The xdist workers of one run meet by a file named after the run, whose content is the server's folder.
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
# Below the ports that the kernel gives to outgoing connections, so that a stopped server finds its own again.
PORTS = range(20_000, 32_000)

Settings = dict[str, object]


class Cluster:
    """A folder with a server's data, and a share in keeping it alive."""

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
    def meet(cls, run: str, settings: Settings) -> Self:
        """The one of this run: joined, or made by whoever comes first."""
        meeting = base_folder(None) / f"holdfast-postgres-{os.geteuid()}-{run}"
        while True:
            with meeting.open("a+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # A keeper may have removed the file between opening and locking it.
                if not meeting.exists() or os.stat(meeting).st_ino != os.fstat(file.fileno()).st_ino:
                    continue
                file.seek(0)
                joined = cls._join(Path(file.read()))
                if joined is not None:
                    return joined
                made = cls.make(settings, meeting)
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
            told = json.loads((folder / "server.json").read_text())
        except (BlockingIOError, FileNotFoundError):
            os.close(users)
            return None
        return cls(folder, told["address"], Binaries(Path(told["programs"]), told["major"], told["run_as"]), users)

    @classmethod
    def make(cls, settings: Settings, meeting: Path | None = None) -> Self:
        binaries = find()
        folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-", dir=base_folder(binaries.run_as)))
        folder.chmod(0o711)
        users = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(users, fcntl.LOCK_SH)
        binaries = binaries.copied_if_closed(folder / "programs")
        # From here on the folder goes when we do.
        keeper = [sys.executable, str(Path(__file__).with_name("postgres_keeper.py")), str(folder)]
        keeper += [str(meeting or ""), str(binaries.folder / "pg_ctl"), binaries.run_as or ""]
        # It outlives us: whoever reads our output must not wait for it.
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(
            keeper, start_new_session=True, cwd="/", stdin=nothing, stdout=nothing, stderr=nothing
        )
        cluster = cls(folder, "", binaries, users, process)
        try:
            cluster.address = _start_new(folder, binaries, settings)
        except BaseException:
            cluster.leave(last=True)
            raise
        return cluster

    def control(self, what: str, *more: str) -> None:
        cluster = self.folder / "cluster"
        data, log = str(cluster / "data"), str(cluster / "log")
        answer = self._binaries.run("pg_ctl", what, "-D", data, "-l", log, "-w", "-t", "60", *more, cwd=cluster)
        if answer.returncode != 0:
            raise RuntimeError(f"pg_ctl {what}: {answer.stdout}{_tail(cluster / 'log')}")

    def leave(self, *, last: bool = False) -> None:
        """Use it no longer; the last one waits until it is gone."""
        if self._users >= 0:
            os.close(self._users)
            self._users = -1
        if last and self._keeper is not None:
            self._keeper.wait(timeout=120)


def _start_new(folder: Path, binaries: Binaries, settings: Settings) -> str:
    """initdb and a first start; the address."""
    cluster, password = folder / "cluster", secrets.token_hex(16)
    cluster.mkdir()
    secret = cluster / "password"
    secret.write_text(password)
    if binaries.run_as is not None:
        for place in (cluster, secret):
            shutil.chown(place, binaries.run_as)
    data = cluster / "data"
    # md5: a password keeps other users of the machine out, and costs a new connection next to nothing.
    arguments = [
        "-D",
        str(data),
        "-U",
        USER,
        "-A",
        "md5",
        f"--pwfile={secret}",
        "-E",
        "UTF8",
        "--locale=C",
        "--no-sync",
    ]
    made = binaries.run("initdb", *arguments, cwd=cluster)
    if made.returncode != 0:
        raise NoServer(f"initdb failed: {made.stdout}")
    for last in (False, False, True):
        port = free_port()
        lines = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", **settings}
        (data / "postgresql.auto.conf").write_text("".join(f"{name} = '{value}'\n" for name, value in lines.items()))
        address = f"postgresql://{USER}:{password}@127.0.0.1:{port}"
        made_of = Cluster(folder, address, binaries)
        try:
            made_of.control("start")
        except RuntimeError as error:
            # Somebody may have been faster with the port.
            if last:
                raise NoServer(str(error)) from error
            continue
        break
    told = {"address": address, "programs": str(binaries.folder), "major": binaries.major, "run_as": binaries.run_as}
    described = folder / "server.json"
    described.touch(mode=0o600)
    described.write_text(json.dumps(told))
    return address


def free_port() -> int:
    """A port on loopback that nobody listens on, and that no outgoing connection will take."""
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
