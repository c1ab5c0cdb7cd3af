"""The folder of a file store: who may use it, which folders are refused, and what is left alone in it."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from file_engine import file_store, read_ids
from opened_engine import opened_engine
from sqlite_store import job

from holdfast.engines import open_engine
from holdfast.engines.file.engine import FileEngine
from holdfast.errors import ConfigError, EngineUnavailable, HoldfastError, SchemaMismatch, Unsupported
from holdfast.files import Files
from holdfast.model.produce import Enqueue


def open_and_close(engine: FileEngine) -> None:
    engine.open_now()
    engine.close_now()


def modes(folder: Path) -> set[tuple[bool, int]]:
    """Of everything in it: whether it is a folder, and its mode."""
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")}


# --- Rights ---


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("value", [0o000, 0o022, 0o077, 0o177, 0o777])
async def test_folders_have_mode_0700_and_files_0600_whatever_the_umask(tmp_path: Path, value: int) -> None:
    path = tmp_path / "jobs"
    with umask(value):
        async with opened_engine(file_store(path, segment_bytes=65_536)) as engine:
            for number in range(4):
                await engine.enqueue(job(f"{number}", payload=b"x" * 40_000))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert modes(path) == {(True, 0o700), (False, 0o600)}
    assert read_ids(path) == {"0", "1", "2", "3"}


async def test_processes_with_different_umasks_share_a_store(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    with umask(0o777):
        async with opened_engine(file_store(path)) as first:
            await first.enqueue(job("first"))
            with umask(0o000):
                async with opened_engine(file_store(path)) as second:
                    await second.enqueue(job("second"))
            await first.enqueue(job("third"))
    assert modes(path) == {(True, 0o700), (False, 0o600)}
    assert read_ids(path) == {"first", "second", "third"}


def test_a_folder_that_a_backup_has_opened_to_others_is_closed_again(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    open_and_close(file_store(path))
    (path / "holdfast").chmod(0o755)
    open_and_close(file_store(path))
    assert stat.S_IMODE((path / "holdfast").stat().st_mode) == 0o700


# --- Folders that are refused ---


def a_link(path: Path) -> None:
    path.with_name("target").mkdir()
    path.symlink_to(path.with_name("target"))


def a_dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("target"))


def a_link_in_it(path: Path) -> None:
    path.mkdir()
    path.with_name("target").mkdir()
    (path / "holdfast").symlink_to(path.with_name("target"))


def a_file(path: Path) -> None:
    path.write_text("mine")


def writable_by_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def writable_by_all_as_tmp(path: Path) -> None:
    path.mkdir()
    path.chmod(0o1777)


def a_store_writable_by_all(path: Path) -> None:
    (path / "holdfast").mkdir(parents=True)
    (path / "holdfast").chmod(0o703)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (a_link, "is a symbolic link"),
        (a_dangling_link, "is a symbolic link"),
        (a_link_in_it, "is a symbolic link"),
        (a_file, "is no folder"),
        (writable_by_all, r"Every user .* may write to .*mode 0777.*chmod go-w"),
        (writable_by_all_as_tmp, r"Every user .* may write to .*mode 1777.* Use a folder in it: file:///.*/jobs/NAME$"),
        (a_store_writable_by_all, r"Every user .* may write to .*mode 0703"),
    ],
)
def test_a_folder_that_is_not_safe_is_refused_and_nothing_is_written(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    make(tmp_path / "jobs")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=message):
        open_and_close(file_store(tmp_path / "jobs"))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs"
    open_and_close(file_store(path))
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=rf"belongs to the user with the number {owner}.*runs as {owner + 1}"):
        open_and_close(file_store(path))


def test_a_link_that_takes_the_place_of_the_folder_while_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "jobs", tmp_path / "target"
    target.mkdir()
    mkdir = Files.mkdir

    def swap(files: Files, folder: str | os.PathLike[str]) -> None:
        mkdir(files, folder)
        if os.fspath(folder).endswith("holdfast"):
            os.rename(path, tmp_path / "moved")
            path.symlink_to(target)

    monkeypatch.setattr(Files, "mkdir", swap)
    with pytest.raises(HoldfastError):
        open_and_close(file_store(path))
    assert list(target.iterdir()) == []


def test_a_folder_with_files_of_others_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holdfast").mkdir(mode=0o700)
    (tmp_path / "holdfast" / "setup.py").touch()
    with pytest.raises(ConfigError, match=r"is no store: it has 'setup\.py'"):
        open_and_close(file_store(tmp_path))
    assert os.listdir(tmp_path / "holdfast") == ["setup.py"]


async def test_other_files_beside_a_store_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path)) as engine:
        await engine.enqueue(job("a"))
    for name in ("notes.txt", "0000000000000001.journal.bak", ".0123456789abcdef.tmp", "zz.journal"):
        (path / "holdfast" / name).write_text("mine")
    os.utime(path / "holdfast" / ".0123456789abcdef.tmp", (0, 0))
    assert read_ids(path) == {"a"}
    left = {name for name in os.listdir(path / "holdfast") if (path / "holdfast" / name).read_bytes() == b"mine"}
    assert left == {"notes.txt", "0000000000000001.journal.bak", "zz.journal"}  # the old temporary file is removed


@pytest.mark.parametrize("text", ["../../etc", "a/b", "..", "x" * 200, "näme", "-rf", "a b\n"])
async def test_names_of_users_never_become_names_of_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path)) as engine:
        await engine.enqueue(job(text, queue=text, lane=text, unique_key=text))
    names = {os.path.relpath(found, path / "holdfast") for found in (path / "holdfast").rglob("*")}
    assert names <= {"format", "gate", "mark", "reserve", "compaction", f"{1:016x}.journal"}
    assert sorted(os.listdir(tmp_path)) == ["jobs"]


@pytest.mark.parametrize("namespace", ["../other", "a/b", "", "A", ".", "x" * 32])
def test_a_namespace_that_is_no_plain_word_is_refused(tmp_path: Path, namespace: str) -> None:
    with pytest.raises(ConfigError, match="must be a lower-case word"):
        file_store(tmp_path / "jobs", namespace=namespace)


# --- File systems ---


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "virtiofs"])
def test_a_network_file_system_is_refused_unless_the_user_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "jobs"
    monkeypatch.setattr(Files, "file_system_type", lambda files, path: kind)
    with pytest.raises(ConfigError, match=rf"network file system \({kind}\).*allow_network_disk"):
        open_and_close(file_store(path))
    assert not path.exists()
    open_and_close(file_store(path, allow_network_disk=True))


def test_a_system_without_file_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.file.folder_checks.sys.platform", "win32")
    engine = file_store(tmp_path / "jobs")
    with pytest.raises(Unsupported, match="Use SQLite"):
        engine._prepare()


# --- Formats and rights of files ---


@pytest.mark.parametrize("number", [2, 17])
async def test_a_store_of_a_newer_format_is_refused_untouched(tmp_path: Path, number: int) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path)) as engine:
        await engine.enqueue(job("a"))
    text = (path / "holdfast" / "format").read_text().replace("format 1", f"format {number}")
    (path / "holdfast" / "format").write_text(text)
    before = {found: found.read_bytes() for found in (path / "holdfast").iterdir()}
    with pytest.raises(SchemaMismatch, match=f"format {number}"):
        open_and_close(file_store(path))
    assert {found: found.read_bytes() for found in (path / "holdfast").iterdir()} == before


AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from file_engine import file_store
from holdfast.errors import EngineUnavailable
path = Path(sys.argv[1])
engine = file_store(path)
engine.open_now()
engine.close_now()
for found in [path, path / "holdfast", *(path / "holdfast").iterdir()]:
    os.chown(found, 12345, 12345)
os.setgid(12345)
os.setuid(12345)  # after all imports: this user may not read the folders of root
{change}
try:
    engine.open_now()
except EngineUnavailable as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize(
    "change", ["os.chmod(path / 'holdfast' / 'gate', 0o400)", "os.chmod(path / 'holdfast' / 'format', 0o000)"]
)
def test_a_file_that_may_not_be_used_is_a_clear_error(change: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # another user may not enter the folders of pytest
        os.chmod(folder, 0o755)
        path = Path(folder) / "jobs"
        support = str(Path(__file__).parents[1] / "support")
        answer = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER_USER.replace("{change}", change), path, support],
            capture_output=True,
            text=True,
            check=False,
        )
    assert answer.returncode == 0, answer.stderr
    assert "Permission denied" in answer.stdout
    assert "Traceback" not in answer.stderr


# --- Addresses ---


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("file:", "names no folder"),
        ("file://", "names no folder"),
        ("file://host/jobs", "contains a host"),
        ("file:jobs?x=1", "takes no options"),
        ("file:jobs%00", "zero byte"),
        ("sqlite:///jobs%00.db", "zero byte"),
    ],
)
def test_an_address_that_is_no_path_is_refused(address: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_engine(address)


def test_a_relative_address_is_shown_as_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    engine = open_engine("file:my%20jobs")
    assert isinstance(engine, FileEngine)
    assert engine.shown_address("file:my%20jobs") == str(tmp_path / "my jobs")
    engine.open_now()
    engine.perform_now(Enqueue(groups=(job("a"),)))
    engine.close_now()
    assert read_ids(tmp_path / "my jobs") == {"a"}


async def test_two_namespaces_in_one_folder_do_not_see_each_other(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with (
        opened_engine(file_store(path, namespace="one")) as one,
        opened_engine(file_store(path, namespace="two")) as two,
    ):
        await one.enqueue(job("a"))
        assert (await two.stats()).queues == ()


async def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((EngineUnavailable, ConfigError), match="file"):
        open_and_close(file_store(tmp_path / "file" / "jobs"))
