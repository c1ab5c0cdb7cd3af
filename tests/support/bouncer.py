"""PgBouncer in front of a test server, if the machine has it: a proxy that shares sessions between its clients."""

import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import psycopg
from postgres import PostgresServer
from postgres_binaries import base_folder, unprivileged_user
from postgres_cluster import free_port

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
WHY_NOT = "PgBouncer is not installed here: apt install pgbouncer"


class Bouncer:
    """A context manager. `mode` is `transaction` or `session`, `sessions` their number with the server."""

    def __init__(self, server: PostgresServer, mode: str, *, sessions: int = 3, ignored_settings: str = "") -> None:
        assert PROGRAM is not None
        parts = urlsplit(server.url())
        self.port = free_port()
        self._server = server
        run_as = unprivileged_user()
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-bouncer-", dir=base_folder(run_as)))
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": mode,
            "default_pool_size": sessions,
            "max_client_conn": 200,
            "ignore_startup_parameters": ignored_settings,
            "logfile": self._folder / "log",
        }
        upstream = f"host={parts.hostname} port={server.port} user={parts.username} password={parts.password}"
        lines = ["[databases]", f"{server.database} = {upstream}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items() if value != ""]
        file = self._folder / "bouncer.ini"
        file.write_text("\n".join([*lines, "unix_socket_dir =", ""]))
        argv = [PROGRAM, "-q", str(file)]
        if run_as is not None:
            for place in (self._folder, file):
                shutil.chown(place, run_as)
            argv += ["-u", run_as]
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @property
    def url(self) -> str:
        return self._server.url(port=self.port)

    def __enter__(self) -> Self:
        pause = threading.Event()
        for _ in range(500):
            try:
                psycopg.connect(self.url, autocommit=True).close()
            except psycopg.OperationalError:
                pause.wait(0.02)
            else:
                return self
        log = self._folder / "log"
        text = log.read_text() if log.exists() else "its log is empty"
        self.close()
        raise RuntimeError(f"PgBouncer does not answer: {text}")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        shutil.rmtree(self._folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
