"""The settings of the file engine: the table `[file]`."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.readers import boolean, seconds, whole

LEAST_SEGMENT_BYTES = 64 * 1024
SEGMENT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """`[file]`."""

    table: ClassVar[str] = "file"

    segment_bytes: Annotated[int, whole(LEAST_SEGMENT_BYTES)] = SEGMENT_BYTES
    """The journal goes on in a new file when the current one is larger than this."""
    sync_interval: Annotated[float, seconds(0.001)] = 0.1
    """Class fast: seconds between two syncs."""
    lock_timeout: Annotated[float, seconds()] = 10.0
    """Seconds to wait until another process has written."""
    allow_network_disk: Annotated[bool, boolean] = False
    """Use a folder on a network file system. Its locks and syncs must work, and one host alone may use it."""
