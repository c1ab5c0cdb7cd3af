"""The folder and the processes of a PostgreSQL server of the tests. `kept_folder.py` says when it is stopped."""

import secrets
import shutil
import socket
from pathlib import Path
from typing import Self

from kept_folder import KeptFolder, started_once
from postgres_binaries import OLDEST_MAJOR, Binaries, NoServer, base_folder, find

USER = "holdfast"
# Below the ports that the kernel gives to outgoing connections, so that a stopped server can use its port again.
PORTS = range(20_000, 32_000)

Settings = dict[str, object]


class Cluster:
    """A server, in a folder that is kept while this process uses it."""

    def __init__(self, kept: KeptFolder, address: str, binaries: Binaries) -> None:
        self.address = address
        self.folder = kept.path
        self._kept = kept
        self._binaries = binaries

    @classmethod
    def of_run(cls, run: str, settings: Settings) -> Self:
        """The cluster of this run. The first process makes it, the others join it."""
        binaries = find()
        kept = KeptFolder.of_run("postgres", run, base_folder(binaries.run_as))
        with started_once(kept.path) as (facts, note):
            if facts is not None:
                return cls(kept, facts["address"], Binaries(Path(facts["programs"]), facts["major"], facts["run_as"]))
            made = cls._start(kept, binaries, settings)
            binaries = made._binaries
            note(
                {
                    "address": made.address,
                    "programs": str(binaries.folder),
                    "major": binaries.major,
                    "run_as": binaries.run_as,
                }
            )
            return made

    @classmethod
    def make(cls, settings: Settings, oldest_major: int = OLDEST_MAJOR) -> Self:
        binaries = find(oldest_major)
        return cls._start(KeptFolder.make("postgres", base_folder(binaries.run_as)), binaries, settings)

    @classmethod
    def _start(cls, kept: KeptFolder, binaries: Binaries, settings: Settings) -> Self:
        kept.path.chmod(0o711)
        binaries = binaries.copied_if_closed(kept.path / "programs")
        data = kept.path / "cluster" / "data"
        stop = [str(binaries.folder / "pg_ctl"), "stop", "-D", str(data), "-m", "immediate", "-w", "-t", "30"]
        kept.stop_by(stop, user=binaries.run_as)
        cluster = cls(kept, "", binaries)
        try:
            cluster.address = _start_new(cluster, settings)
        except BaseException:
            cluster.leave()
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
        self._kept.leave(last=last)


def _start_new(made: Cluster, settings: Settings) -> str:
    """Run initdb and the first start; return the address."""
    binaries, cluster, password = made._binaries, made.folder / "cluster", secrets.token_hex(16)
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
            made.control("start")
        except RuntimeError as error:
            # Another process may have taken the port.
            if last:
                raise NoServer(str(error)) from error
            continue
        break
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
