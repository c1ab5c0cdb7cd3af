"""The doorbell: bells and messages between the processes of one host that share a file.

Each process has a record in a folder named after the file: a datagram socket to be rung at, and beside it a lock
that it holds for as long as it lives. Ringing is one datagram to every other socket; a full one has been rung
already, a dead one is left alone. Since the kernel lets go of the lock when a process ends, however it ends, anybody
can tell at once whether the owner of a record is gone: nobody has to wait for a lease.

A process that wants to hear of what happens elsewhere has a second socket for that (`Earshot`): bells must get through
however much there is to tell.

Datagrams may be lost; they are hints. Where there are no such sockets (Windows) nothing rings and pollers poll.
"""

import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from holdfast.engines.topics import EVERY_TOPIC
from holdfast.runtime import FileLock, Runtime

LARGEST = 32_768
"""Bytes of one datagram; more bells than that ring as everything."""
BETWEEN = "\0"
"""No name has it."""
STOP = b"\0\0"
OLD = 24 * 3600.0
"""Seconds after which the record of a process that is gone is cleaned away."""
EARS = "ears"
"""The bell of a process that has begun or ceased to listen: look who listens."""
FRESH = 100_000_000
"""Nanoseconds for which another change in a folder may leave no trace: file systems' clocks tick slowly."""


# N6: a socket for notifications, and a lock that others can look at.
class Ear:
    """A datagram socket of this process, and the thread that listens at it."""

    def __init__(self, path: Path, runtime: Runtime, heard: Callable[[bytes], None], name: str) -> None:
        self._path = path
        self._heard = heard
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(str(path))
        except OSError:
            self._socket.close()
            raise
        self._thread = runtime.thread(self._listen, name=name)

    def _listen(self) -> None:
        while True:
            data = self._socket.recv(LARGEST + 1)
            if data in (STOP, b""):
                return
            self._heard(data)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            try:
                out.sendto(STOP, str(self._path))
            except OSError:
                self._socket.shutdown(socket.SHUT_RDWR)  # the way to ourselves is gone: wake the thread by force
        self._thread.join()
        self._socket.close()


class Doorbell:
    """This process's record, and the way to the others'."""

    def __init__(
        self, file: str, runtime: Runtime, heard: Callable[[frozenset[str]], None], *, namespace: str = ""
    ) -> None:
        self._runtime = runtime
        self._heard = heard
        self._folder = Folder(
            runtime.fs.private_folder(blake2b(identity(file).encode(), digest_size=8).hexdigest()), runtime
        )
        self.name = f"{os.getpid()}-{runtime.token_bytes(4).hex()}"
        self._lock = self._take_record()
        self._others: tuple[Path, ...] = ()
        self._listed = -1
        self.earshot = Earshot(self._folder, self.name, namespace, runtime, lambda: self.notify(frozenset({EARS})))
        try:
            self._ear = Ear(self._path("sock"), runtime, self._rung, "holdfast-doorbell")
        except OSError:
            self.forget(self.name)
            self._lock.close()
            raise
        self._out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._out.setblocking(False)
        self._list_others()
        self._sweep()

    def _path(self, ending: str, name: str | None = None) -> Path:
        return self._folder.path / f"{name or self.name}.{ending}"

    def _take_record(self) -> FileLock:
        """Hold the lock of a record that stands in the folder: another may have cleaned it away in between."""
        while True:
            lock = self._runtime.fs.lock(self._path("lock"))
            assert lock is not None
            if self._runtime.fs.exists(self._path("lock")):
                return lock
            lock.close()

    def _rung(self, data: bytes) -> None:
        bells = frozenset(data.decode("utf-8", "replace").split(BETWEEN))
        if EARS in bells:
            self.earshot.look()
        self._heard(bells)

    def notify(self, bells: frozenset[str]) -> None:
        """Ring at every other process."""
        others = self._list_others()
        if not others:
            return
        data = BETWEEN.join(bells).encode()
        if len(data) > LARGEST:
            data = EVERY_TOPIC.encode()
        for path in others:
            try:
                self._out.sendto(data, str(path))
            except ConnectionRefusedError:
                self._runtime.fs.remove(path)  # nobody listens there any more
            except OSError:
                pass  # full: it has been rung and has not looked yet; or just gone

    def _list_others(self) -> tuple[Path, ...]:
        changed = self._folder.changed()
        if changed < 0 or changed != self._listed:
            self._others = tuple(self._path("sock", name) for name in self._folder.names("sock") if name != self.name)
            self._listed = changed
            self.earshot.look()
        return self._others

    def _sweep(self) -> None:
        """Clean away records whose processes have long been gone."""
        now = self._runtime.wall() / 1_000_000
        for name in self._folder.names("lock"):
            with suppress(FileNotFoundError):
                if now - os.stat(self._path("lock", name)).st_mtime > OLD and self.is_gone(name):
                    self.forget(name)

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
        for ending in ("kinds", "ears", "sock", "lock"):
            self._runtime.fs.remove(self._path(ending, name))

    def close(self) -> None:
        self.earshot.close()
        self._ear.close()
        self._out.close()
        self.forget(self.name)
        self._lock.close()


class Earshot:
    """Who wants to hear of what happens here, and our own ears for what happens elsewhere.

    A process that listens has a socket, `ears`, and beside it a file, `kinds`, that says what for. A message is one
    datagram to each of them. One that does not keep up loses messages, and as each is reached through a socket of its
    own, it keeps none from the others. One that is gone is forgotten.
    """

    def __init__(
        self, folder: "Folder", name: str, namespace: str, runtime: Runtime, announce: Callable[[], None]
    ) -> None:
        self._folder = folder
        self._name = name
        self._namespace = namespace
        self._runtime = runtime
        self._announce = announce
        self._telling = runtime.lock()
        self._hearing = runtime.lock()
        self._listeners: dict[str, frozenset[str]] = {}
        self.feed_kinds: frozenset[str] = frozenset()
        """What the others listen for."""
        self._lines: dict[str, socket.socket] = {}
        self._ear: Ear | None = None
        self._hear: Callable[[bytes], None] = _ignore

    def _path(self, ending: str, name: str) -> Path:
        return self._folder.path / f"{name}.{ending}"

    # Telling

    def look(self) -> None:
        """Something has changed in the folder."""
        found = {name: self._kinds_of(name) for name in self._folder.names("kinds") if name != self._name}
        self._set_listeners({name: kinds for name, kinds in found.items() if kinds})

    def _kinds_of(self, name: str) -> frozenset[str]:
        """What this process listens for; nothing if it works in another namespace."""
        try:
            namespace, *kinds = self._runtime.fs.read_bytes(self._path("kinds", name)).decode().split(BETWEEN)
        except (OSError, UnicodeDecodeError):
            return frozenset()
        return frozenset(kinds if namespace == self._namespace else ())

    def _set_listeners(self, listeners: dict[str, frozenset[str]]) -> None:
        self._listeners = listeners
        self.feed_kinds = frozenset[str]().union(*listeners.values())

    def publish(self, message: bytes) -> None:
        with self._telling:
            listeners = self._listeners
            for name in self._lines.keys() - listeners:
                self._lines.pop(name).close()
            for name in listeners:
                self._send(name, message)

    def _send(self, name: str, message: bytes) -> None:
        try:
            line = self._lines.get(name)
            if line is None:
                line = self._lines[name] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                line.setblocking(False)
                line.connect(str(self._path("ears", name)))
            line.send(message)
        except (ConnectionError, FileNotFoundError):
            self._forget(name)
        except OSError:
            pass  # full: it does not keep up, and has to do without

    def _forget(self, name: str) -> None:
        """Its process is gone, and will not come back under this name."""
        self._lines.pop(name).close()
        self._set_listeners({other: kinds for other, kinds in self._listeners.items() if other != name})
        for ending in ("kinds", "ears"):
            self._runtime.fs.remove(self._path(ending, name))

    # Hearing

    def listen_to_feed(self, kinds: Iterable[str], hear: Callable[[bytes], None]) -> None:
        wanted = sorted(kinds)
        with self._hearing:
            self._hear = hear if wanted else _ignore
            marker = self._path("kinds", self._name)
            if wanted and self._ear is None:
                self._ear = Ear(self._path("ears", self._name), self._runtime, self._heard, "holdfast-ears")
            if wanted:
                self._runtime.fs.write_atomic(marker, BETWEEN.join((self._namespace, *wanted)).encode())
            elif self._ear is not None:
                self._runtime.fs.remove(marker)
            else:
                return
        self._announce()

    def _heard(self, message: bytes) -> None:
        self._hear(message)

    def close(self) -> None:
        self.listen_to_feed((), _ignore)
        if self._ear is not None:
            self._ear.close()
        with self._telling:
            self._set_listeners({})
            for line in self._lines.values():
                line.close()
            self._lines = {}


def _ignore(message: bytes) -> None:
    """Nobody listens any more."""


class Folder:
    """The records of all processes that share a file."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self.path = path
        self._runtime = runtime

    def changed(self) -> int:
        """Another number whenever something has come or gone; -1: that cannot be said, so look."""
        try:
            changed = os.stat(self.path).st_mtime_ns
        except FileNotFoundError:
            return -1
        now = (self._runtime.wall() - self._runtime.clock_offset) * 1_000
        return -1 if abs(now - changed) < FRESH else changed

    def names(self, ending: str) -> list[str]:
        """The processes that have a file with this ending."""
        try:
            files = self._runtime.fs.listdir(self.path)
        except FileNotFoundError:
            return []  # someone has cleaned up; pollers poll
        return [file.removesuffix(f".{ending}") for file in files if file.endswith(f".{ending}")]


def has_sockets() -> bool:
    """Whether this system has sockets between processes. Without them nothing topics, and pollers poll."""
    return hasattr(socket, "AF_UNIX")


def identity(file: str) -> str:
    """The same for every path that leads to the file."""
    status = os.stat(file)
    return f"{status.st_dev}:{status.st_ino}"
