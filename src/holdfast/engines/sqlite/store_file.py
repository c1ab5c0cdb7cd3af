"""The database file of an engine: is it still the file at its path?

A process keeps a database file open. If an operator moves the file away, or puts another one at its path, SQLite goes
on writing into the file that no other process will open again. So every transaction compares the file at the path with
the file that the engine has opened: before it writes, and again before its writes are acknowledged. The log (`…-wal`)
is compared before the acknowledgement, too, because the latest commits are only there.

An engine never changes to the other file by itself: the log may belong to the old one, and SQLite would mix the two.
"""

import os
from contextlib import suppress

from holdfast.errors import EngineUnavailable, OutcomeUnknown
from holdfast.files import WriteFile
from holdfast.runtime import Runtime

STEP_FRAMES = 64
"""Growth of the log, in frames, that is noticed: 256 KiB with pages of the usual size."""
FRAMES_AHEAD = 128
"""How far the log file is made longer at a time: 512 KiB with pages of the usual size."""
HEADER_BYTES = 32
PAGE_BYTES_AT = 8
"""Where the header of the log has the size of a page."""
SALTS_END = 24
SALT_BYTES = 8
FRAME_HEADER_BYTES = 24
FRAME_SALTS_AT = 8

Identity = tuple[int, int]
"""Device and inode."""

ADVICE = (
    "This process still has the old file open and cannot use the new one. Stop all processes that use the file, put "
    "the right one there together with its -wal file, and start them again."
)


def identity_of(path: str) -> Identity | None:
    """None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class StoreFile:
    """One per engine, shared by all its connections."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._identity: Identity | None = None
        """None: no connection has been opened."""

    def forget(self) -> None:
        """The engine has been closed. The next connection opens whatever file is there."""
        self._identity = None

    def remember(self, before: Identity | None) -> None:
        """A connection has been opened; `before` is the file at the path before that."""
        found = identity_of(self.path)
        if self._identity is None and before in (None, found):
            self._identity = found
        self.check()

    def check(self) -> None:
        if self._identity is not None and identity_of(self.path) != self._identity:
            raise self.error("")

    def check_after_commit(self) -> None:
        """A write is acknowledged only if other processes can find it."""
        try:
            self.check()
        except EngineUnavailable as error:
            raise self.unknown_outcome() from error

    def unknown_outcome(self) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{self.path} or its log was moved or replaced while this was written. The write is in the old file.",
            verb="commit",
            engine="sqlite",
        )

    def error(self, suffix: str) -> EngineUnavailable:
        file = self.path + suffix
        what = "replaced" if os.path.exists(file) else "moved or removed"
        return EngineUnavailable(f"{file} was {what} while it was in use. Nothing was written. {ADVICE}")


class LogFile:
    """The log of one connection that writes: is it in its place, and how far has it been written?

    When all frames of the log are in the database, SQLite writes the log again from its beginning. The file keeps its
    length, because a commit that makes a file longer takes the file system about twice as long. So the length does not
    say how many frames are in use. The file does: each frame repeats the salts of the header, and the header gets other
    salts when the log begins again (https://sqlite.org/fileformat2.html#walformat).
    """

    def __init__(self, path: str, runtime: Runtime) -> None:
        self._path = os.path.realpath(path) + "-wal"  # SQLite, too, puts it beside the file that a link leads to
        self._runtime = runtime
        self._file: WriteFile | None = None
        self._identity: Identity | None = None
        self._header = b""
        self.was_lost = False
        """The last call of `is_in_place` found another file, or none."""
        self._frames = 0
        """Frames since the log began, rounded down to a multiple of `STEP_FRAMES`."""
        self.frames_to_move = 0
        """How many of them came after the last try to move them into the database."""
        self._grow_at_frame = 0
        """Where `grow_ahead` looks at the length of the file again."""

    def is_in_place(self) -> bool:
        """False: it is not the file that was here at the first call."""
        if self._file is None:
            self._open()
        self.was_lost = identity_of(self._path) != self._identity
        return not self.was_lost

    def _open(self) -> None:
        try:
            file = self._runtime.fs.open_write(self._path)
        except OSError:
            return  # SQLite makes it when it first needs it
        self._identity = file.identity()
        self._file = file

    def measure(self) -> bool:
        """Read how far the log has been written. True: since the last call it has grown by a step, or begun again."""
        if self._file is None:
            return False
        header = self._file.read_at(PAGE_BYTES_AT, SALTS_END - PAGE_BYTES_AT)
        changed = header != self._header
        if changed:
            self._header, self._frames, self.frames_to_move = header, 0, 0
            self._grow_at_frame = 0
        if header:
            page_bytes, salts = int.from_bytes(header[:4], "big"), header[-SALT_BYTES:]
            while self._salts_of(self._frames + STEP_FRAMES, page_bytes) == salts:
                self._frames += STEP_FRAMES
                self.frames_to_move += STEP_FRAMES
                changed = True
        return changed

    def grow_ahead(self) -> None:
        """Fast path: write zeros behind the end of the file, so that the next commits need not make it longer.

        A commit that only overwrites takes the file system two thirds of the time. Zeros are no valid frames, so SQLite
        stops there when it reads the log after a crash. Call this in a transaction that has the write lock: no other
        connection writes to the log then, or truncates it. A full disk is no error here.
        """
        if self._file is None or self._frames < self._grow_at_frame or not self._header:
            return
        self._grow_at_frame = self._frames + FRAMES_AHEAD
        frame_bytes = FRAME_HEADER_BYTES + int.from_bytes(self._header[:4], "big")
        length = self._file.size()
        if length < HEADER_BYTES + self._frames * frame_bytes:
            return  # another connection has truncated the log since `measure`; it begins again with this commit
        # One step more than the next look, because `_frames` is rounded down to a step.
        missing = HEADER_BYTES + (self._grow_at_frame + STEP_FRAMES) * frame_bytes - length
        if missing > 0:
            try:
                self._file.write_at(length, bytes(missing))
            except OSError:
                with suppress(OSError):
                    self._file.truncate(length)

    def _salts_of(self, frame: int, page_bytes: int) -> bytes:
        """The salts in the header of a frame. The first frame has the number 1."""
        assert self._file is not None
        begin = HEADER_BYTES + (frame - 1) * (FRAME_HEADER_BYTES + page_bytes)
        return self._file.read_at(begin + FRAME_SALTS_AT, SALT_BYTES)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
