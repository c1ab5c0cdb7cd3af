"""What the children print. Each line goes to the manager's own output, with the number of the child before it.

    child 3 | 12:00:01 INFO holdfast.worker: Worker ada-7f3c09ab works on default.

A line that is a JSON object stays one: it gets a field `child` instead. One thread reads the output of all children,
and another one writes the manager's own log. So a slow terminal, or a full pipe behind the manager, delays the output
and never the manager.
"""

import logging
import os
import select
import selectors
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, TextIO

from holdfast import forks
from holdfast.model.instants import Seconds
from holdfast.runtime import Runtime

MAX_LINE_BYTES = 65_536
"""A longer line is written in parts."""
TAIL_LINES = 20
"""The last lines of each child, for the message that it could not start."""
POLL_S: Seconds = 1.0
"""The thread checks this often whether it should end."""
CLOSE_TIMEOUT_S: Seconds = 2.0
"""Closing waits this long for the last lines."""
MAX_LOG_LINES = 10_000
"""More lines of the log do not wait for a reader: they are dropped."""

_logger = logging.getLogger("holdfast.manager")


class Tail:
    """The last lines of a child's standard error, and whether its output has ended."""

    def __init__(self, has_ended: Callable[[], bool]) -> None:
        self.lines: deque[str] = deque(maxlen=TAIL_LINES)
        self.has_ended = has_ended


class ChildStream:
    """One stream of one child: cuts it into lines."""

    def __init__(self, number: int, pipe: IO[bytes], target: TextIO, tail: "deque[str] | None") -> None:
        self.number = number
        self.pipe = pipe
        self.target = target
        self.tail = tail
        self.rest = b""
        self._child_copy = forks.ChildCopy(lambda: -1 if pipe.closed else pipe.fileno())

    def take(self, data: bytes) -> list[str]:
        """The lines that are complete with this data. No data: the stream has ended."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if self.rest and (not data or len(self.rest) > MAX_LINE_BYTES):
            lines.append(self.rest)
            self.rest = b""
        texts = [line.decode(errors="backslashreplace").rstrip("\r") for line in lines]
        if self.tail is not None:
            self.tail.extend(texts)
        return texts


def with_number(number: int, line: str) -> str:
    """The line of a child, as the manager prints it."""
    if line.startswith('{"') and line.endswith("}"):
        return f'{{"child": {number}, {line[1:]}'
    return f"child {number} | {line}"


class ChildOutput:
    """Copies the output of all children."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._selector = selectors.DefaultSelector()
        self._added: deque[ChildStream] = deque()
        self._open: dict[int, int] = {}
        """How many streams of each child have not ended, by its number."""
        self._wake_up, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._wake_up.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._closing = False
        self._ended = runtime.event()
        self._broken: set[int] = set()
        runtime.thread(self._run, name="holdfast output")

    def add(self, number: int, stdout: IO[bytes] | None, stderr: IO[bytes] | None) -> Tail:
        """Copy the output of one more child."""
        tail = Tail(lambda: not self._open.get(number))
        streams = [(stdout, sys.stdout, None), (stderr, sys.stderr, tail.lines)]
        found = [ChildStream(number, pipe, target, lines) for pipe, target, lines in streams if pipe is not None]
        self._open[number] = len(found)
        self._added.extend(found)
        self._wake()
        return tail

    def _wake(self) -> None:
        try:
            self._wake_up.send(b".")
        except OSError:
            _logger.debug("The thread for output has been woken already.")

    def close(self) -> None:
        """Copy what the children have left, and end the thread."""
        self._closing = True
        self._wake()
        self._ended.wait(CLOSE_TIMEOUT_S)

    # In the thread

    def _run(self) -> None:
        try:
            while True:
                ready = self._selector.select(0 if self._closing else POLL_S)
                while self._added:
                    self._register(self._added.popleft())
                for key, _ in ready:
                    if key.data is None:
                        self._woken.recv(4096)
                    else:
                        self._copy(key.data)
                if self._closing and all(key.data is None for key, _ in ready):
                    return  # no child has written anything that was not copied
        finally:
            for key in list(self._selector.get_map().values()):
                if key.data is not None:
                    key.data.pipe.close()
            self._selector.close()
            self._wake_up.close()
            self._woken.close()
            self._ended.set()

    def _register(self, stream: ChildStream) -> None:
        os.set_blocking(stream.pipe.fileno(), False)
        self._selector.register(stream.pipe, selectors.EVENT_READ, stream)

    def _copy(self, stream: ChildStream) -> None:
        try:
            data = os.read(stream.pipe.fileno(), MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        lines = stream.take(data)
        if lines:
            self._write(stream.target, "".join(f"{with_number(stream.number, line)}\n" for line in lines))
        if not data:
            self._selector.unregister(stream.pipe)
            stream.pipe.close()
            left = self._open[stream.number] = self._open[stream.number] - 1
            if not left:
                del self._open[stream.number]

    def _write(self, target: TextIO, text: str) -> None:
        if id(target) in self._broken:
            return
        try:
            write_text(target, text)
        except (OSError, ValueError) as error:  # nobody reads it any more; the children must not wait for that
            self._broken.add(id(target))
            _logger.warning("The output of the children cannot be written and is dropped from now on: %s", error)


class LogStream:
    """A stream for the log of the manager."""

    def __init__(self, runtime: Runtime, target: TextIO) -> None:
        self._target = target
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._closed = False
        self._ended = runtime.event()
        runtime.thread(self._run, name="holdfast log")

    def write(self, text: str) -> None:
        if self._closed:
            write_text(self._target, text)
        elif self._lines.qsize() < MAX_LOG_LINES:
            self._lines.put(text)

    def close(self) -> bool:
        """Write what is left. False: it is not written, because nobody reads it. Later lines are written at once."""
        self._closed = True
        self._lines.put(None)
        return self._ended.wait(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        with suppress(OSError, ValueError):
            while (text := self._lines.get()) is not None:  # no limit: `close` ends the wait
                write_text(self._target, text)
        self._ended.set()


def write_text(target: TextIO, text: str) -> None:
    """Write without the lock of the stream. Else a thread that waits for a full pipe would hold it while the process
    ends, and Python aborts a process that cannot flush its streams."""
    try:
        descriptor = target.fileno()
    except OSError:  # it has none, such as in tests
        target.write(text)
        target.flush()
        return
    data = text.encode(target.encoding, "backslashreplace")
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # it is full, and another program has made it non-blocking
            select.select([], [descriptor], [], POLL_S)
