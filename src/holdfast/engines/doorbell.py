"""The doorbell: bells between the processes of one host that share a file.

Each process has a record in a folder named after the file: a datagram socket to be rung at, and beside it a lock
that it holds for as long as it lives. Ringing is one datagram to every other socket; a full one has been rung
already, a dead one is left alone. Since the kernel lets go of the lock when a process ends, however it ends, anybody
can tell at once whether the owner of a record is gone: nobody has to wait for a lease.

Datagrams may be lost; they are hints. Where there are no such sockets (Windows) nothing rings and pollers poll.
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from holdfast.engines.bells import EVERYTHING
from holdfast.runtime import FileLock, Runtime

LARGEST = 32_768
"""Bytes of one datagram; more bells than that ring as everything."""
BETWEEN = "\0"
"""No name has it."""
STOP = b"\0\0"
OLD = 24 * 3600.0
"""Seconds after which the record of a process that is gone is cleaned away."""


class Doorbell:
    """This process's record, and the way to the others'."""

    def __init__(self, file: str, runtime: Runtime, heard: Callable[[frozenset[str]], None]) -> None:
        self._runtime = runtime
        self._heard = heard
        self._folder = runtime.fs.private_folder(blake2b(identity(file).encode(), digest_size=8).hexdigest())
        self.name = f"{os.getpid()}-{runtime.token_bytes(4).hex()}"
        self._lock = self._take_record()
        self._others: tuple[Path, ...] = ()
        self._listed = -1
        self._out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._out.setblocking(False)
        self._in = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._in.bind(str(self._path("sock")))
        except OSError:
            self._in.close()
            self._out.close()
            self.forget(self.name)
            self._lock.close()
            raise
        self._thread = runtime.thread(self._listen, name="holdfast-doorbell")
        self._sweep()

    def _path(self, ending: str, name: str | None = None) -> Path:
        return self._folder / f"{name or self.name}.{ending}"

    def _take_record(self) -> FileLock:
        """Hold the lock of a record that stands in the folder: another may have cleaned it away in between."""
        while True:
            lock = self._runtime.fs.lock(self._path("lock"))
            assert lock is not None
            if self._runtime.fs.exists(self._path("lock")):
                return lock
            lock.close()

    def _listen(self) -> None:
        while True:
            data = self._in.recv(LARGEST + 1)
            if data in (STOP, b""):
                return
            self._heard(frozenset(data.decode("utf-8", "replace").split(BETWEEN)))

    def ring(self, bells: frozenset[str]) -> None:
        """Ring at every other process."""
        others = self._list_others()
        if not others:
            return
        data = BETWEEN.join(bells).encode()
        if len(data) > LARGEST:
            data = EVERYTHING.encode()
        for path in others:
            try:
                self._out.sendto(data, str(path))
            except ConnectionRefusedError:
                self._runtime.fs.remove(path)  # nobody listens there any more
            except OSError:
                pass  # full: it has been rung and has not looked yet; or just gone

    def _list_others(self) -> tuple[Path, ...]:
        try:
            changed = os.stat(self._folder).st_mtime_ns
        except FileNotFoundError:
            return ()  # someone has cleaned up; pollers poll
        if changed != self._listed:
            names = self._runtime.fs.listdir(self._folder)
            self._others = tuple(
                self._folder / name for name in names if name.endswith(".sock") and name != f"{self.name}.sock"
            )
            self._listed = changed
        return self._others

    def _sweep(self) -> None:
        """Clean away records whose processes have long been gone."""
        now = self._runtime.wall() / 1_000_000
        for name in self._runtime.fs.listdir(self._folder):
            stem, _, ending = name.rpartition(".")
            with suppress(FileNotFoundError):
                if ending == "lock" and now - os.stat(self._folder / name).st_mtime > OLD and self.is_gone(stem):
                    self.forget(stem)

    def is_gone(self, name: str) -> bool:
        """Whether the process of this record is known to have ended."""
        if not name or name == self.name or not self._runtime.fs.exists(self._path("lock", name)):
            return False
        lock = self._runtime.fs.lock(self._path("lock", name), wait=False)
        if lock is None:
            return False
        lock.close()
        return True

    def forget(self, name: str) -> None:
        """Remove the record of a process that is gone, once nobody needs it any more."""
        for ending in ("sock", "lock"):
            self._runtime.fs.remove(self._path(ending, name))

    def close(self) -> None:
        self._out.setblocking(True)
        try:
            self._out.sendto(STOP, str(self._path("sock")))
            self._thread.join()
        except OSError:
            self._in.shutdown(socket.SHUT_RDWR)  # the way to ourselves is gone: wake the thread by force
            self._thread.join()
        self._in.close()
        self._out.close()
        self.forget(self.name)
        self._lock.close()


def has_sockets() -> bool:
    """Whether this system has sockets between processes. Without them nothing rings, and pollers poll."""
    return hasattr(socket, "AF_UNIX")


def identity(file: str) -> str:
    """The same for every path that leads to the file."""
    status = os.stat(file)
    return f"{status.st_dev}:{status.st_ino}"
