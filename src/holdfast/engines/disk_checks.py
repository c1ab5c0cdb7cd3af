"""Checks of `holdfast doctor` for stores in files of this host: file system, permissions, free space."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.engines.file_systems import is_network_file_system
from holdfast.errors import EngineError, EngineUnavailable
from holdfast.model.findings import DISK_SPACE, FILE_SYSTEM, PERMISSIONS, Finding
from holdfast.runtime import Runtime

MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "rootfs"})
CONTAINER_LAYERS = frozenset({"overlay", "overlayfs", "aufs", "fuse.fuse-overlayfs"})
OTHERS_READ, OTHERS_WRITE, OTHERS_ENTER, STICKY = 0o004, 0o002, 0o001, 0o1000
LOW_BYTES = 256 * 1024 * 1024
"""A busy queue can fill this much in some minutes: time for an operator to act."""
MEBIBYTE = 1024 * 1024


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What the system refuses, as an error of the package that names the store."""
    try:
        yield
    except EngineError:  # `EngineUnavailable` is an OSError, too
        raise
    except OSError as error:
        raise EngineUnavailable(
            f"{path} cannot be examined ({error}). Run the command as the user who owns the store."
        ) from error


def existing_folder(path: Path) -> Path:
    """The folder itself, or the lowest one above it that exists."""
    return next((folder for folder in (path, *path.parents) if folder.is_dir()), Path("/"))


def check_file_system(folder: Path, runtime: Runtime, *, network_allowed: bool = False) -> Finding:
    kind = runtime.fs.file_system_type(folder)
    if is_network_file_system(kind):
        if network_allowed:
            return FILE_SYSTEM.warning(
                f"{folder} is on a network file system ({kind}), which the settings allow.",
                "Make sure that its locks and syncs hold, and that one host alone uses the store.",
            )
        return FILE_SYSTEM.problem(
            f"{folder} is on a network file system ({kind}), where locks and syncs do not hold for every process.",
            "Use a local disk, PostgreSQL or Redis.",
        )
    if kind in MEMORY_FILE_SYSTEMS:
        return FILE_SYSTEM.warning(
            f"{folder} is in memory ({kind}). All jobs are lost when the host restarts.",
            "Put the store on a disk, unless its jobs may be lost.",
        )
    if kind in CONTAINER_LAYERS:
        return FILE_SYSTEM.warning(
            f"{folder} is in the layer of a container ({kind}). All jobs are lost when the container is removed, and "
            "other containers do not see them.",
            "Mount a volume and put the store there.",
        )
    if not kind:
        return FILE_SYSTEM.note(
            f"The system does not say which file system {folder} is on.",
            "Make sure that it is a local disk: on network file systems locks do not hold.",
        )
    return FILE_SYSTEM.ok(f"{folder} is on a local file system ({kind}).")


def check_permissions(folder: Path, files: list[Path], runtime: Runtime) -> Iterator[Finding]:
    """`files` need not exist; `folder` must."""
    found = {path: status for path in (folder, *files) if (status := runtime.fs.status(path)) is not None}
    refused = [str(path) for path in found if not os.access(path, os.W_OK)]
    if refused:
        yield PERMISSIONS.problem(
            f"This process may not write to {', '.join(refused)}.",
            "Run it as the user who owns the store, or give this user the right to write.",
        )
    if sys.platform == "win32":
        return
    modes = {path: status.permissions for path, status in found.items()}
    writable = [path for path, mode in modes.items() if mode & OTHERS_WRITE and not (path == folder and mode & STICKY)]
    if writable:
        yield PERMISSIONS.problem(
            f"Every user of this host may write to {', '.join(map(str, writable))}, and so change or remove jobs.",
            f"Run: chmod o-w {' '.join(map(str, writable))}",
        )
    readable = [path for path in files if path in modes and modes[path] & OTHERS_READ and modes[folder] & OTHERS_ENTER]
    if readable:
        yield PERMISSIONS.note(
            f"Every user of this host can read {', '.join(map(str, readable))}, and so the arguments and results of "
            "jobs.",
            f"If they must not, run: chmod o-rwx {' '.join(map(str, readable))}, and start processes with umask 007.",
        )
    if not refused and not writable and not readable:
        yield PERMISSIONS.ok("This process can write the files of the store, and other users cannot read them.")


def check_disk_space(folder: Path, reserve: Path, runtime: Runtime) -> Finding:
    """`reserve` is the file that keeps space for settling jobs (`engines/reserve.py`). Empty, it is in use."""
    free = runtime.fs.free_space(folder)
    text = f"{free // MEBIBYTE:,} MiB are free on the disk of {folder}."
    status = runtime.fs.status(reserve)
    if status is not None and status.size == 0:
        return DISK_SPACE.problem(
            "The disk is full, or was when the store was last written: its reserve is in use, and no job is "
            f"accepted. {text}",
            "Free some space. The next enqueue then fills the reserve and is accepted.",
        )
    if free < LOW_BYTES:
        return DISK_SPACE.warning(f"Only {text}", "Free some space. When the disk is full, no job is accepted.")
    return DISK_SPACE.ok(text)
