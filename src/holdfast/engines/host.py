"""The processes of one host that share a file: which of them live, notifications and feed messages between them.

Each process has a record in a folder named after the file: a datagram socket that receives notifications, and a lock
file that the process holds as long as it lives. The kernel releases the lock when the process ends, however it ends. So
every other process can test at once whether the owner of a record is alive, without waiting for a lease to expire.

A notification is one datagram to the socket of every other process. If a socket is full, its process has unread
notifications and will look anyway; if a socket is dead, the sender removes it.

A process that listens to the feed has a second socket for it (`HostFeed`), so that many messages never displace a
notification.

Datagrams may be lost: nothing depends on them alone. On systems without Unix sockets (Windows) processes only poll.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from holdfast import forks
from holdfast.engines.topics import EVERY_TOPIC
from holdfast.file_locks import FileLock
from holdfast.runtime import Runtime

_logger = logging.getLogger("holdfast")

MAX_DATAGRAM_BYTES = 32_768
"""Longer than the topics of almost every batch. A longer list of topics is sent as `EVERY_TOPIC`."""
SEPARATOR = "\0"
"""Between the topics of a datagram. No topic contains it."""
CLOSE_TIMEOUT_S = 5.0
"""`close` waits this long for the thread of a socket, which may still handle a notification."""
STOP = b"\0\0"
"""The datagram that ends a listener's thread. No list of topics encodes to it."""
REMOVE_RECORD_AFTER_S = 24 * 3600.0
"""Records of ended processes stay this long, because workers' leases are matched with them."""
FEED_CHANGED = "feed"
"""The topic of a process that has begun or stopped to listen to the feed: read again which processes listen."""
MTIME_RESOLUTION_NS = 100_000_000
"""A second change of a folder within this time may leave its modification time as it is: file systems' clocks tick in
steps of up to 10 ms, and this is ten times that."""


# N6: a socket for notifications, and a lock that other processes test.
class DatagramListener:
    """A datagram socket of this process, and the thread that receives from it."""

    def __init__(self, path: Path, runtime: Runtime, on_datagram: Callable[[bytes], None], thread_name: str) -> None:
        self._path = path
        self._on_datagram = on_datagram
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(str(path))
        except OSError:
            self._socket.close()
            raise
        forks.call_in_child(self._socket.close)  # PF2: else the socket of a dead process would still accept datagrams
        self._thread = runtime.thread(self._receive, name=thread_name)

    def _receive(self) -> None:
        while True:
            data = self._socket.recv(MAX_DATAGRAM_BYTES + 1)
            if data in (STOP, b""):
                return
            try:
                self._on_datagram(data)
            except Exception:  # PF3: this thread ends only by `close`
                _logger.exception("A message from another process could not be handled.")

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            try:
                sender.sendto(STOP, str(self._path))
            except OSError:
                self._socket.shutdown(socket.SHUT_RDWR)  # the path is gone, or the socket is full: end `recv` this way
        self._thread.join(CLOSE_TIMEOUT_S)
        self._socket.close()


class ProcessRecords:
    """The record of this process, and access to the records of the others that share a store.

    `identity` is the same text in all of them.
    """

    def __init__(self, identity: str, runtime: Runtime) -> None:
        self._runtime = runtime
        folder_name = blake2b(identity.encode(), digest_size=8).hexdigest()
        self._folder = RecordFolder(runtime.fs.private_folder(folder_name), runtime)
        self.name, self._lock = self._take_record()
        self.outlives_close = False
        """The lock file stays after `close`, unlocked: then others see that this process has ended."""

    def _path(self, suffix: str, name: str | None = None) -> Path:
        return self._folder.path / f"{name or self.name}.{suffix}"

    def _take_record(self) -> tuple[str, FileLock]:
        """Lock a new record. Another process may lock or remove the file before we lock it: then take another name."""
        while True:
            name = f"{os.getpid()}-{self._runtime.token_bytes(4).hex()}"
            path = self._folder.path / f"{name}.lock"
            lock = self._runtime.fs.lock(path)
            if lock is not None and self._runtime.fs.exists(path):
                return name, lock
            if lock is not None:
                lock.close()

    def names(self) -> list[str]:
        """The processes that have a record, ended ones too."""
        return self._folder.names("lock")

    def has_ended(self, name: str) -> bool:
        """True if the process of this record has certainly ended."""
        if not name or name == self.name or not self._runtime.fs.exists(self._path("lock", name)):
            return False
        lock = self._runtime.fs.lock(self._path("lock", name))
        if lock is None:
            return False
        lock.close()
        return True

    def remove_old_records(self) -> None:
        now_s = self._runtime.wall() / 1_000_000
        for name in self.names():
            with suppress(FileNotFoundError):
                age_s = now_s - os.stat(self._path("lock", name)).st_mtime
                if age_s > REMOVE_RECORD_AFTER_S and self.has_ended(name):
                    self.remove_record(name)

    def remove_record(self, name: str, suffixes: Iterable[str] = ("kinds", "feed", "sock", "lock")) -> None:
        for suffix in suffixes:
            self._runtime.fs.remove(self._path(suffix, name))

    def close(self) -> None:
        if self.outlives_close:
            self.remove_record(self.name, ("kinds", "feed", "sock"))
        else:
            self.remove_record(self.name)
        self._lock.close()


class HostProcesses(ProcessRecords):
    """The processes that share a file: their records, and notifications between them."""

    def __init__(
        self, file: str, runtime: Runtime, on_notification: Callable[[frozenset[str]], None], *, namespace: str = ""
    ) -> None:
        super().__init__(_file_identity(file), runtime)
        self._on_notification = on_notification
        self._others: tuple[Path, ...] = ()
        self._others_version = -1
        self.feed = HostFeed(
            self._folder, self.name, namespace, runtime, lambda: self.notify(frozenset({FEED_CHANGED}))
        )
        try:
            self._listener = DatagramListener(self._path("sock"), runtime, self._receive, "holdfast-notifications")
        except OSError:
            super().close()
            raise
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._other_sockets()
        self.remove_old_records()

    def _receive(self, data: bytes) -> None:
        topics = frozenset(data.decode("utf-8", "replace").split(SEPARATOR))
        if FEED_CHANGED in topics:
            self.feed.refresh_listeners()
        self._on_notification(topics)

    def notify(self, topics: frozenset[str]) -> None:
        """Send the topics to every other process."""
        sockets = self._other_sockets()
        if not sockets:
            return
        data = SEPARATOR.join(topics).encode()
        if len(data) > MAX_DATAGRAM_BYTES:
            data = EVERY_TOPIC.encode()
        for path in sockets:
            try:
                self._sender.sendto(data, str(path))
            except ConnectionRefusedError:
                self._runtime.fs.remove(path)  # its process has ended
            except OSError:
                pass  # full: its process has unread notifications; or its process has just ended

    def _other_sockets(self) -> tuple[Path, ...]:
        version = self._folder.version()
        if version < 0 or version != self._others_version:
            self._others = tuple(self._path("sock", name) for name in self._folder.names("sock") if name != self.name)
            self._others_version = version
            self.feed.refresh_listeners()
        return self._others

    def close(self) -> None:
        self.feed.close()
        self._listener.close()
        self._sender.close()
        super().close()


class HostFeed:
    """Messages about what happens, sent to the processes that listen to them; and our own socket to receive them.

    A process that listens has a socket, `feed`, and beside it a file, `kinds`, with the kinds of messages it wants. A
    message is one datagram to each of these sockets. Each process is reached through a connection of its own: if one
    reads too slowly, it loses messages and the others do not.
    """

    def __init__(
        self, folder: "RecordFolder", name: str, namespace: str, runtime: Runtime, announce: Callable[[], None]
    ) -> None:
        self._folder = folder
        self._name = name
        self._namespace = namespace
        self._runtime = runtime
        self._announce = announce
        self._send_lock = runtime.lock()
        self._receive_lock = runtime.lock()
        self._listeners: dict[str, frozenset[str]] = {}
        self.feed_kinds: frozenset[str] = frozenset()
        """The kinds that other processes listen to."""
        self._connections: dict[str, socket.socket] = {}
        self._listener: DatagramListener | None = None
        self._on_message: Callable[[bytes], None] = _ignore

    def _path(self, suffix: str, name: str) -> Path:
        return self._folder.path / f"{name}.{suffix}"

    # Sending

    def refresh_listeners(self) -> None:
        """Read again which processes listen, after a change in the folder."""
        kinds_by_name = {name: self._kinds_of(name) for name in self._folder.names("kinds") if name != self._name}
        self._set_listeners({name: kinds for name, kinds in kinds_by_name.items() if kinds})

    def _kinds_of(self, name: str) -> frozenset[str]:
        """The kinds that a process listens to; none if it uses another namespace."""
        try:
            namespace, *kinds = self._runtime.fs.read_bytes(self._path("kinds", name)).decode().split(SEPARATOR)
        except (OSError, UnicodeDecodeError):
            return frozenset()
        return frozenset(kinds if namespace == self._namespace else ())

    def _set_listeners(self, listeners: dict[str, frozenset[str]]) -> None:
        self._listeners = listeners
        self.feed_kinds = frozenset[str]().union(*listeners.values())

    def publish(self, message: bytes) -> None:
        with self._send_lock:
            listeners = self._listeners
            for name in self._connections.keys() - listeners:
                self._connections.pop(name).close()
            for name in listeners:
                self._send(name, message)

    def _send(self, name: str, message: bytes) -> None:
        try:
            connection = self._connections.get(name)
            if connection is None:
                connection = self._connections[name] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                connection.setblocking(False)
                connection.connect(str(self._path("feed", name)))
            connection.send(message)
        except (ConnectionError, FileNotFoundError):
            self._remove_listener(name)
        except OSError:
            pass  # full: this process reads too slowly and loses the message

    def _remove_listener(self, name: str) -> None:
        """Its process has ended. No other process gets the same name."""
        self._connections.pop(name).close()
        self._set_listeners({other: kinds for other, kinds in self._listeners.items() if other != name})
        for suffix in ("kinds", "feed"):
            self._runtime.fs.remove(self._path(suffix, name))

    # Receiving

    def listen_to_feed(self, kinds: Iterable[str], on_message: Callable[[bytes], None]) -> None:
        wanted = sorted(kinds)
        with self._receive_lock:
            self._on_message = on_message if wanted else _ignore
            kinds_file = self._path("kinds", self._name)
            if wanted and self._listener is None:
                path = self._path("feed", self._name)
                self._listener = DatagramListener(path, self._runtime, self._receive, "holdfast-feed")
            if wanted:
                self._runtime.fs.write_atomic(kinds_file, SEPARATOR.join((self._namespace, *wanted)).encode())
            elif self._listener is not None:
                self._runtime.fs.remove(kinds_file)
            else:
                return
        self._announce()

    def _receive(self, message: bytes) -> None:
        self._on_message(message)

    def close(self) -> None:
        self.listen_to_feed((), _ignore)
        if self._listener is not None:
            self._listener.close()
        with self._send_lock:
            self._set_listeners({})
            for connection in self._connections.values():
                connection.close()
            self._connections = {}


def _ignore(message: bytes) -> None:
    """The callback of a process that does not listen."""


class RecordFolder:
    """The folder with the records of all processes that share a file."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self.path = path
        self._runtime = runtime

    def version(self) -> int:
        """A number that changes when a file is added or removed. -1: a change may be invisible, so list the folder."""
        try:
            changed_ns = os.stat(self.path).st_mtime_ns
        except FileNotFoundError:
            return -1
        now_ns = (self._runtime.wall() - self._runtime.clock_offset) * 1_000
        return -1 if abs(now_ns - changed_ns) < MTIME_RESOLUTION_NS else changed_ns

    def names(self, suffix: str) -> list[str]:
        """The processes that have a file with this suffix."""
        try:
            files = self._runtime.fs.listdir(self.path)
        except FileNotFoundError:
            return []  # the folder was removed; processes poll
        return [file.removesuffix(f".{suffix}") for file in files if file.endswith(f".{suffix}")]


def has_sockets() -> bool:
    """True if this system has Unix sockets. Without them there are no notifications, and processes poll."""
    return hasattr(socket, "AF_UNIX")


def _file_identity(file: str) -> str:
    """The same text for every path to the file."""
    status = os.stat(file)
    return f"{status.st_dev}:{status.st_ino}"
