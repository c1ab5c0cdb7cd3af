"""The mark: how far the journal is known to be synced. All processes of the store share it.

It is written after a sync has returned and is not synced itself, so it is never ahead of the disk. It tells other
processes that they need not sync again, and recovery that bad bytes below it are corruption and no torn tail.

A process may write an older mark over a newer one: then a sync more is made, and nothing else happens. The flag that a
sync has failed has a place of its own, so that the mark of another process cannot clear it.
"""

from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from holdfast.files import WriteFile
from holdfast.runtime import Runtime

_MARK = Struct("<4sIQQ")
_MAGIC = b"HFm\x01"
_CHECKED_FROM = 8
SUSPECT_AT = 64
"""The offset of the flag."""
SUSPECT = b"suspect\n"
"""The flag. Other bytes in its place are no flag: a power failure may leave anything in a file that was not synced."""
FILE_BYTES = SUSPECT_AT + len(SUSPECT)


class Mark(NamedTuple):
    """The bytes of this segment before this offset are synced, and so are all earlier segments."""

    segment: int
    offset: int
    is_suspect: bool = False
    """A sync has failed: what the file system reads may not be what is on the disk."""

    def covers(self, segment: int, offset: int) -> bool:
        """True if all bytes before this place are synced."""
        return (self.segment, self.offset) >= (segment, offset)


NO_MARK = Mark(0, 0)


class MarkFile:
    """The open file."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self._file: WriteFile = _open(path, runtime)

    def read(self) -> Mark:
        """A damaged mark says nothing."""
        return parse_mark(self._file.read_at(0, FILE_BYTES))

    def write(self, segment: int, offset: int) -> None:
        """Without an error if the disk refuses it: then another process syncs once more."""
        with suppress(OSError):
            self._file.write_at(0, encode_mark(segment, offset))

    def set_suspect(self, is_suspect: bool) -> None:
        self._file.write_at(SUSPECT_AT, SUSPECT if is_suspect else bytes(len(SUSPECT)))

    def close(self) -> None:
        self._file.close()


def _open(path: Path, runtime: Runtime) -> WriteFile:
    try:
        file = runtime.fs.create(path)
    except FileExistsError:
        return runtime.fs.open_write(path)
    file.allocate(FILE_BYTES)  # a full disk can refuse no mark later; what another process has written stays
    return file


def encode_mark(segment: int, offset: int) -> bytes:
    fields = _MARK.pack(_MAGIC, 0, segment, offset)[_CHECKED_FROM:]
    return _MAGIC + crc32(fields).to_bytes(4, "little") + fields


def parse_mark(data: bytes) -> Mark:
    is_suspect = data[SUSPECT_AT:FILE_BYTES] == SUSPECT
    if len(data) >= _MARK.size:
        magic, crc, segment, offset = _MARK.unpack_from(data)
        if magic == _MAGIC and crc32(data[_CHECKED_FROM : _MARK.size]) == crc:
            return Mark(segment, offset, is_suspect)
    return NO_MARK._replace(is_suspect=is_suspect)
