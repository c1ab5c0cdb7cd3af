"""Files that are read and written at any offset, and what the file system says about a path."""

import os
from pathlib import Path

import pytest
from intercepted_files import InterceptedFiles
from simulated_disk import SimulatedDisk
from simulated_files import ROOT, SimulatedFiles

from holdfast.errors import EngineUnavailable
from holdfast.files import Files
from holdfast.runtime import SystemRuntime

Place = tuple[Files, Path]


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture(params=["real", "simulated", "intercepted"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The simulated file systems of the tests behave as the real one."""
    if request.param == "simulated":
        return SimulatedFiles(SimulatedDisk()), Path(ROOT)
    return Files() if request.param == "real" else InterceptedFiles(Files(), tmp_path), tmp_path


def test_a_file_is_read_and_written_at_any_offset(place: Place) -> None:
    files, folder = place
    with files.create(folder / "journal") as file:
        file.write_at(0, b"one two")
        file.write_at(4, b"TWO three")
        file.sync()
        assert file.read_at(0, 100) == b"one TWO three"
        file.truncate(7)
        assert file.size() == 7
    with files.open_write(folder / "journal") as file:
        file.write_at(file.size(), b"!")
        assert file.read_at(4, 100) == b"TWO!"


def test_a_file_is_created_once_and_opened_only_if_it_exists(place: Place) -> None:
    files, folder = place
    with pytest.raises(FileNotFoundError):
        files.open_write(folder / "journal")
    files.create(folder / "journal").close()
    with pytest.raises(FileExistsError):
        files.create(folder / "journal")


def test_a_short_write_at_an_offset_is_continued(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:2], offset))
    with files.create(tmp_path / "journal") as file:
        file.write_at(1, b"seven b")
        assert file.read_at(0, 100) == b"\0seven b"


def test_allocated_bytes_are_zero_and_a_smaller_request_changes_nothing(place: Place) -> None:
    files, folder = place
    with files.create(folder / "reserve") as file:
        file.write_at(0, b"data")
        file.allocate(6)
        file.allocate(1)
        assert file.read_at(0, 100) == b"data\0\0"
    with files.open_append(folder / "reserve") as reserve:
        reserve.allocate(8)
        assert reserve.size() == 8
        reserve.truncate(0)
        assert reserve.size() == 0


def test_a_link_is_neither_opened_nor_created_over(files: Files, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        files.open_write(tmp_path / "link")
    with pytest.raises(FileExistsError):
        files.create(tmp_path / "link")


def test_the_status_says_what_is_at_a_path(files: Files, tmp_path: Path) -> None:
    with files.create(tmp_path / "file") as file:
        file.write_at(0, b"four")
        status = files.status(tmp_path / "file")
        assert status is not None
        assert (status.kind, status.permissions, status.user, status.size) == ("file", 0o600, os.getuid(), 4)
        assert status.identity == file.identity()
        assert abs(status.modified_us - SystemRuntime().wall()) < 60_000_000
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    kinds = [found and found.kind for found in map(files.status, (tmp_path, tmp_path / "link", tmp_path / "pipe"))]
    assert kinds == ["folder", "link", "other"]
    assert files.status(tmp_path / "missing") is None
    assert files.status(tmp_path / "file" / "below") is None


def test_renaming_replaces_the_file_at_the_new_path(place: Place) -> None:
    files, folder = place
    files.write_atomic(folder / "old", b"old")
    with files.create(folder / "new") as file:
        file.write_at(0, b"new")
        files.rename(folder / "new", folder / "old")
        assert files.read_bytes(folder / "old") == b"new"
        status = files.status(folder / "old")
        assert status is not None
        assert status.identity == file.identity()
    assert not files.exists(folder / "new")


def test_a_forked_child_closes_its_copy(files: Files, tmp_path: Path) -> None:
    with files.create(tmp_path / "journal") as file:
        fd = file.fd
        child = os.fork()
        if child == 0:
            try:
                os.fstat(fd)
            except OSError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        file.write_at(0, b"the parent's stays open")


def test_a_folder_is_listed_and_a_removed_file_is_gone(place: Place) -> None:
    files, folder = place
    files.mkdir(folder / "a" / "store")
    files.mkdir(folder / "a" / "store")
    files.write_atomic(folder / "a" / "store" / "one", b"1")
    with files.open_append(folder / "a" / "store" / "two") as file:
        assert [file.append(b"2"), file.append(b"22")] == [0, 1]
    assert files.listdir(folder / "a" / "store") == ["one", "two"]
    files.remove(folder / "a" / "store" / "one")
    files.remove(folder / "a" / "store" / "one")
    assert files.listdir(folder / "a" / "store") == ["two"]
    assert files.size(folder / "a" / "store" / "two") == 3
    assert files.size(folder / "a" / "store" / "one") == 0
    with pytest.raises(FileNotFoundError):
        files.read_bytes(folder / "a" / "store" / "one")
    with pytest.raises(FileNotFoundError):
        files.create(folder / "missing" / "file")


def test_a_closed_file_is_refused(place: Place) -> None:
    files, folder = place
    with files.create(folder / "journal") as file:
        pass
    for use in (file.size, file.sync, file.identity, lambda: file.read_at(0, 1), lambda: file.write_at(0, b"1")):
        with pytest.raises(OSError, match="Bad file descriptor"):
            use()


def test_a_lock_and_a_gate_let_one_opening_in(place: Place) -> None:
    files, folder = place
    lock = files.lock(folder / "lock")
    assert lock is not None
    assert files.lock(folder / "lock") is None
    lock.close()
    first, second = (files.gate(folder / "gate", 0.05, guarded=folder / "lock") for _ in range(2))
    with first, pytest.raises(EngineUnavailable, match="was locked for"), second:
        pass
    with second:
        pass
    first.close()
    second.close()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o277, 0o777])
def test_a_new_folder_and_its_files_belong_to_their_owner_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    files, folder = Files(), tmp_path / "store"
    before = os.umask(umask)
    try:
        files.mkdir(folder)
        files.create(folder / "journal").close()
        files.open_append(folder / "reserve").close()
        lock = files.lock(folder / "compaction")
        files.write_atomic(folder / "format", b"1")
    finally:
        os.umask(before)
    assert lock is not None
    lock.close()
    found = {name: (folder / name).stat().st_mode & 0o777 for name in os.listdir(folder)}
    assert found == dict.fromkeys(["journal", "reserve", "compaction", "format"], 0o600)
    assert folder.stat().st_mode & 0o777 == 0o700
