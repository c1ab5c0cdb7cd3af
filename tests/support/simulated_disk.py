"""A disk in memory that can lose its power.

Every file and folder has two planes. The live plane is what programs see. The durable plane is what the disk certainly
has: a change moves there when the file, or for a change of names the folder, is synced. A power cut keeps any part of
the other changes: each sector of each write by itself, each length, each name. A renamed file may be found under its
old name, its new name or both, but never under none, because a rename is one step.

`SimulatedDisk.image()` copies the disk at one moment. An image answers which disk killed processes leave
(`after_kill`: both planes as they are), and which disk a power cut leaves (`after_power_cut`: one of many, chosen by a
seed).
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from random import Random
from typing import Literal, NamedTuple, TypeVar

from holdfast.runtime import SystemRuntime

SECTOR_BYTES = 512
DEVICE = 1

Loss = Literal["everything", "nothing", "sectors", "bytes", "order"]
"""What a power cut takes of the unsynced changes of a file: all, none, single sectors, single ranges of bytes, or all
changes after one of them."""
LOSSES: tuple[Loss, ...] = ("everything", "nothing", "sectors", "bytes", "order")


class Write(NamedTuple):
    offset: int
    data: bytes


class Resize(NamedTuple):
    """The file was made shorter, or longer with zeros."""

    length: int


@dataclass
class SimulatedFile:
    number: int
    modified_us: int
    live: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    unsynced: list[Write | Resize] = field(default_factory=list)
    lock_owner: object | None = None
    copy: bytes | None = None
    """Of the live plane, if it has not changed since the last image."""

    def copy_of_live(self) -> bytes:
        if self.copy is None:
            self.copy = bytes(self.live)
        return self.copy


class NameChange(NamedTuple):
    """In a folder: a new name, a removed one, or both for a rename."""

    new: tuple[str, "SimulatedFile | SimulatedFolder"] | None
    removed: str | None


@dataclass
class SimulatedFolder:
    number: int
    modified_us: int
    live: "dict[str, SimulatedFile | SimulatedFolder]" = field(default_factory=dict)
    durable: "dict[str, SimulatedFile | SimulatedFolder]" = field(default_factory=dict)
    unsynced: list[NameChange] = field(default_factory=list)


Node = SimulatedFile | SimulatedFolder
N = TypeVar("N", SimulatedFile, SimulatedFolder)


class SimulatedDisk:
    """One folder tree. Its methods are atomic: several threads may use it."""

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._now_us = clock if clock is not None else SystemRuntime().wall
        self.changed = threading.Condition(threading.RLock())
        """Guards everything here. Notified when a lock becomes free."""
        self._next_number = 2
        self.root = SimulatedFolder(1, 0)
        self.capacity_bytes: int | None = None
        """A write beyond it writes what fits, and then fails with ENOSPC."""
        self.read_only = False
        """As after an error of a file system that is mounted with `errors=remount-ro`."""

    def set_full(self, is_full: bool) -> None:
        with self.changed:
            self.capacity_bytes = sum(len(file.live) for file in _files(self.root)) if is_full else None

    # Finding

    def node(self, path: str) -> Node | None:
        with self.changed:
            node: Node | None = self.root
            for part in PurePosixPath(path).parts[1:]:
                node = node.live.get(part) if isinstance(node, SimulatedFolder) else None
            return node

    def file(self, path: str) -> SimulatedFile:
        node = self.node(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, SimulatedFolder):
            raise _error(errno.EISDIR, path)
        return node

    def folder(self, path: str) -> SimulatedFolder:
        node = self.node(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, SimulatedFile):
            raise _error(errno.ENOTDIR, path)
        return node

    # Changing names

    def make_folder(self, path: str) -> SimulatedFolder:
        return self._enter(path, SimulatedFolder(self._number(), self._now_us()))

    def make_file(self, path: str) -> SimulatedFile:
        return self._enter(path, SimulatedFile(self._number(), self._now_us()))

    def _number(self) -> int:
        with self.changed:
            self._next_number += 1
            return self._next_number

    def _enter(self, path: str, node: N) -> N:
        with self.changed:
            self._refuse_if_read_only(path)
            folder, name = self._place(path)
            if name in folder.live:
                raise _error(errno.EEXIST, path)
            folder.live[name] = node
            folder.unsynced.append(NameChange((name, node), None))
            return node

    def remove(self, path: str) -> None:
        with self.changed:
            self._refuse_if_read_only(path)
            self.file(path)
            folder, name = self._place(path)
            del folder.live[name]
            folder.unsynced.append(NameChange(None, name))

    def rename(self, path: str, new_path: str) -> None:
        with self.changed:
            self._refuse_if_read_only(path)
            node = self.file(path)
            folder, name = self._place(path)
            new_folder, new_name = self._place(new_path)
            assert folder is new_folder, "only renames inside a folder are simulated"
            del folder.live[name]
            folder.live[new_name] = node
            folder.unsynced.append(NameChange((new_name, node), name))

    def _place(self, path: str) -> tuple[SimulatedFolder, str]:
        return self.folder(os.path.dirname(path)), os.path.basename(path)

    def sync_folder(self, path: str) -> None:
        with self.changed:
            folder = self.folder(path)
            for change in folder.unsynced:
                if change.new is not None:
                    folder.durable[change.new[0]] = change.new[1]
                if change.removed is not None:
                    folder.durable.pop(change.removed, None)
            folder.unsynced.clear()

    # Changing content

    def write(self, file: SimulatedFile, offset: int, data: bytes) -> None:
        with self.changed:
            self._refuse_if_read_only("")
            fitting = data[: max(0, self._room(file, offset + len(data)) - offset)]
            if fitting:
                self._apply(file, Write(offset, bytes(fitting)))
            if len(fitting) < len(data):
                raise _error(errno.ENOSPC, "")

    def resize(self, file: SimulatedFile, length: int) -> None:
        with self.changed:
            self._refuse_if_read_only("")
            if self._room(file, length) < length:
                raise _error(errno.ENOSPC, "")
            self._apply(file, Resize(length))

    def _apply(self, file: SimulatedFile, change: Write | Resize) -> None:
        file.modified_us = self._now_us()
        file.copy = None
        _apply(file.live, change)
        file.unsynced.append(change)

    def _room(self, file: SimulatedFile, length: int) -> int:
        """How long the file can be, if it shall have this length."""
        if self.capacity_bytes is None or length <= len(file.live):
            return length
        free = self.capacity_bytes - sum(len(other.live) for other in _files(self.root))
        return min(length, len(file.live) + max(0, free))

    def sync(self, file: SimulatedFile) -> None:
        with self.changed:
            content = bytearray(file.durable)
            for change in file.unsynced:
                _apply(content, change)
            file.durable = bytes(content)
            file.unsynced.clear()

    def lose_unsynced(self, file: SimulatedFile, seed: int) -> None:
        """A sync has failed. The system has marked the changed pages as written, so a later sync does not write them:
        programs still see the changes, but only some of them are on the disk."""
        with self.changed:
            file.durable = _after_loss(file.durable, file.unsynced, len(file.live), Random(seed), "sectors")
            file.unsynced.clear()

    def lose_unsynced_names(self, folder: SimulatedFolder) -> None:
        """The same for a folder: the new names are not on the disk, and a later sync does not write them."""
        with self.changed:
            folder.unsynced.clear()

    def _refuse_if_read_only(self, path: str) -> None:
        if self.read_only:
            raise _error(errno.EROFS, path)

    # Ends

    def image(self) -> "DiskImage":
        with self.changed:
            files = {
                file.number: FileImage(file.modified_us, file.copy_of_live(), file.durable, tuple(file.unsynced))
                for file in _every_file(self.root)
            }
            return DiskImage(files, _folder_image(self.root), self._next_number, self._now_us)


class FileImage(NamedTuple):
    modified_us: int
    live: bytes
    durable: bytes
    unsynced: tuple[Write | Resize, ...]


class NamesImage(NamedTuple):
    """A folder: files by their numbers."""

    number: int
    live: "Mapping[str, int | NamesImage]"
    durable: "Mapping[str, int | NamesImage]"
    unsynced: "tuple[tuple[tuple[str, int | NamesImage] | None, str | None], ...]"


class DiskImage(NamedTuple):
    """A disk at one moment."""

    files: Mapping[int, FileImage]
    root: NamesImage
    next_number: int
    clock: Callable[[], int]

    def after_kill(self) -> SimulatedDisk:
        """All processes have ended. Nothing that they have written is lost, but what was not synced is still not."""
        disk = self._new_disk()
        files = {
            number: SimulatedFile(number, file.modified_us, bytearray(file.live), file.durable, list(file.unsynced))
            for number, file in self.files.items()
        }
        folders: dict[int, SimulatedFolder] = {}

        def node(entry: int | NamesImage) -> Node:
            return files[entry] if isinstance(entry, int) else make_folder(entry)

        def make_folder(image: NamesImage) -> SimulatedFolder:
            if image.number not in folders:
                folder = folders[image.number] = SimulatedFolder(image.number, 0)
                folder.live = {name: node(entry) for name, entry in image.live.items()}
                folder.durable = {name: node(entry) for name, entry in image.durable.items()}
                folder.unsynced = [
                    NameChange(None if new is None else (new[0], node(new[1])), removed)
                    for new, removed in image.unsynced
                ]
            return folders[image.number]

        disk.root = make_folder(self.root)
        return disk

    def after_power_cut(self, seed: int, loss: Loss | None = None) -> SimulatedDisk:
        """The disk when the machine starts again. Without `loss` the seed chooses it for each file."""
        random = Random(seed)
        disk = self._new_disk()
        files: dict[int, SimulatedFile] = {}
        for number, file in self.files.items():
            of_file: Loss = random.choice(LOSSES) if loss is None else loss
            content = _after_loss(file.durable, file.unsynced, len(file.live), random, of_file)
            files[number] = SimulatedFile(number, file.modified_us, bytearray(content), content)

        def make_folder(image: NamesImage) -> SimulatedFolder:
            names: dict[str, Node] = {
                name: make_folder(entry) if isinstance(entry, NamesImage) else files[entry]
                for name, entry in _names_after_loss(image, random, loss).items()
            }
            return SimulatedFolder(image.number, 0, names, dict(names))

        disk.root = make_folder(self.root)
        return disk

    def _new_disk(self) -> SimulatedDisk:
        disk = SimulatedDisk(self.clock)
        disk._next_number = self.next_number
        return disk


def _folder_image(folder: SimulatedFolder) -> NamesImage:
    def entry(node: Node) -> int | NamesImage:
        return node.number if isinstance(node, SimulatedFile) else _folder_image(node)

    return NamesImage(
        folder.number,
        {name: entry(node) for name, node in folder.live.items()},
        {name: entry(node) for name, node in folder.durable.items()},
        tuple(
            (None if change.new is None else (change.new[0], entry(change.new[1])), change.removed)
            for change in folder.unsynced
        ),
    )


def _files(folder: SimulatedFolder) -> Iterator[SimulatedFile]:
    """Files that programs see."""
    for node in folder.live.values():
        if isinstance(node, SimulatedFile):
            yield node
        else:
            yield from _files(node)


def _every_file(folder: SimulatedFolder) -> Iterator[SimulatedFile]:
    """Files that programs see or that a power cut can bring back."""
    new = [change.new[1] for change in folder.unsynced if change.new is not None]
    for node in (*folder.live.values(), *folder.durable.values(), *new):
        if isinstance(node, SimulatedFile):
            yield node
        else:
            yield from _every_file(node)


def _apply(content: bytearray, change: Write | Resize) -> None:
    if isinstance(change, Write):
        if change.offset > len(content):
            content.extend(bytes(change.offset - len(content)))
        content[change.offset : change.offset + len(change.data)] = change.data
    else:
        del content[change.length :]
        content.extend(bytes(change.length - len(content)))


def _names_after_loss(folder: NamesImage, random: Random, loss: Loss | None) -> "dict[str, int | NamesImage]":
    names = dict(folder.durable)
    for new, removed in folder.unsynced:
        keep = {"everything": 0.0, "nothing": 1.0}.get(loss or "", 0.5)
        if new is not None:
            if random.random() >= keep:
                continue  # then a rename has not happened at all
            names[new[0]] = new[1]
        if removed is not None and random.random() < keep:
            names.pop(removed, None)
    return names


def _after_loss(
    durable: bytes, unsynced: Sequence[Write | Resize], live_length: int, random: Random, loss: Loss
) -> bytes:
    """The content of a file after a power cut."""
    content = bytearray(durable)
    if loss == "everything" or not unsynced:
        return durable
    kept = list(unsynced)
    if loss == "order":
        kept = kept[: random.randrange(len(kept) + 1)]
    for change in kept:
        if isinstance(change, Resize):
            if loss in ("nothing", "order") or random.random() < 0.5:
                _apply(content, change)
            continue
        for part in _parts(change, random, loss):
            _apply(content, part)
    if loss in ("sectors", "bytes") and random.random() < 0.5:
        lengths = [live_length, len(durable), *(change.length for change in unsynced if isinstance(change, Resize))]
        length = random.randint(min(lengths), max(*lengths, len(content)))
        missing = max(0, length - len(content))
        content.extend(random.randbytes(missing) if random.random() < 0.5 else bytes(missing))  # blocks of old files
        del content[length:]
    return bytes(content)


def _parts(write: Write, random: Random, loss: Loss) -> Iterator[Write]:
    """What arrived of a write."""
    if loss in ("nothing", "order"):
        yield write
    elif loss == "bytes":
        for _ in range(random.randrange(3)):
            begin, end = sorted((random.randint(0, len(write.data)), random.randint(0, len(write.data))))
            yield Write(write.offset + begin, write.data[begin:end])
    else:
        begin = 0
        while begin < len(write.data):
            end = min(len(write.data), begin + SECTOR_BYTES - (write.offset + begin) % SECTOR_BYTES)
            if random.random() < 0.5:
                yield Write(write.offset + begin, write.data[begin:end])
            begin = end


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
