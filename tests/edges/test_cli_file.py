"""`holdfast file inspect`: what is in the files of a store, and what of it is damaged."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Run

from holdfast import App
from holdfast.engines.file.changes import encode
from holdfast.engines.file.frames import Flag, Header, encode_frame
from holdfast.engines.file.marks import encode_mark
from holdfast.engines.ledger.state import Change
from holdfast.files import Files
from holdfast.model.instants import At
from holdfast.model.job import JobRecord
from holdfast.model.records import QueueRecord

STORE = 0x1234
SEGMENT = f"{1:016x}.journal"


def job(name: str, **fields: object) -> JobRecord:
    return JobRecord(queue="scans", id=name, task="read", payload=b"[1]", **fields)  # type: ignore[arg-type]


class Store:
    """The files of a store with one segment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "holdfast"
        self.folder.mkdir(parents=True)
        (self.folder / "format").write_text(f"holdfast file store, format 1\nid {STORE:016x}\n")
        self.offsets: list[int] = []
        self.append(flags=Flag.FIRST)

    @property
    def segment(self) -> Path:
        return self.folder / SEGMENT

    def append(self, *changes: Change, flags: int = 0) -> None:
        at = At(1_800_000_000_000_000 + len(self.offsets), 7)
        header = Header(len(self.offsets) + 1, at, arrival=3, boot_hash=9, synced=0, store=STORE, flags=flags)
        data = self.segment.read_bytes() if self.segment.exists() else b""
        self.offsets.append(len(data))
        self.segment.write_bytes(data + encode_frame(header, [encode(change) for change in changes]))

    def sync(self) -> None:
        (self.folder / "mark").write_bytes(encode_mark(1, self.segment.stat().st_size))

    def flip(self, offset: int) -> None:
        data = bytearray(self.segment.read_bytes())
        data[offset] ^= 0xFF
        self.segment.write_bytes(data)

    def content(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "scanner")
    store.append(Change(None, QueueRecord(queue="scans")), Change(None, job("one")), Change(None, job("two")))
    store.append(Change(job("one"), None), Change(job("two"), job("two", attempt=1, token="SECRET", owner="w")))
    store.sync()
    return store


def test_frames_and_changes_are_printed(run: Run, store: Store) -> None:
    answer = run("file", "inspect", str(store.root))
    assert (answer.code, answer.err) == (0, "")
    lines = [line.strip() for line in answer.out.splitlines()]
    assert "format 1   id 0000000000001234" in lines[0]
    assert f"{SEGMENT}   {store.segment.stat().st_size:,} bytes" in lines
    assert any(line.startswith("frame 2 at ") and "2027-01-15 08:00:00.000001Z" in line for line in lines)
    assert "queue  queue=scans  totals={'succeeded': 0, 'failed': 0, 'cancelled': 0}" in lines
    assert "job  scans / one  queued  task read  attempt 0  payload 3 bytes" in lines
    assert "job  scans / one  removed" in lines
    assert lines[-1] == "1 file, 3 frames, 5 changes. Nothing is damaged."


def test_json_has_one_object_per_line_with_whole_records_and_no_tokens(run: Run, store: Store) -> None:
    answer = run("file", "inspect", str(store.root), "--json")
    kinds = [item["kind"] for item in answer.objects]
    assert kinds == ["store", "file", "frame", "frame", "change", "change", "change", "frame", "change", "change"]
    last = answer.objects[-1]
    assert (last["type"], last["removed"], last["record"]["id"], last["record"]["owner"]) == ("job", False, "two", "w")
    assert bytes.fromhex(last["record"]["payload"]) == b"[1]"
    assert "SECRET" not in answer.out
    assert answer.objects[3]["at"] == "2027-01-15T08:00:00.000001+00:00"


def test_nothing_is_changed_and_no_lock_is_taken(run: Run, store: Store) -> None:
    store.flip(store.offsets[1] + 150)
    before = store.content()
    run("file", "inspect", str(store.root))
    assert store.content() == before


def test_a_damaged_change_is_named_and_the_others_are_shown(run: Run, store: Store) -> None:
    data = store.segment.read_bytes()
    store.flip(data.index(b"one") + 10)
    answer = run("file", "inspect", str(store.root))
    assert answer.code == 1
    assert "1 place damaged:" in answer.out
    assert "change 1 is damaged: JobRecord 'scans' / 'one'" in answer.out.splitlines()[-1]
    assert "scans / two  queued" in answer.out


@pytest.mark.parametrize("where", ["header", "table", "copy"])
def test_a_damaged_header_costs_nothing_and_is_reported(run: Run, store: Store, where: str) -> None:
    end = store.segment.stat().st_size
    store.flip({"header": store.offsets[1] + 20, "table": store.offsets[1] + 88, "copy": end - 5}[where])
    answer = run("file", "inspect", str(store.root))
    assert answer.code == 1
    assert "no change is lost" in answer.out
    assert "1 file, 3 frames, 5 changes." in answer.out


def test_bytes_that_are_no_frame_are_passed_over(run: Run, store: Store) -> None:
    data = store.segment.read_bytes()
    begin, end = store.offsets[1], store.offsets[2]
    store.segment.write_bytes(data[:begin] + bytes(end - begin) + data[end:])
    answer = run("file", "inspect", str(store.root))
    assert answer.code == 1
    assert f"{SEGMENT} at {begin:,}: {end - begin:,} bytes are not readable as frames" in answer.out
    assert "job  scans / one  removed" in answer.out


def cut(store: Store) -> None:
    store.segment.write_bytes(store.segment.read_bytes() + b"HFj")


def overwrite(store: Store) -> None:
    """As a power failure may leave a frame that was not synced."""
    size = store.segment.stat().st_size
    store.append(Change(None, job("three")))
    store.segment.write_bytes(store.segment.read_bytes()[:-50] + bytes(50))
    assert store.segment.stat().st_size > size


@pytest.mark.parametrize("leave", [cut, overwrite])
def test_the_end_of_a_write_that_is_under_way_is_no_damage(
    run: Run, store: Store, leave: Callable[[Store], None]
) -> None:
    leave(store)
    answer = run("file", "inspect", str(store.root))
    assert answer.code == 0
    assert "after the last complete frame" in answer.out
    assert answer.out.rstrip().endswith("Nothing is damaged.")


def test_the_same_before_the_mark_is_damage(run: Run, store: Store) -> None:
    overwrite(store)
    store.sync()
    assert run("file", "inspect", str(store.root)).code == 1


def test_a_missing_segment_is_reported(run: Run, store: Store) -> None:
    store.segment.rename(store.folder / f"{3:016x}.journal")
    store.folder.joinpath(f"{1:016x}.snapshot").touch()
    answer = run("file", "inspect", str(store.root))
    assert answer.code == 1
    assert f"{2:016x}.journal at 0: this segment is missing" in answer.out


def test_a_missing_last_segment_is_reported(run: Run, store: Store) -> None:
    store.sync()
    store.segment.unlink()
    answer = run("file", "inspect", str(store.root))
    assert answer.code == 1
    assert f"{SEGMENT} at 0: this segment is missing" in answer.out


@pytest.mark.parametrize("content", [None, b"", b"holdfast file store, format 1\nid 12"])
def test_a_damaged_format_is_reported_and_the_id_is_taken_from_a_frame(
    run: Run, store: Store, content: bytes | None
) -> None:
    path = store.folder / "format"
    path.unlink() if content is None else path.write_bytes(content)
    answer = run("file", "inspect", str(store.root))
    assert answer.code == 1
    assert "id 0000000000001234" in answer.out
    assert "DAMAGED: format at 0" in answer.out
    assert "3 frames, 5 changes" in answer.out


def test_a_failed_sync_is_shown(run: Run, store: Store) -> None:
    (store.folder / "suspect").write_text("a sync failed: I/O error\n")
    assert "A SYNC HAS FAILED: a sync failed: I/O error" in run("file", "inspect", str(store.root)).out


def test_stored_text_cannot_control_the_terminal(run: Run, store: Store) -> None:
    store.append(Change(None, job("\x1b[31mred")))
    answer = run("file", "inspect", str(store.root))
    assert "\x1b" not in answer.out
    assert "red" in answer.out


def test_a_folder_without_a_store_exits_with_4(run: Run, tmp_path: Path) -> None:
    answer = run("file", "inspect", str(tmp_path / "nowhere"))
    assert (answer.code, "There is no store" in answer.err) == (4, True)
    (tmp_path / "other").mkdir()
    assert run("file", "inspect", str(tmp_path / "other"), "--namespace", "shop").code == 4
    assert list((tmp_path / "other").iterdir()) == []


def test_the_folder_may_be_written_as_an_address(run: Run, store: Store) -> None:
    assert run("file", "inspect", f"file://{store.root}").out == run("file", "inspect", str(store.root)).out
    assert run("file", "inspect", "file://").code == 2


@pytest.mark.parametrize("name", ["format", SEGMENT])
def test_a_file_that_this_user_may_not_read_is_no_damage(
    run: Run, store: Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(files: Files, path: Path) -> bytes:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return path.read_bytes()

    monkeypatch.setattr(Files, "read_bytes", refuse)  # root may read every file
    answer = run("file", "inspect", str(store.root))
    assert (answer.code, "as the user who owns the folder" in answer.err) == (3, True)
    assert "DAMAGED" not in answer.out


@pytest.mark.parametrize("scheme", ["file", "sqlite"])
def test_a_command_on_a_path_below_a_file_is_a_clear_error(run: Run, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "file").touch()
    slashes = "///" if scheme == "sqlite" else "//"
    answer = run("status", "--url", f"{scheme}:{slashes}{tmp_path}/file/jobs")
    assert (answer.code, "Traceback" in answer.err) == (3, False)


def test_a_command_on_a_store_of_another_user_names_the_users(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(files: Files, path: str) -> int:
        raise PermissionError(13, "Permission denied", path)

    (tmp_path / "jobs").mkdir(mode=0o700)
    monkeypatch.setattr(Files, "size", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    answer = run("status", "--url", f"file://{tmp_path}/jobs")
    assert (answer.code, "this process runs as 12345" in answer.err) == (2, True)


# --- Compact ---


def test_a_compacted_store_has_all_jobs_and_a_short_journal(run: Run, tmp_path: Path) -> None:
    """Also while a process uses it: that one goes on."""
    jobs: App[Any] = App(f"file:{tmp_path}/store")
    task = jobs.client.task("work")
    with jobs:
        for _ in range(20):
            task.using(id="again", unique_for="incomplete").enqueue("x" * 1_000)
            jobs.control.cancel("again")
            jobs.control.delete("again")
        task.using(id="kept").enqueue("y" * 1_000)
        answer = run("file", "compact", str(tmp_path / "store"), "--json")
        assert answer.code == 0, answer.err
        (sizes,) = answer.objects
        assert sizes["bytes_after"] < sizes["bytes_before"] / 4
        task.using(id="later").enqueue()
        assert {job.id for job in jobs.control.find()} == {"kept", "later"}
    answer = run("file", "compact", f"file:{tmp_path}/store")
    assert (answer.code, answer.out.endswith(" bytes now.\n")) == (0, True)
    with jobs:
        assert {job.id for job in jobs.control.find()} == {"kept", "later"}
        assert asyncio.run(jobs.engine.audit()) == ()
    assert run("file", "inspect", str(tmp_path / "store")).code == 0


def test_ended_jobs_are_dropped_after_a_confirmation(run: Run, tmp_path: Path) -> None:
    jobs: App[Any] = App(f"file:{tmp_path}/store")
    task = jobs.client.task("work")
    with jobs:
        for job_id in ("cancelled", "waiting"):
            task.using(id=job_id).enqueue()
        jobs.control.cancel("cancelled")
        answer = run("file", "compact", "--drop-ended", str(tmp_path / "store"))
        assert (answer.code, "Add --yes to confirm" in answer.err) == (2, True)
        assert len(jobs.control.find()) == 2
        assert run("file", "compact", "--drop-ended", "--yes", str(tmp_path / "store")).code == 0
        assert [job.id for job in jobs.control.find()] == ["waiting"]


def test_a_folder_without_a_store_is_not_compacted_and_not_made(run: Run, tmp_path: Path) -> None:
    answer = run("file", "compact", str(tmp_path / "none"))
    assert (answer.code, "There is no store" in answer.err) == (4, True)
    assert list(tmp_path.iterdir()) == []


def test_two_processes_do_not_compact_at_once(run: Run, tmp_path: Path) -> None:
    jobs: App[Any] = App(f"file:{tmp_path}/store")
    with jobs:
        jobs.client.task("work").enqueue()
    lock = Files().lock(tmp_path / "store" / "holdfast" / "compaction")
    assert lock is not None
    with lock:
        answer = run("file", "compact", str(tmp_path / "store"))
    assert (answer.code, "another process writes a snapshot" in answer.err) == (3, True)
