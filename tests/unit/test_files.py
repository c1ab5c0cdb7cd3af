"""Files that are read and written at any offset, and what the file system says about a path."""

import os
from pathlib import Path

import pytest

from holdfast.files import Files
from holdfast.runtime import SystemRuntime


@pytest.fixture
def files() -> Files:
    return Files()


def test_a_file_is_read_and_written_at_any_offset(files: Files, tmp_path: Path) -> None:
    with files.create(tmp_path / "journal") as file:
        file.write_at(0, b"one two")
        file.write_at(4, b"TWO three")
        file.sync()
        assert file.read_at(0, 100) == b"one TWO three"
        file.truncate(7)
        assert file.size() == 7
    with files.open_write(tmp_path / "journal") as file:
        file.write_at(file.size(), b"!")
        assert file.read_at(4, 100) == b"TWO!"


def test_a_file_is_created_once_and_opened_only_if_it_exists(files: Files, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.open_write(tmp_path / "journal")
    files.create(tmp_path / "journal").close()
    with pytest.raises(FileExistsError):
        files.create(tmp_path / "journal")


def test_a_short_write_at_an_offset_is_continued(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:2], offset))
    with files.create(tmp_path / "journal") as file:
        file.write_at(1, b"seven b")
        assert file.read_at(0, 100) == b"\0seven b"


def test_allocated_bytes_are_zero_and_a_smaller_request_changes_nothing(files: Files, tmp_path: Path) -> None:
    with files.create(tmp_path / "reserve") as file:
        file.write_at(0, b"data")
        file.allocate(6)
        file.allocate(1)
        assert file.read_at(0, 100) == b"data\0\0"
    with files.open_append(tmp_path / "reserve") as reserve:
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


def test_renaming_replaces_the_file_at_the_new_path(files: Files, tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "old", b"old")
    with files.create(tmp_path / "new") as file:
        file.write_at(0, b"new")
        files.rename(tmp_path / "new", tmp_path / "old")
        assert files.read_bytes(tmp_path / "old") == b"new"
        status = files.status(tmp_path / "old")
        assert status is not None
        assert status.identity == file.identity()
    assert not files.exists(tmp_path / "new")


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
