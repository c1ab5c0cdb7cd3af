"""Is a folder safe for a store? All processes of a store run as one user of the system, and no other user may write.

A store belongs to the user who made it. A folder that others may write to could get files that are not ours, and a
symbolic link could lead anywhere. Such folders are refused, and nothing is written.
"""

import os
import sys
from pathlib import Path

from holdfast.engines.file_systems import is_network_file_system
from holdfast.errors import ConfigError, Unsupported
from holdfast.runtime import Runtime

WRITABLE_BY_ALL = 0o002
STICKY = 0o1000
PRIVATE = 0o700


def check_platform() -> None:
    if sys.platform == "win32":
        raise Unsupported(
            "Windows has no file locks of the kind that this store needs. Use SQLite.",
            capability="flock",
            engine="file",
        )


def check_folders(root: Path, store: Path, runtime: Runtime) -> None:
    """Refuse the folder of the address, or that of the namespace in it, if it is not safe. None of them need exist."""
    for folder in (root, store):
        check_folder(folder, runtime)
    status = runtime.fs.status(store)
    if status is not None and status.permissions != PRIVATE:  # for example, copied back from a backup
        runtime.fs.make_private(store)


def check_folder(folder: Path, runtime: Runtime) -> None:
    """Refuse one folder, if it is not safe. It need not exist."""
    status = runtime.fs.status(folder)
    if status is None:
        return
    if status.kind == "link":
        raise _refusal(
            f"{folder} is a symbolic link. A store does not follow links, because another user could change where one "
            f"leads. Use the folder itself: file://{os.path.realpath(folder)}"
        )
    if status.kind != "folder":
        raise _refusal(f"{folder} is no folder. A file store needs a folder of its own.")
    user = os.geteuid() if sys.platform != "win32" else 0
    if status.user != user:
        raise _refusal(
            f"{folder} belongs to the user with the number {status.user}, and this process runs as {user}. All "
            "processes of a file store run as the user who owns its folder. Change its owner with chown, or use "
            "another folder."
        )
    if status.permissions & WRITABLE_BY_ALL and status.permissions & STICKY:  # /tmp: the mode is intended
        raise _refusal(
            f"Every user of this host may write to {folder} (mode {status.permissions:04o}). Use a folder in it: "
            f"file://{folder / 'NAME'}"
        )
    if status.permissions & WRITABLE_BY_ALL:
        raise _refusal(
            f"Every user of this host may write to {folder} (mode {status.permissions:04o}). Run: chmod go-w {folder}"
        )


def check_file_system(root: Path, runtime: Runtime, *, allow_network_disk: bool) -> None:
    """Refuse a network file system, unless the user has allowed it."""
    kind = runtime.fs.file_system_type(root)
    if is_network_file_system(kind) and not allow_network_disk:
        raise _refusal(
            f"{root} is on a network file system ({kind}), where file locks may not hold and a sync may not reach a "
            "disk. Use a local disk, PostgreSQL or Redis. If you know that it keeps both, and one host alone uses the "
            "folder, set `allow_network_disk = true` in the table [file]."
        )


def _refusal(message: str) -> ConfigError:
    return ConfigError(message, key="url")
