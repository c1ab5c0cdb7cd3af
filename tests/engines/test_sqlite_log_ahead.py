"""The log of a SQLite store is made longer ahead of the commits that need it."""

import errno
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_store import QUEUE, store, writer_of

from holdfast.files import WriteFile
from holdfast.model.produce import Enqueue, Group, NewJob

COMMITS = 40


def enqueue(number: int, payload: bytes = b"") -> Enqueue:
    return Enqueue(groups=(Group((NewJob(queue=QUEUE, id=f"{number:03d}", task="t", payload=payload),)),))


def log_sizes(path: Path, *, fast_paths: bool = True, durability: str = "durable") -> list[int]:
    """The size of the log after each commit. After the last one, the files are copied as a crash would leave them."""
    engine = store(path, fast_paths=fast_paths, durability=durability)
    engine.open_now()
    sizes = []
    for number in range(COMMITS):
        engine.perform_now(enqueue(number))
        sizes.append(path.with_name(path.name + "-wal").stat().st_size)
    for suffix in ("", "-wal"):
        shutil.copy(path.with_name(path.name + suffix), path.with_name("copy.db" + suffix))
    engine.close_now()
    return sizes


def ids_in(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [row[0] for row in db.execute("SELECT id FROM holdfast_job ORDER BY id")]


ALL_IDS = [f"{number:03d}" for number in range(COMMITS)]


def test_few_commits_make_the_log_longer_and_a_crash_loses_none(tmp_path: Path) -> None:
    sizes = log_sizes(tmp_path / "x.db")
    assert len(set(sizes)) <= 4
    assert sizes[-1] < 2 * 1024 * 1024
    assert ids_in(tmp_path / "copy.db") == ALL_IDS


@pytest.mark.parametrize(("fast_paths", "durability"), [(False, "durable"), (True, "fast"), (True, "none")])
def test_the_log_grows_with_each_commit_without_the_switch_or_the_wait_for_the_disk(
    tmp_path: Path, fast_paths: bool, durability: str
) -> None:
    sizes = log_sizes(tmp_path / "x.db", fast_paths=fast_paths, durability=durability)
    assert len(set(sizes)) == COMMITS


def test_a_disk_without_space_for_the_zeros_refuses_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_at = WriteFile.write_at

    def write_a_part(file: WriteFile, offset: int, data: bytes) -> None:
        write_at(file, offset, data[:300_000])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(WriteFile, "write_at", write_a_part)
    sizes = log_sizes(tmp_path / "x.db")
    assert len(set(sizes)) == COMMITS  # what was written of the zeros is gone
    assert ids_in(tmp_path / "copy.db") == ALL_IDS


def test_a_log_that_was_truncated_by_another_program_is_not_made_as_long_again(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    engine = store(path)
    engine.open_now()
    log = writer_of(engine)._log_file
    number = 0
    while log._frames < 1_000 or log._frames < log._grow_at_frame:  # the next commit looks at the length
        engine.perform_now(enqueue(number, payload=bytes(60_000)))
        number += 1
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
    sizes = set()
    for following in range(number, number + 10):
        engine.perform_now(enqueue(following))
        sizes.add(path.with_name("x.db-wal").stat().st_size)
    assert max(sizes) < 1024 * 1024
    assert len(sizes) <= 3  # and it grows ahead of them again
    engine.close_now()
