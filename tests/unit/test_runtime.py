"""The door to the outside: clocks, chance, tasks, threads, processes, files."""

import asyncio
import contextvars
import logging
import os
import stat
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import InvalidOption
from holdfast.files import Files
from holdfast.runtime import SystemRuntime

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@pytest.fixture
def runtime() -> SystemRuntime:
    return SystemRuntime()


@pytest.fixture
def files() -> Files:
    return Files()


def time_of(ulid: str) -> int:
    """The milliseconds in an id, read the slow way."""
    value = 0
    for digit in ulid[:10]:
        value = value * 32 + CROCKFORD.index(digit)
    return value


def test_wall_time_is_microseconds_since_1970(runtime: SystemRuntime) -> None:
    before = time.time_ns() // 1000
    assert before <= runtime.wall() <= time.time_ns() // 1000


@pytest.mark.parametrize("clock", [SystemRuntime.boot, SystemRuntime.monotonic])
def test_a_clock_that_cannot_be_set_never_goes_back(
    runtime: SystemRuntime, clock: Callable[[SystemRuntime], int]
) -> None:
    readings = [clock(runtime) for _ in range(1000)]
    assert readings == sorted(readings)


@pytest.mark.parametrize("clock", [SystemRuntime.wall, SystemRuntime.boot])
def test_the_offset_moves_the_clocks_of_engines(runtime: SystemRuntime, clock: Callable[[SystemRuntime], int]) -> None:
    before = clock(runtime)
    runtime.clock_offset = 3_600_000_000
    assert 3_600_000_000 <= clock(runtime) - before < 3_660_000_000


def test_the_offset_does_not_move_the_clock_that_measures(runtime: SystemRuntime) -> None:
    before = runtime.monotonic()
    runtime.clock_offset = 3_600_000_000
    assert runtime.monotonic() - before < 60_000_000


def test_the_boot_id_is_the_same_for_everyone_on_the_host() -> None:
    first = SystemRuntime().boot_id()
    assert first
    assert SystemRuntime().boot_id() == first


async def test_a_sleep_lets_other_tasks_run(runtime: SystemRuntime) -> None:
    order: list[str] = []

    async def other() -> None:
        order.append("other")

    task = runtime.spawn(other(), name="other")
    await runtime.sleep(0)
    order.append("main")
    await task
    assert order == ["other", "main"]


def test_a_draw_is_in_the_half_open_unit_interval(runtime: SystemRuntime) -> None:
    assert all(0 <= runtime.random() < 1 for _ in range(1000))


def test_an_id_is_26_characters_of_crockfords_alphabet(runtime: SystemRuntime) -> None:
    for _ in range(100):
        name = runtime.new_id()
        assert len(name) == 26
        assert set(name) <= set(CROCKFORD)


def test_an_id_begins_with_the_wall_time_in_milliseconds(runtime: SystemRuntime) -> None:
    before = runtime.wall() // 1000
    made = time_of(runtime.new_id())
    assert before <= made <= runtime.wall() // 1000


def test_an_id_follows_the_offset_of_the_clock(runtime: SystemRuntime) -> None:
    runtime.clock_offset = 10_000_000_000
    assert time_of(runtime.new_id()) >= time.time_ns() // 1_000_000 + 9_999


class FixedRuntime(SystemRuntime):
    """A runtime with a fixed time and fixed random bytes."""

    def __init__(self, at: int, chance: bytes) -> None:
        super().__init__()
        self.at = at
        self.chance = chance

    def wall(self) -> int:
        return self.at

    def token_bytes(self, count: int) -> bytes:
        return self.chance[:count]


def test_a_known_time_and_known_chance_make_a_known_id() -> None:
    chance = bytes(CROCKFORD.index(character) for character in "TSV4RRFFQ69G5FAV")
    assert FixedRuntime(1_469_922_850_259_000, chance).new_id() == "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def test_the_largest_id_is_well_formed() -> None:
    assert FixedRuntime((2**48 - 1) * 1000, b"\xff" * 16).new_id() == "7ZZZZZZZZZ" + "Z" * 16


def test_ids_do_not_repeat(runtime: SystemRuntime) -> None:
    assert len({runtime.new_id() for _ in range(10_000)}) == 10_000


def test_an_id_is_quick_to_make(runtime: SystemRuntime) -> None:
    best = min(timeit.repeat(runtime.new_id, number=1000, repeat=20)) / 1000
    assert best < 25e-6  # 1.5 to 2.5 µs on a quiet machine; this only catches a tenfold slip


def test_a_claim_id_is_32_hex_digits(runtime: SystemRuntime) -> None:
    name = runtime.new_claim_id()
    assert len(name) == 32
    assert bytes.fromhex(name).hex() == name


async def test_a_spawned_task_returns_its_result(runtime: SystemRuntime) -> None:
    async def answer() -> int:
        return 42

    task = runtime.spawn(answer(), name="answer")
    assert (await task, task.get_name()) == (42, "answer")


async def test_a_spawned_task_is_held_until_it_ends(runtime: SystemRuntime) -> None:
    gate = asyncio.Event()
    task = runtime.spawn(gate.wait(), name="held")
    during = len(runtime._tasks)
    gate.set()
    await task
    await runtime.sleep(0)
    assert (during, len(runtime._tasks)) == (1, 0)


async def test_an_error_that_leaves_a_task_is_logged(runtime: SystemRuntime, caplog: pytest.LogCaptureFixture) -> None:
    async def break_down() -> None:
        raise RuntimeError("broken")

    with caplog.at_level(logging.ERROR, logger="holdfast"):
        task = runtime.spawn(break_down(), name="fragile")
        await asyncio.wait([task])
    (record,) = caplog.records
    assert record.name == "holdfast"
    assert "fragile" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)


async def test_a_cancelled_task_is_not_reported(runtime: SystemRuntime, caplog: pytest.LogCaptureFixture) -> None:
    task = runtime.spawn(asyncio.Event().wait(), name="endless")
    await runtime.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert caplog.records == []


def test_a_thread_is_started_with_its_name(runtime: SystemRuntime) -> None:
    ran = runtime.event()
    thread = runtime.thread(ran.set, name="keeper")
    assert ran.wait(5)
    thread.join(5)
    assert thread.name == "keeper"
    assert thread.daemon


def test_a_lock_is_held_by_one(runtime: SystemRuntime) -> None:
    lock = runtime.lock()
    with lock:
        assert not lock.acquire(blocking=False)
    assert lock.acquire(blocking=False)


async def test_a_blocking_call_runs_beside_the_loop(runtime: SystemRuntime) -> None:
    gate = runtime.event()
    waiting = runtime.spawn(runtime.run_blocking(gate.wait, 5), name="waiting")
    await runtime.sleep(0)
    gate.set()  # reached only because the loop was not blocked
    assert await waiting


async def test_a_blocking_call_sees_the_callers_context_variables(runtime: SystemRuntime) -> None:
    job = contextvars.ContextVar("job", default="none")

    job.set("01J")
    assert (await runtime.run_blocking(job.get)) == "01J"


def test_a_process_gets_its_arguments_unread_by_any_shell(runtime: SystemRuntime) -> None:
    argv = [sys.executable, "-c", "import sys; print(sys.argv[1])", "$HOME; echo `id`"]
    with runtime.process(argv, stdout=subprocess.PIPE) as process:
        output, _ = process.communicate(timeout=30)
    assert output.decode().strip() == "$HOME; echo `id`"


def test_a_process_gets_only_the_environment_it_is_given(
    runtime: SystemRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    argv = [sys.executable, "-c", "import os; print('SECRET' in os.environ, os.environ['GIVEN'])"]
    with runtime.process(argv, env={"GIVEN": "1"}, stdout=subprocess.PIPE) as process:
        output, _ = process.communicate(timeout=30)
    assert output.decode().split() == ["False", "1"]


@pytest.mark.parametrize("argv", ["ls -l", []])
def test_a_process_from_a_line_of_text_or_nothing_is_refused(runtime: SystemRuntime, argv: str | list[str]) -> None:
    with pytest.raises(InvalidOption) as caught:
        runtime.process(argv)
    assert caught.value.option == "argv"


def test_importing_the_runtime_starts_nothing() -> None:
    code = "import threading, holdfast.runtime; print(threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("1", "")


def test_what_was_written_can_be_read(files: Files, tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "a", b"one")
    assert files.read_bytes(tmp_path / "a") == b"one"


def test_writing_again_replaces_the_whole_content(files: Files, tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "a", b"a long first text")
    files.write_atomic(tmp_path / "a", b"short")
    assert files.read_bytes(tmp_path / "a") == b"short"


def test_an_atomic_write_leaves_nothing_else_behind(files: Files, tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "a", b"one")
    assert files.listdir(tmp_path) == ["a"]


def test_a_write_that_fails_keeps_the_old_content_and_leaves_nothing_behind(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_atomic(tmp_path / "a", b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(tmp_path / "a", b"new")
    monkeypatch.undo()
    assert files.read_bytes(tmp_path / "a") == b"old"
    assert files.listdir(tmp_path) == ["a"]


def test_an_atomic_write_syncs_the_file_before_the_rename_and_the_folder_after(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(fd: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        real_sync(fd)  # more than a sync of the data alone

    def replace(source: Path, target: Path) -> None:
        order.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(os, "replace", replace)
    files.write_atomic(tmp_path / "a", b"one")
    assert order == ["file", "rename", "folder"]


def test_files_and_folders_belong_to_their_owner_alone(files: Files, tmp_path: Path) -> None:
    files.mkdir(tmp_path / "store")
    files.write_atomic(tmp_path / "store" / "a", b"")
    files.open_append(tmp_path / "store" / "b").close()
    modes = [stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("store", "store/a", "store/b")]
    assert modes == [0o700, 0o600, 0o600]


def test_a_link_is_not_followed(files: Files, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        files.read_bytes(tmp_path / "link")
    with pytest.raises(OSError, match="symbolic links"):
        files.open_append(tmp_path / "link")


def test_writing_over_a_link_replaces_the_link_and_not_what_it_names(files: Files, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    files.write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "secret").read_bytes() == b"secret"
    assert files.read_bytes(tmp_path / "link") == b"new"


def test_appending_goes_on_where_the_file_ended(files: Files, tmp_path: Path) -> None:
    with files.open_append(tmp_path / "journal") as journal:
        assert journal.append(b"one") == 0
    with files.open_append(tmp_path / "journal") as journal:
        assert journal.append(b"two") == 3
        journal.sync()
        assert journal.size() == 6
    assert files.read_bytes(tmp_path / "journal") == b"onetwo"


def test_a_short_write_is_continued(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:2]))
    with files.open_append(tmp_path / "journal") as journal:
        journal.append(b"seven b")
    assert files.read_bytes(tmp_path / "journal") == b"seven b"


def test_removing_what_is_not_there_is_no_error(files: Files, tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "a", b"")
    files.remove(tmp_path / "a")
    files.remove(tmp_path / "a")
    assert not files.exists(tmp_path / "a")


def test_a_locked_file_is_refused_to_a_second_opening(files: Files, tmp_path: Path) -> None:
    held = files.lock(tmp_path / "lock")
    assert held is not None
    assert files.lock(tmp_path / "lock") is None


def test_closing_a_lock_frees_it(files: Files, tmp_path: Path) -> None:
    held = files.lock(tmp_path / "lock")
    assert held is not None
    held.close()
    assert files.lock(tmp_path / "lock") is not None


def test_the_kernel_frees_the_lock_of_a_killed_process(files: Files, runtime: SystemRuntime, tmp_path: Path) -> None:
    code = (
        "import sys, time; from holdfast.files import Files; lock = Files().lock(sys.argv[1]);"
        "print('held', flush=True); time.sleep(60)"
    )
    with runtime.process([sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert files.lock(tmp_path / "lock") is None
        process.kill()
        process.wait(30)
    assert files.lock(tmp_path / "lock") is not None


FRAMES_WHILE_THREADS_END = """
import gc, os, sys, threading, weakref
from holdfast.runtime import thread_frames

class Node:
    pass

def at_its_end(_):
    for _ in range(200):  # long enough for the interpreter to let another thread run
        pass

def start_threads():
    while True:
        threading.Thread(target=int).start()

references = []
sys.setswitchinterval(1e-6)
for _ in range(2):
    threading.Thread(target=start_threads, daemon=True).start()
gc.set_threshold(1)
for _ in range(50_000):
    for _ in range(3):
        node = Node()
        node.cycle = node
        references.append(weakref.ref(node, at_its_end))
    del references[:-50]
    thread_frames()
assert gc.isenabled()
os._exit(0)
"""


def test_reading_the_frames_of_all_threads_never_hangs_the_process() -> None:
    """On Python 3.11 it did within some thousand calls, if threads ended while garbage was collected."""
    assert subprocess.run([sys.executable, "-c", FRAMES_WHILE_THREADS_END], check=False, timeout=60).returncode == 0
